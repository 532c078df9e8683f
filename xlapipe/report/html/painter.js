// Draws the map: bytes in use at the top, and all values by address and schedule position below.
// Steps of the colours of times, over so many powers of ten below the longest.
const HEAT_STEPS = 16;
const HEAT_DECADES = 3;

const PHASES = ["forward", "backward", "update"];
const GROUP_NAMES = Array.from({ length: 10 }, (_, index) => `group-${index}`);
const ROLES = ["parameter", "alias", "output", "temp", "constant", "thread-local"];
// Colours of purposes are fixed and are those of the title's parts; none is also a role's.
const PURPOSES = ["weights", "optimizer state", "arguments", "updated in place", "outputs", "saved for backward", "computed again", "gradients", "collective results", "workspaces", "casts", "copies", "intermediate values", "constants"];
const colorOfPurpose = (purpose) => `purpose-${purpose.replaceAll(" ", "-")}`;

function readColors() {
  // light-dark() is resolved on a real element only.
  const probe = el("span", { hidden: true });
  document.body.append(probe);
  const colors = {};
  for (const name of [...ROLES, ...PURPOSES.map(colorOfPurpose), ...GROUP_NAMES, ...PHASES, "panel", "ink", "dim", "line", "reserved", "hatch", "accent", "unknown", "cool", "hot"]) {
    probe.style.color = `var(--${name})`;
    colors[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colors.heat = Array.from({ length: HEAT_STEPS }, (_, step) => between(colors.cool, colors.hot, step / (HEAT_STEPS - 1)));
  const fills = [...[...ROLES, ...PURPOSES.map(colorOfPurpose), ...GROUP_NAMES, ...PHASES].map((name) => colors[name]), ...colors.heat, colors.unknown];
  colors.on = Object.fromEntries(fills.map((fill) => [fill, inkOn(fill)]));
  return colors;
}

const partsOf = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);

function between(from, to, share) {
  const [start, end] = [partsOf(from), partsOf(to)];
  return `rgb(${start.map((part, index) => Math.round(part + (end[index] - part) * share)).join(", ")})`;
}

// The colour of the time of a value's kernel, on a logarithmic scale to `longest`.
function heatOf(buffer, colors, longest) {
  if (!buffer.seconds) return colors.unknown;
  const share = 1 + Math.log10(buffer.seconds / longest) / HEAT_DECADES;
  return colors.heat[Math.round(Math.min(1, Math.max(0, share)) * (HEAT_STEPS - 1))];
}

// Black or white, whichever has more contrast to `color` ("rgb(r, g, b)"), by WCAG's luminance.
function inkOn(color) {
  const [r, g, b] = partsOf(color).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#0c1018" : "#ffffff";
}

// A cleared canvas context at the resolution of the screen.
function prepare(canvas, view) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(view.width * ratio), Math.round(view.tall * ratio)];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, view.width, view.tall);
  context.font = '11px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
  return context;
}

// `fill`: the colour of a value.
function paint(canvas, view, layout, mapData, colors, fillOf) {
  const context = prepare(canvas, view);
  paintValues(context, view, layout, colors, fillOf);
  paintPhases(context, view, mapData, colors);
  paintAxes(context, view, layout, mapData, colors);
  paintInUse(context, view, mapData, colors);
}

function rectangle(view, x0, x1, y0, y1) {
  const [left, right] = [Math.max(view.x(x0), view.left), Math.min(view.x(x1), view.right)];
  const [top, bottom] = [Math.max(view.y(y0), view.top), Math.min(view.y(y1), view.bottom)];
  return [left, top, right - left, bottom - top];
}

