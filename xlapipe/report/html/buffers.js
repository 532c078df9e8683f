// A plan's values as rectangles: address (from the top of the displayed scope) x schedule position.

// One record per value, in the order of the planned allocations.
function readBuffers(planned, mapData) {
  const { values, strings, roles } = mapData;
  const last = mapData.last_position;
  const allocations = [];
  const buffers = [];
  for (const allocation of planned) {
    const withBuffers = { ...allocation, buffers: [] };
    for (const value of allocation.values) {
      const id = buffers.length;
      const known = values.start[id] >= 0;
      const always = !known || allocation.kinds.includes("constant");
      const buffer = {
        id,
        allocation: withBuffers,
        name: value.name,
        shape: value.shape,
        bytes: value.size_bytes,
        offset: value.offset_bytes,
        role: roles[values.role[id]],
        known,
        start: always ? 0 : values.start[id],
        // Both ends of a live range are included.
        end: (always ? (last ?? 0) : values.end[id]) + 1,
        label: strings[values.label[id]],
        opcode: strings[values.opcode[id]],
        opName: strings[values.op_name[id]],
        source: strings[values.source[id]],
        purpose: strings[values.purpose[id]],
        until: strings[values.until[id]],
        scope: strings[values.scope[id]],
        chain: strings[values.chain[id]],
        seconds: values.seconds[id],
      };
      withBuffers.buffers.push(buffer);
      buffers.push(buffer);
    }
    withBuffers.role = roleOfAllocation(allocation.kinds);
    allocations.push(withBuffers);
  }
  return { allocations, buffers, last: last ?? 0 };
}

function roleOfAllocation(kinds) {
  if (kinds.includes("thread-local")) return "thread-local";
  if (kinds.includes("parameter")) return kinds.includes("maybe-live-out") ? "alias" : "parameter";
  if (kinds.includes("constant")) return "constant";
  return kinds.includes("maybe-live-out") ? "output" : "temp";
}

// The scopes to choose from: all of the device's memory, temp and outputs, another memory (the
// host's, or one of a TPU's chip), or one allocation.
const STACKED = ["temp", "output", "alias", "parameter", "constant", "thread-local"];
const MAX_SCOPES = 40;
const DEVICE = "hbm";
const NAMES_OF_SPACES = { vmem: "VMEM", smem: "SMEM", other: "other memory", host: "host memory" };

function scopesOf(plan) {
  const order = (a, b) =>
    STACKED.indexOf(a.role) - STACKED.indexOf(b.role) || b.size_bytes - a.size_bytes || a.index - b.index;
  const filled = plan.allocations.filter((allocation) => allocation.size_bytes > 0).sort(order);
  const all = filled.filter(({ space }) => space === DEVICE);
  const changing = all.filter(({ role }) => role === "temp" || role === "output");
  const bytes = (allocations) => allocations.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
  const scopes = [{ name: `all allocations, ${rounded(bytes(all))}`, allocations: all }];
  if (changing.length && changing.length < all.length) {
    scopes.push({ name: `temp and outputs, ${rounded(bytes(changing))}`, allocations: changing });
  }
  for (const [space, name] of Object.entries(NAMES_OF_SPACES)) {
    const inSpace = filled.filter((allocation) => allocation.space === space);
    if (inSpace.length) scopes.push({ name: `${name}, ${rounded(bytes(inSpace))}`, allocations: inSpace });
  }
  const several = filled.filter((allocation) => allocation.buffers.length > 1);
  several.sort((a, b) => b.size_bytes - a.size_bytes);
  for (const allocation of several.slice(0, MAX_SCOPES)) {
    const { index, role, size_bytes, space } = allocation;
    const where = space === "host" ? " on the host" : space === DEVICE ? "" : ` in ${NAMES_OF_SPACES[space]}`;
    const name = `allocation ${index}: ${role}${where}, ${rounded(size_bytes)}`;
    scopes.push({ name, allocations: [allocation] });
  }
  // Parameters are alive throughout: if they leave no space to see the rest, start without them.
  const start = scopes.length > 1 && bytes(changing) < 0.1 * bytes(all) && changing.length ? 1 : 0;
  return { scopes, start };
}

const startOf = (buffer) => buffer.start;
const endOf = (buffer) => buffer.end;

// Stacks the scope's allocations, and indexes their values by time.
function layOut(scope) {
  let top = 0;
  const rows = scope.allocations.map((allocation) => {
    allocation.byLife ??= new Intervals(allocation.buffers, startOf, endOf);
    const row = { allocation, top, bottom: top + allocation.size_bytes, byLife: allocation.byLife };
    top = row.bottom;
    return row;
  });
  const rowOf = new Map(rows.map((row) => [row.allocation, row]));
  const placed = rows.flatMap((row) => row.allocation.buffers);
  return { rows, rowOf, placed, height: top };
}

function topOf(layout, buffer) {
  return layout.rowOf.get(buffer.allocation).top + buffer.offset;
}

// The value at a position and an address; of several, the one that starts last.
function hit(layout, position, address) {
  let low = 0;
  let high = layout.rows.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (layout.rows[middle].bottom <= address) low = middle + 1;
    else high = middle;
  }
  const row = layout.rows[low];
  if (!row || address < row.top || address >= row.bottom) return null;
  const offset = address - row.top;
  let best = null;
  for (const buffer of row.byLife.touching(position, position + 1e-9)) {
    if (buffer.start > position || offset < buffer.offset || offset >= buffer.offset + buffer.bytes) continue;
    if (!best || buffer.start > best.start || (buffer.start === best.start && buffer.bytes < best.bytes)) best = buffer;
  }
  return best;
}
