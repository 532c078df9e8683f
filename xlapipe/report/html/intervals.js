// Which of many intervals [start, end) hold a point, or touch a span: a static interval tree.
// Sorted by start, with the largest end of each subtree; a query takes O(log n + found).
// A handful of items is looked through instead: most allocations hold one value.
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
      return this.items.filter((each) => this.startOf(each) < to && this.endOf(each) > from);
    }
    const found = [];
    const visit = (low, high) => {
      if (low >= high) return;
      const middle = (low + high) >> 1;
      if (this.largest[middle] <= from) return;
      visit(low, middle);
      if (this.starts[middle] >= to) return;
      if (this.ends[middle] > from) found.push(this.items[middle]);
      visit(middle + 1, high);
    };
    visit(0, this.items.length);
    return found;
  }
}
