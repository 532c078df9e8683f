// Sets up the page: one map per dump, made when the dump is first shown.
const maps = [];

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  for (const map of maps) {
    map?.recolor();
    map?.timeline?.draw();
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function makeThemeButton() {
  const button = document.getElementById("theme");
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    setTheme();
    label();
  });
  label();
}

function showSubject(index, panes) {
  for (const article of document.querySelectorAll("article.subject")) {
    article.hidden = article.id !== `subject-${index}`;
  }
  for (const button of document.querySelectorAll("button[data-subject]")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.subject) === index));
  }
  for (const link of document.querySelectorAll("a[data-section]")) {
    if (link.dataset.section !== "stages") link.setAttribute("href", `#${link.dataset.section}-${index}`);
  }
  if (maps[index]) return;
  const mapData = readJson(`map-data-${index}`);
  const plan = readBuffers(readJson(`allocations-${index}`), mapData);
  const host = document.querySelector(`[data-map="${index}"]`);
  maps[index] = new MemoryMap(host, plan, mapData, (buffer) => panes?.find(index, buffer.name.split("{")[0]));
  const timeline = document.querySelector(`[data-timeline="${index}"]`);
  if (timeline) maps[index].timeline = new Timeline(timeline, readJson(`timeline-data-${index}`));
  linkRows(document.getElementById(`subject-${index}`), maps[index]);
}

const subjects = document.querySelectorAll("article.subject").length;
makeThemeButton();
for (const [index, button] of [...document.querySelectorAll("button[data-subject]")].entries()) {
  button.addEventListener("click", () => showSubject(index, panes));
}
const panes = makePanes(document.getElementById("panes"), subjects);
for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
showSubject(0, panes);
document.documentElement.dataset.ready = "true";