function paintValues(context, view, layout, colors, fillOf) {
  context.save();
  context.beginPath();
  context.rect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  context.clip();
  context.fillStyle = hatched(context, colors);
  context.fillRect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  const labels = [];
  let filled = { line: -1, fill: "" };
  for (const row of layout.rows) {
    if (row.bottom <= view.y0 || row.top >= view.y1) continue;
    // Of the many values that are alive throughout and are on one line of pixels, one is drawn.
    const thin = view.y(row.bottom) - view.y(row.top) < 0.5;
    if (thin && row.allocation.buffers.length === 1) {
      const [only] = row.allocation.buffers;
      if (only.start <= view.x0 && only.end >= view.x1) {
        const line = Math.floor(view.y(row.top) * 2);
        const fill = fillOf(only, colors);
        if (line === filled.line && fill === filled.fill) continue;
        filled = { line, fill };
      }
    }
    for (const buffer of row.byLife.touching(view.x0, view.x1)) {
      const from = row.top + buffer.offset;
      const [x, y, width, height] = rectangle(view, buffer.start, buffer.end, from, from + buffer.bytes);
      if (height <= 0 || width <= 0) continue;
      const fill = fillOf(buffer, colors);
      context.fillStyle = fill;
      // A gap between neighbours, if there is space for one.
      const [wide, tall] = [width - (width > 3 ? 0.75 : 0), height - (height > 3 ? 0.75 : 0)];
      context.fillRect(x, y, Math.max(wide, 0.6), Math.max(tall, 0.6));
      if (width > 46 && height > 13) labels.push([buffer, x, y, width, height, fill]);
    }
  }
  for (const [buffer, x, y, width, height, fill] of labels) {
    paintLabel(context, buffer, x, y, width, height, colors.on[fill]);
  }
  context.restore();
}

function hatched(context, colors) {
  const tile = new OffscreenCanvas(8, 8);
  const drawing = tile.getContext("2d");
  drawing.fillStyle = colors.reserved;
  drawing.fillRect(0, 0, 8, 8);
  drawing.strokeStyle = colors.hatch;
  drawing.lineWidth = 0.8;
  for (const shift of [-8, 0, 8]) {
    drawing.moveTo(shift, 8);
    drawing.lineTo(shift + 8, 0);
  }
  drawing.stroke();
  return context.createPattern(tile, "repeat");
}

function paintLabel(context, buffer, x, y, width, height, ink) {
  context.save();
  context.beginPath();
  context.rect(x, y, width - 4, height);
  context.clip();
  context.fillStyle = ink;
  context.textAlign = "left";
  context.textBaseline = "top";
  // The user's line, then the primitive: the path between them is in the panel. Arguments have paths.
  const isArgument = buffer.role === "parameter" || buffer.role === "alias";
  const last = (path) => path.split("/").at(-1);
  const label = buffer.source && !isArgument ? `${last(buffer.source)}  ${last(buffer.label)}` : buffer.label;
  context.fillText(label, x + 5, y + Math.max(1, Math.min(4, (height - 12) / 2)));
  if (height > 30) {
    context.globalAlpha = 0.85;
    context.fillText(rounded(buffer.bytes), x + 5, y + 18);
  }
  context.restore();
}

function paintAxes(context, view, layout, mapData, colors) {
  context.strokeStyle = colors.line;
  context.fillStyle = colors.dim;
  context.lineWidth = 1;
  context.strokeRect(view.left - 0.5, view.top - 0.5, view.right - view.left + 1, view.bottom - view.top + 1);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const address of ticks(view.y0, view.y1, 6, 2)) {
    context.fillText(rounded(address), view.left - 8, Math.min(Math.max(view.y(address), view.top + 6), view.bottom - 6));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const position of ticks(view.x0, view.x1, 10, 10)) {
    if (position % 1 === 0) context.fillText(String(position), view.x(position), view.bottom + 6);
  }
  const axis = "schedule position (instructions in the order in which they run)";
  const fits = context.measureText(axis).width < view.right - view.left;
  context.fillText(fits ? axis : "schedule position", (view.left + view.right) / 2, view.bottom + 20);
  context.strokeStyle = colors.ink;
  context.globalAlpha = 0.35;
  context.beginPath();
  for (const row of layout.rows) {
    const y = Math.round(view.y(row.top)) + 0.5;
    const tall = view.y(row.bottom) - y;
    if (tall < 6 || y <= view.top + 1 || y >= view.bottom) continue;
    context.moveTo(view.left, y);
    context.lineTo(view.right, y);
  }
  context.stroke();
  context.globalAlpha = 1;
  if (mapData.peak_position === null) return;
  const x = view.x(mapData.peak_position + 0.5);
  if (x < view.left || x > view.right) return;
  context.strokeStyle = colors.ink;
  context.setLineDash([4, 3]);
  context.beginPath();
  context.moveTo(x, 14);
  context.lineTo(x, view.bottom);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = colors.ink;
  context.textAlign = x > view.right - 60 ? "right" : "left";
  context.textBaseline = "top";
  context.fillText("peak", x + (x > view.right - 60 ? -5 : 5), 0);
}

