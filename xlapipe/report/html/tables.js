// Makes headings of sortable tables buttons; a second press reverses the order.
function makeSortable(table) {
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    const button = el("button", { type: "button", onclick: () => sortBy(table, column, heading) }, heading.textContent);
    heading.replaceChildren(button);
  }
}

// Marks the row of the value that is pinned in the map, and opens the list that it is in.
function markRow(article, buffer) {
  for (const marked of article.querySelectorAll(".selected")) marked.classList.remove("selected");
  if (!buffer) return;
  const button = [...article.querySelectorAll("button[data-select]")].find((each) => each.dataset.select === buffer.name);
  const row = button?.closest("tr");
  row?.classList.add("selected");
  button?.classList.add("selected");
}

// A click on a value of a table selects it in the map.
function linkRows(article, map) {
  article.addEventListener("click", (event) => {
    const button = event.target.closest("[data-select]");
    if (button) map.select(button.dataset.select);
  });
}

function sortBy(table, column, heading) {
  const numbers = heading.classList.contains("number");
  const before = heading.getAttribute("aria-sort");
  const descending = before ? before === "ascending" : numbers;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const collator = new Intl.Collator("en", { numeric: true });
  const key = (row) => {
    const cell = row.cells[column];
    return numbers ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  const compare = numbers ? (a, b) => a[0] - b[0] : (a, b) => collator.compare(a[0], b[0]);
  rows.sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}
