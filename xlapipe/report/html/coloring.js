// What the map's colours mean: the role of a value, its purpose, line or module, or its kernel's time.
const GROUPS = { line: "source", module: "scope" };
const GROUP_COLORS = 10;

// The colouring of one kind; the groups with the most bytes have colours of their own.
function coloringOf(kind, plan, longest) {
  if (kind === "time") return { fill: (buffer, colors) => heatOf(buffer, colors, longest), legend: () => heatLegend(longest) };
  if (kind === "purpose") return { fill: (buffer, colors) => colors[buffer.purpose ? colorOfPurpose(buffer.purpose) : "unknown"], legend: () => purposeLegend(plan) };
  if (!(kind in GROUPS)) return { fill: (buffer, colors) => colors[buffer.role], legend: roleLegend };
  const property = GROUPS[kind];
  const sizes = new Map();
  for (const buffer of plan.buffers) {
    const name = buffer[property];
    // A value that is alive for long takes more of the map.
    if (name) sizes.set(name, (sizes.get(name) ?? 0) + buffer.bytes * (buffer.end - buffer.start));
  }
  const largest = [...sizes].sort((a, b) => b[1] - a[1]).slice(0, GROUP_COLORS).map(([name]) => name);
  const colorOf = new Map(largest.map((name, index) => [name, `group-${index}`]));
  const entry = (color, name) => el("span", { class: "role" }, key(color), name);
  return {
    fill: (buffer, colors) => colors[colorOf.get(buffer[property]) ?? "unknown"],
    legend: () =>
      el("p", { class: "legend" }, ...largest.map((name, index) => entry(`group-${index}`, name)), entry("unknown", sizes.size > GROUP_COLORS ? `${sizes.size - GROUP_COLORS} others, or unknown` : "unknown")),
  };
}

// The purposes that values of the map have, in the order of the list.
function purposeLegend(plan) {
  const used = new Set(plan.buffers.map(({ purpose }) => purpose));
  const entries = PURPOSES.filter((purpose) => used.has(purpose)).map((purpose) => el("span", { class: "role" }, key(colorOfPurpose(purpose)), purpose));
  return el("p", { class: "legend" }, ...entries);
}
