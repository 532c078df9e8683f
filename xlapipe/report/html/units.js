// Bytes as text with units, the same as xlapipe/report/units.py, and times.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const grouped = new Intl.NumberFormat("en-US");

const exact = (bytes) => `${grouped.format(bytes)} B`;

const microseconds = (seconds) =>
  `${new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 }).format(seconds * 1e6)} µs`;

function rounded(bytes) {
  let size = Math.abs(bytes);
  let unit = 0;
  while (size >= 1023.95 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : size < 10 ? 2 : 1;
  const number = new Intl.NumberFormat("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  }).format(size);
  return `${bytes < 0 ? "-" : ""}${number} ${UNITS[unit]}`;
}
