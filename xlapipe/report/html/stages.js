// Two panes with the compiler's texts, which are unpacked when they are selected.
const LINE_PIXELS = 16;
const CHUNK_LINES = 400;

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

class Pane {
  constructor(label, texts, start) {
    this.texts = texts;
    this.text = "";
    const options = texts.map(({ title }, index) => el("option", { value: index, selected: index === start }, title));
    this.select = el("select", { "aria-label": `${label} text`, onchange: () => this.show(Number(this.select.value)) }, ...options);
    this.input = el("input", {
      type: "search",
      placeholder: "find",
      "aria-label": `Find in the ${label.toLowerCase()} text`,
      onkeydown: (event) => event.key === "Enter" && this.find(this.input.value, event.shiftKey ? -1 : 1),
    });
    this.result = el("span", { class: "found", role: "status" });
    this.body = el("div", { class: "text", tabindex: 0, role: "region", "aria-label": `${label} text` });
    this.element = el(
      "div",
      { class: "pane" },
      el("div", { class: "tools" }, this.select, this.input, el("button", { type: "button", onclick: () => this.find(this.input.value, 1) }, "Next"), this.result),
      this.body,
    );
    this.start = start;
  }

  async show(index) {
    this.select.value = String(index);
    const chosen = this.texts[index];
    chosen.text ??= await unpack(chosen.gzip);
    if (Number(this.select.value) !== index) return; // another text was selected in the meantime
    this.text = chosen.text;
    this.lower = this.text.toLowerCase();
    this.lines = this.text.split("\n");
    this.offset = -1;
    this.result.textContent = `${grouped.format(this.lines.length)} lines`;
    this.chunks = [];
    for (let line = 0; line < this.lines.length; line += CHUNK_LINES) {
      const some = this.lines.slice(line, line + CHUNK_LINES);
      const chunk = el("pre", {}, some.join("\n"));
      chunk.style.containIntrinsicSize = `auto 1000px auto ${some.length * LINE_PIXELS}px`;
      this.chunks.push(chunk);
    }
    this.body.replaceChildren(...this.chunks);
    this.body.scrollTo(0, 0);
  }

  // Selects the next occurrence of `words`, or the previous one if `step` is negative.
  find(words, step) {
    const wanted = words.toLowerCase();
    if (!wanted || !this.text) return;
    let offset = step > 0 ? this.lower.indexOf(wanted, this.offset + 1) : this.offset > 0 ? this.lower.lastIndexOf(wanted, this.offset - 1) : -1;
    if (offset < 0) offset = step > 0 ? this.lower.indexOf(wanted) : this.lower.lastIndexOf(wanted);
    this.offset = offset;
    if (offset < 0) {
      this.result.textContent = "not found";
      return;
    }
    const before = this.text.slice(0, offset).split("\n");
    const line = before.length - 1;
    this.result.textContent = `line ${grouped.format(line + 1)}`;
    const first = Math.floor(line / CHUNK_LINES) * CHUNK_LINES;
    const inChunk = before.slice(first).join("\n").length;
    const node = this.chunks[first / CHUNK_LINES].firstChild;
    this.body.scrollTo({ top: Math.max(0, (line - 6) * LINE_PIXELS), left: Math.max(0, before[line].length * 7 - 120) });
    getSelection().setBaseAndExtent(node, inChunk, node, inChunk + words.length);
  }
}

// The panes of a page; with two dumps, they show the same stage of both.
function makePanes(host, count) {
  const texts = [];
  for (let subject = 0; subject < count; subject += 1) {
    const { name, stages } = readJson(`stages-${subject}`);
    for (const stage of stages) {
      texts.push({ ...stage, subject, title: count > 1 ? `${stage.name} – ${name}` : stage.name });
    }
  }
  if (!texts.length) {
    host.replaceChildren(el("p", {}, "None: this dump contains no text."));
    return null;
  }
  const named = (name, subject) => texts.findIndex((text) => text.subject === subject && text.name === name);
  const after = named("HLO after optimizations", 0);
  const other = count > 1 ? named("HLO after optimizations", 1) : named("HLO before optimizations", 0);
  const left = count > 1 ? after : other;
  const right = count > 1 ? other : after;
  const panes = [new Pane("Left", texts, Math.max(0, left)), new Pane("Right", texts, Math.max(0, right))];
  host.replaceChildren(...panes.map((pane) => pane.element));
  // Texts are unpacked when the panes become visible.
  const visible = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    visible.disconnect();
    for (const pane of panes) if (!pane.text) pane.show(pane.start);
  });
  visible.observe(host);
  return {
    // Shows the definition of an instruction or, without one, the first line that names it.
    async find(subject, instruction) {
      const pane = panes[1];
      const known = ["HLO after optimizations", "buffer assignment"].map((name) => named(name, subject));
      await pane.show(Math.max(0, known.find((index) => index >= 0) ?? 0));
      host.scrollIntoView({ block: "start", behavior: "instant" });
      // Outside the viewport, the section has no layout and cannot be scrolled.
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      const definition = `${instruction} = `;
      pane.input.value = pane.lower.includes(definition.toLowerCase()) ? definition : instruction;
      pane.find(pane.input.value, 1);
      pane.body.focus({ preventScroll: true });
    },
  };
}