// Round steps: powers of `base`, doubled or, for decimals, in fives.
function ticks(from, to, wanted, base) {
  let step = 1;
  const more = base === 10 ? [2, 2.5, 2] : [2];
  for (let turn = 0; (to - from) / step > wanted; turn += 1) step *= more[turn % more.length];
  const values = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) values.push(at);
  return values;
}

// The bytes in use at each position, with a separate scale.
function paintInUse(context, view, mapData, colors) {
  const occupied = mapData.occupied;
  if (!occupied.length) return;
  let [least, most] = [Infinity, -Infinity];
  for (const bytes of occupied) {
    least = Math.min(least, bytes);
    most = Math.max(most, bytes);
  }
  const [top, bottom] = [16, CHART];
  const y = (bytes) => (most === least ? bottom - 8 : bottom - ((bytes - least) / (most - least)) * (bottom - top));
  // One column per pixel: the maximum over its positions.
  const positions = (view.x1 - view.x0) / (view.right - view.left);
  context.beginPath();
  for (let x = Math.floor(view.left); x < view.right; x += 1) {
    const from = Math.max(0, Math.floor(view.position(x)));
    const to = Math.min(occupied.length, Math.max(from + 1, Math.floor(view.position(x) + positions)));
    let inColumn = least;
    for (let at = from; at < to; at += 1) inColumn = Math.max(inColumn, occupied[at]);
    context.rect(x, y(inColumn), 1, bottom - y(inColumn));
  }
  context.fillStyle = colors.accent;
  context.globalAlpha = 0.45;
  context.fill();
  context.globalAlpha = 1;
  context.fillStyle = colors.dim;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const text = rounded(most) === rounded(least) ? (bytes) => grouped.format(bytes) : rounded;
  context.fillText(text(most), view.left - 8, top + 2);
  if (most !== least) context.fillText(text(least), view.left - 8, bottom - 4);
  // On the other side than the word "peak".
  const atRight = view.x(mapData.peak_position) < (view.left + view.right) / 2;
  context.textAlign = atRight ? "right" : "left";
  context.textBaseline = "top";
  const title = "bytes in use (the scale does not start at 0)";
  const x = view.x(mapData.peak_position);
  const room = (atRight ? view.right - x : x - view.left) - 40;
  context.fillText(context.measureText(title).width < room ? title : "bytes in use", atRight ? view.right : view.left, 0);
}

// Draws frames around the value under the pointer and the pinned one, and the dragged area.
function paintOver(canvas, view, layout, colors, { current, pinned, drag }) {
  const context = prepare(canvas, view);
  for (const [buffer, width] of [[pinned, 4], [current, 2.5]]) {
    if (!buffer || !layout.rowOf.has(buffer.allocation)) continue;
    const from = topOf(layout, buffer);
    const [x, y, wide, tall] = rectangle(view, buffer.start, buffer.end, from, from + buffer.bytes);
    if (wide < 0 || tall < 0) continue;
    context.strokeStyle = colors.panel;
    context.lineWidth = width + 2;
    context.strokeRect(x - 1, y - 1, Math.max(wide, 2) + 1, Math.max(tall, 2) + 1);
    context.strokeStyle = colors.ink;
    context.lineWidth = width;
    context.strokeRect(x - 1, y - 1, Math.max(wide, 2) + 1, Math.max(tall, 2) + 1);
  }
  if (drag) {
    context.fillStyle = colors.accent;
    context.globalAlpha = 0.2;
    context.fillRect(drag.x, drag.y, drag.toX - drag.x, drag.toY - drag.y);
  }
}

// The forward and backward pass and the update, above the values.
function paintPhases(context, view, { phases }, colors) {
  const top = view.top - STRIP;
  for (const [phase, from, to] of phases) {
    if (to <= view.x0 || from >= view.x1) continue;
    const [x, , width] = rectangle(view, from, to, view.y0, view.y1);
    context.fillStyle = colors[phase];
    context.fillRect(x, top, Math.max(width, 0.6), STRIP - 3);
    if (width < 54) continue;
    context.fillStyle = colors.on[colors[phase]];
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(phase, x + 5, top + (STRIP - 3) / 2);
  }
}
