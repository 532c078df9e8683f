// The panel next to the map with everything known about one value.
function showDetails(panel, legend, plan, mapData, buffer, pinned, onFind) {
  if (!buffer) {
    panel.replaceChildren(
      el("h3", {}, "No value selected"),
      el("p", { class: "dim" }, "Point at a rectangle, or move to the map with Tab and between values with the arrow keys."),
      legend,
    );
    return;
  }
  const entries = [
    ["role", el("span", {}, key(buffer.role), buffer.role)],
    ["size", `${rounded(buffer.bytes)} (${exact(buffer.bytes)})`],
    ["shape", code(buffer.shape)],
    ["value", code(buffer.name)],
    ["opcode", buffer.opcode && code(buffer.opcode)],
    ["op_name", buffer.opName && code(buffer.opName)],
    ["source", buffer.source && code(buffer.source)],
    ["purpose", buffer.purpose],
    ["kept until", buffer.until && code(buffer.until)],
    ["allocation", `${buffer.allocation.index} (${buffer.allocation.kinds.join(", ")}), ${exact(buffer.allocation.size_bytes)}`],
    ["bytes", `${grouped.format(buffer.offset)} to ${grouped.format(buffer.offset + buffer.bytes)} of it`],
    ["alive", lifeOf(buffer, mapData)],
    ["call chain", buffer.chain && el("ol", { class: "chain" }, ...buffer.chain.split("\n").map((frame) => el("li", {}, code(frame))))],
    ["its kernel", buffer.seconds && `${microseconds(buffer.seconds)} per step (${mapData.time_source})`],
  ];
  panel.replaceChildren(
    el("h3", {}, buffer.label),
    el("dl", {}, ...entries.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("p", { class: "pin" }, pinned ? "Pinned. Esc unpins it." : ""),
    el("button", { type: "button", onclick: () => onFind(buffer) }, "Find in the HLO"),
  );
}

const roleLegend = () => el("p", { class: "legend" }, ...ROLES.map((role) => el("span", { class: "role" }, key(role), role)));

// One colour for each power of ten, the longest last.
function heatLegend(longest) {
  const entry = (name, text) => el("span", { class: "role" }, key(name), text);
  const steps = Array.from({ length: HEAT_DECADES + 1 }, (_, step) => {
    const time = microseconds(longest / 10 ** (HEAT_DECADES - step));
    return entry(`heat-${step}`, step ? time : `${time} or less`);
  });
  return el("p", { class: "legend" }, ...steps, entry("unknown", "no kernel, or unknown"));
}

// A coloured box, as in the tables: of a role, or of a step of the times.
function key(role) {
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const box = svg("svg", { class: "key", width: 12, height: 12, "aria-hidden": "true" });
  box.append(svg("rect", { class: `role-${role}`, width: 12, height: 12, rx: 3 }));
  return box;
}

const code = (text) => el("code", {}, text);

function lifeOf(buffer, mapData) {
  if (!buffer.known) return "unknown, or throughout the program";
  const last = buffer.end - 1;
  const until = last >= mapData.last_position ? "the end" : `${last} (${mapData.schedule[last]})`;
  return `positions ${buffer.start} (${mapData.schedule[buffer.start]}) to ${until}`;
}

// The text that a screen reader speaks when a value is selected by keyboard.
function spoken(buffer) {
  const life = buffer.known ? `, alive from ${buffer.start} to ${buffer.end - 1}` : "";
  return `${buffer.label}, ${buffer.role}, ${exact(buffer.bytes)}, ${buffer.shape}${life}`;
}
