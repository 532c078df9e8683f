// The map of one dump: canvas, pointer and keyboard.
const CLICK_PIXELS = 4;

const byTime = (a, b) => a.start - b.start || a.end - b.end || a.id - b.id;

class MemoryMap {
  constructor(host, plan, mapData, onFind) {
    Object.assign(this, { host, plan, mapData, onFind });
    this.current = this.pinned = this.drag = null;
    const { scopes, start } = scopesOf(plan);
    this.scopes = scopes;
    this.longest = plan.buffers.reduce((most, { seconds }) => Math.max(most, seconds ?? 0), 0);
    // A training step is read by what its values are for; all roles but temp are at its edge.
    this.kind = mapData.phases.length ? "purpose" : "role";
    this.coloring = coloringOf(this.kind, plan, this.longest);
    this.build(start);
    this.choose(start);
    // The largest scope is laid out before it is selected.
    requestIdleCallback?.(() => (scopes[0].layout ??= layOut(scopes[0])));
    new ResizeObserver(() => this.resize()).observe(this.area);
  }

  build(start) {
    const options = this.scopes.map((scope, index) => el("option", { value: index, selected: index === start }, scope.name));
    this.scopeSelect = el("select", { onchange: () => this.choose(Number(this.scopeSelect.value)) }, ...options);
    const kinds = { role: "role", purpose: "purpose", line: "source line", module: "module" };
    if (this.longest) kinds.time = this.mapData.time_source === "measured" ? "measured time" : "floor";
    const byKind = el("select", { class: "color", onchange: () => this.colorBy(byKind.value) }, ...Object.entries(kinds).map(([kind, text]) => el("option", { value: kind, selected: kind === this.kind }, text)));
    const button = (text, label, run) => el("button", { type: "button", "aria-label": label, title: label, onclick: run }, text);
    this.note = el("span", { class: "note" });
    this.base = el("canvas", { "aria-hidden": "true" });
    this.over = el("canvas", { class: "over", "aria-hidden": "true" });
    this.area = el(
      "div",
      { class: "canvas", tabindex: 0, role: "application", "aria-roledescription": "memory map" },
      this.base,
      this.over,
    );
    this.panel = el("aside", { class: "details", "aria-label": "Selected value" });
    this.live = el("p", { class: "keys", "aria-live": "polite", role: "status" });
    this.host.replaceChildren(
      el(
        "div",
        { class: "tools" },
        el("label", {}, "show ", this.scopeSelect),
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("Reset", "Show everything", () => this.zoom(Infinity)),
        el("label", {}, "colour by ", byKind),
        this.note,
      ),
      el("div", { class: "body" }, this.area, this.panel),
      this.live,
      el(
        "p",
        { class: "keys" },
        "Drag to zoom into an area, double-click for its allocation. Keys: ",
        ...["← →", " earlier, later  ", "↑ ↓", " lower, higher address  ", "Home", " largest value  ", "PgUp PgDn", " previous, next value  ", "Enter", " pin  ", "Esc", " unpin  ", "+ − 0", " zoom"].map(
          (text, index) => (index % 2 ? text : el("kbd", {}, text)),
        ),
      ),
    );
    this.listen();
  }

  choose(index) {
    const scope = this.scopes[index];
    this.layout = scope.layout ??= layOut(scope);
    this.view = new View(this.plan.last + 1, this.layout.height);
    this.resize();
    const hidden = this.plan.allocations.length - scope.allocations.length;
    const several = (count) => `${grouped.format(count)} allocation${count === 1 ? "" : "s"}`;
    this.note.textContent =
      `${several(scope.allocations.length)}, ${grouped.format(this.layout.placed.length)} values` +
      (hidden ? `; ${several(hidden)} not shown` : "") +
      (this.mapData.last_position === null
        ? ". This dump has no live ranges, so lifetimes are unknown."
        : ". Hatched: reserved but not in use at that position.");
    this.area.setAttribute(
      "aria-label",
      `Map of ${scope.name}: ${grouped.format(this.layout.placed.length)} values by address and schedule position. The tables of this page contain the same figures.`,
    );
    this.set(this.layout.rowOf.has(this.current?.allocation) ? this.current : null);
  }

  resize() {
    const box = this.area.getBoundingClientRect();
    if (!box.width) return;
    this.view.width = box.width;
    this.view.tall = box.height;
    this.draw();
  }

  colorBy(kind) {
    this.coloring = coloringOf(kind, this.plan, this.longest);
    this.draw();
    this.set(this.current);
  }

  recolor() {
    this.colors = readColors();
    this.draw();
  }

  draw() {
    this.colors ??= readColors();
    paint(this.base, this.view, this.layout, this.mapData, this.colors, this.coloring.fill);
    this.drawOver();
  }

  drawOver() {
    paintOver(this.over, this.view, this.layout, this.colors, this);
  }

  set(buffer) {
    this.current = buffer;
    const legend = this.coloring.legend();
    showDetails(this.panel, legend, this.plan, this.mapData, buffer ?? this.pinned, this.pinned !== null && (buffer ?? this.pinned) === this.pinned, this.onFind);
    if (this.view.width > 1) this.drawOver();
  }

  pin(buffer) {
    this.pinned = buffer;
    this.set(buffer);
    markRow(this.host.closest("article"), buffer);
  }

