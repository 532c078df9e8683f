// The predicted timeline of one dump: a row for each stream, zoom as in the memory map.
const ROW = 26;
const TIMELINE_AXIS = 22;
const TIMELINE_GUTTER = 100;
const LEAST_NAMED = 60;

class Timeline {
  constructor(host, data) {
    this.data = data;
    this.end = data.start.reduce((most, start, i) => Math.max(most, start + data.us[i]), 1e-3);
    this.current = -1;
    const button = (text, label, run) => el("button", { type: "button", "aria-label": label, title: label, onclick: run }, text);
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.area = el("div", { class: "canvas", tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-label": "Predicted timeline; arrow keys select the kernels in turn. The tables below have the same figures." }, this.canvas);
    this.area.style.height = `${data.streams.length * ROW + TIMELINE_AXIS}px`;
    this.text = el("p", { class: "keys", "aria-live": "polite", role: "status" });
    host.replaceChildren(
      el("div", { class: "tools" },
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("Reset", "Show everything", () => this.show(0, this.end)),
        el("span", { class: "note" }, "Drag to zoom into a time. Keys: ← → previous, next; + − 0 zoom.")),
      this.area,
      this.text,
    );
    this.listen();
    this.show(0, this.end);
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  listen() {
    const at = (event) => [event.offsetX, event.offsetY];
    this.area.addEventListener("pointerdown", (event) => (this.from = this.time(at(event)[0])));
    this.area.addEventListener("pointermove", (event) => this.select(this.under(...at(event))));
    this.area.addEventListener("pointerup", (event) => {
      const to = this.time(at(event)[0]);
      if (Math.abs(to - this.from) > 4 * this.pixel) this.show(Math.min(this.from, to), Math.max(this.from, to));
    });
    this.area.addEventListener("dblclick", () => this.show(0, this.end));
    this.area.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX));
    }, { passive: false });
    this.area.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.data.start.length - 1;
      if (event.key === "ArrowRight") this.select(Math.min(last, this.current + 1));
      else if (event.key === "ArrowLeft") this.select(Math.max(0, this.current - 1));
      else if (event.key === "+" || event.key === "=") this.zoom(0.5);
      else if (event.key === "-") this.zoom(2);
      else if (event.key === "0") this.show(0, this.end);
      else return;
      event.preventDefault();
    });
  }

  get pixel() { return (this.to - this.begin) / Math.max(1, this.area.clientWidth - TIMELINE_GUTTER); }
  x(time) { return TIMELINE_GUTTER + (time - this.begin) / this.pixel; }
  time(x) { return this.begin + (x - TIMELINE_GUTTER) * this.pixel; }

  show(begin, to) {
    [this.begin, this.to] = within(begin, to, 0, this.end, this.end / 1e5);
    this.draw();
  }

  zoom(factor, time = this.current >= 0 ? this.data.start[this.current] : (this.begin + this.to) / 2) {
    this.show(time - (time - this.begin) * factor, time + (this.to - time) * factor);
  }

  under(x, y) {
    const [time, stream] = [this.time(x), Math.floor(y / ROW)];
    const slack = 2 * this.pixel;
    return this.data.start.findIndex((start, i) => this.data.stream[i] === stream && time >= start && time <= start + Math.max(this.data.us[i], slack));
  }

  select(index) {
    if (index === this.current) return;
    this.current = index;
    const { names, name, start, us, source, launches, streams, stream } = this.data;
    this.text.textContent = index < 0 ? "" : [names[name[index]], streams[stream[index]], `${grouped.format(us[index])} µs from ${grouped.format(start[index])} µs on`, names[source[index]], launches[index] > 1 ? `${grouped.format(launches[index])} launches in the step` : ""].filter(Boolean).join(" · ");
    if (index >= 0 && (start[index] > this.to || start[index] + us[index] < this.begin)) {
      const half = (this.to - this.begin) / 2;
      this.show(start[index] - half, start[index] + half);
    } else this.draw();
  }

  draw() {
    const [width, height] = [this.area.clientWidth, this.area.clientHeight];
    if (!width) return;
    const scale = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * scale, height: height * scale });
    const context = this.canvas.getContext("2d");
    const colors = readColors();
    context.scale(scale, scale);
    context.font = "12px sans-serif";
    context.textBaseline = "middle";
    const { streams, start, us, stream, source, name, names } = this.data;
    streams.forEach((text, row) => {
      context.fillStyle = colors.dim;
      context.fillText(text, 4, row * ROW + ROW / 2);
    });
    context.save();
    context.beginPath();
    context.rect(TIMELINE_GUTTER, 0, width - TIMELINE_GUTTER, height);
    context.clip();
    for (let i = 0; i < start.length; i += 1) {
      const [left, right] = [this.x(start[i]), this.x(start[i] + us[i])];
      if (right < TIMELINE_GUTTER || left > width) continue;
      const top = stream[i] * ROW + 2;
      const group = colors[GROUP_NAMES[(source[i] || name[i]) % GROUP_NAMES.length]];
      context.fillStyle = i === this.current ? colors.accent : streams[stream[i]] === "idle" ? colors.hatch : group;
      context.fillRect(left, top, Math.max(0.5, right - left - 0.3), ROW - 4);
      if (right - left < LEAST_NAMED) continue;
      context.fillStyle = colors.on[group] ?? colors.ink;
      context.fillText(names[name[i]], Math.max(left, TIMELINE_GUTTER) + 4, top + ROW / 2 - 2, right - left - 8);
    }
    context.restore();
    context.fillStyle = colors.dim;
    for (const part of [0, 0.25, 0.5, 0.75]) {
      const time = this.begin + part * (this.to - this.begin);
      context.fillText(`${new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 }).format(time)} µs`, this.x(time), height - TIMELINE_AXIS / 2);
    }
  }
}
