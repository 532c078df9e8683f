// A static interval tree: which intervals [start, end) contain a point or overlap a span.
// Sorted by start, with the largest end of each subtree; a query takes O(log n + results).
// A few items are searched one by one instead: most allocations contain one value.
const FEW = 4;

class Intervals {
  constructor(items, startOf, endOf) {
    this.items = items.length > 1 ? [...items].sort((a, b) => startOf(a) - startOf(b)) : items;
    this.startOf = startOf;
    this.endOf = endOf;
    if (items.length <= FEW) return;
    this.starts = Float64Array.from(this.items, startOf);
    this.ends = Float64Array.from(this.items, endOf);
    this.largest = new Float64Array(this.items.length);
    this.fill(0, this.items.length);
  }

  fill(low, high) {
    if (low >= high) return -Infinity;
    const middle = (low + high) >> 1;
    const largest = Math.max(
      this.ends[middle],
      this.fill(low, middle),
      this.fill(middle + 1, high),
    );
    this.largest[middle] = largest;
    return largest;
  }

  // Items with start < to and end > from, by start.
  touching(from, to) {
    if (this.items.length <= FEW) {
      return this.items.filter((item) => this.startOf(item) < to && this.endOf(item) > from);
    }
    const results = [];
    const visit = (low, high) => {
      if (low >= high) return;
      const middle = (low + high) >> 1;
      if (this.largest[middle] <= from) return;
      visit(low, middle);
      if (this.starts[middle] >= to) return;
      if (this.ends[middle] > from) results.push(this.items[middle]);
      visit(middle + 1, high);
    };
    visit(0, this.items.length);
    return results;
  }
}