  // Selects a value by name, in the scope of the whole device if it is not in this one.
  select(name) {
    const buffer = this.plan.buffers.find((each) => each.name === name);
    if (!buffer) return;
    if (!this.layout.rowOf.has(buffer.allocation)) {
      this.scopeSelect.value = "0";
      this.choose(0);
    }
    this.moveTo(buffer);
    this.pin(buffer);
    this.host.scrollIntoView({ block: "nearest" });
  }

  zoom(factor, x, y) {
    if (factor === Infinity) this.view.reset();
    else this.view.zoom(factor, x, y);
    this.draw();
  }

  listen() {
    const pointOf = (event) => {
      const box = this.area.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const under = (x, y) => (this.view.inside(x, y) ? hit(this.layout, this.view.position(x), this.view.address(y)) : null);
    this.area.addEventListener("pointerdown", (event) => {
      const [x, y] = pointOf(event);
      if (event.button === 0 && event.pointerType !== "touch" && this.view.inside(x, y)) this.drag = { x, y, toX: x, toY: y };
    });
    this.area.addEventListener("pointermove", (event) => {
      const [x, y] = pointOf(event);
      if (this.drag) {
        Object.assign(this.drag, { toX: x, toY: y });
        this.drawOver();
      } else if (!this.pinned) {
        const buffer = under(x, y);
        if (buffer !== this.current) this.set(buffer);
      }
    });
    this.area.addEventListener("pointerup", (event) => {
      const [x, y] = pointOf(event);
      const drag = this.drag;
      this.drag = null;
      if (drag && Math.hypot(drag.toX - drag.x, drag.toY - drag.y) > CLICK_PIXELS) this.zoomInto(drag);
      else this.pin(under(x, y));
    });
    this.area.addEventListener("pointerleave", () => {
      this.drag = null;
      if (!this.pinned) this.set(null);
    });
    this.area.addEventListener("dblclick", (event) => {
      const buffer = under(...pointOf(event));
      if (buffer) this.zoomToAllocation(buffer);
    });
    this.area.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, ...pointOf(event));
    }, { passive: false });
    this.area.addEventListener("keydown", (event) => this.key(event));
  }

  zoomInto({ x, y, toX, toY }) {
    const [x0, x1] = [this.view.position(Math.min(x, toX)), this.view.position(Math.max(x, toX))];
    const [y0, y1] = [this.view.address(Math.min(y, toY)), this.view.address(Math.max(y, toY))];
    this.view.show(x0, x1, y0, y1);
    this.draw();
  }

  zoomToAllocation(buffer) {
    const row = this.layout.rowOf.get(buffer.allocation);
    this.view.show(this.view.x0, this.view.x1, row.top, row.bottom);
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    const from = this.current ?? this.pinned;
    if (event.key in moves) this.moveTo(from ? this.neighbour(from, ...moves[event.key]) : this.largest());
    else if (event.key === "PageDown" || event.key === "PageUp") {
      this.moveTo(from ? this.inTurn(from, event.key === "PageDown" ? 1 : -1) : this.largest());
    } else if (event.key === "Home") this.moveTo(this.largest());
    else if (event.key === "Enter" || event.key === " ") this.pin(this.current);
    else if (event.key === "Escape") this.pin(null);
    else if (event.key === "+" || event.key === "=") this.zoomAt(from, 0.5);
    else if (event.key === "-") this.zoomAt(from, 2);
    else if (event.key === "0") this.zoom(Infinity);
    else return;
    event.preventDefault();
  }

  zoomAt(buffer, factor) {
    if (!buffer) return this.zoom(factor);
    const top = topOf(this.layout, buffer);
    return this.zoom(factor, this.view.x((buffer.start + buffer.end) / 2), this.view.y(top + buffer.bytes / 2));
  }

  moveTo(buffer) {
    if (!buffer) return;
    this.pinned = null;
    const top = topOf(this.layout, buffer);
    if (this.view.reveal(buffer.start, buffer.end, top, top + buffer.bytes)) this.draw();
    this.set(buffer);
    this.live.textContent = spoken(buffer);
  }

  largest() {
    return this.layout.placed.reduce((best, buffer) => (best && best.bytes >= buffer.bytes ? best : buffer), null);
  }

  // The next value in time over some of the same bytes (dx), or in address at the same time (dy).
  neighbour(from, dx, dy) {
    const top = topOf(this.layout, from);
    if (dy) {
      const order = this.layout.rows
        .flatMap((row) => row.byLife.touching(from.start, from.start + 1e-9))
        .filter((buffer) => buffer.bytes > 0)
        .sort((a, b) => topOf(this.layout, a) - topOf(this.layout, b) || a.id - b.id);
      return order[order.indexOf(from) + dy];
    }
    const sharesBytes = (buffer) => {
      const start = topOf(this.layout, buffer);
      return buffer.bytes > 0 && start < top + from.bytes && top < start + buffer.bytes;
    };
    const row = this.layout.placed.filter((buffer) => buffer === from || sharesBytes(buffer)).sort(byTime);
    return row[row.indexOf(from) + dx] ?? this.inTurn(from, dx);
  }

  // The next value in time at any address, so that every value can be reached.
  inTurn(from, step) {
    this.layout.byTime ??= this.layout.placed.filter((buffer) => buffer.bytes > 0).sort(byTime);
    return this.layout.byTime[this.layout.byTime.indexOf(from) + step];
  }
}
