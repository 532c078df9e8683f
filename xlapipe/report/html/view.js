// The visible part of the map, and its position on the canvas.
const GUTTER = 92;
const CHART = 58;
const AXIS = 38;
const STRIP = 18;

class View {
  constructor(positions, height) {
    this.whole = { x0: 0, x1: Math.max(1, positions), y0: 0, y1: Math.max(1, height) };
    this.reset();
    this.width = 1;
    this.tall = 1;
  }

  reset() {
    Object.assign(this, this.whole);
  }

  get left() { return GUTTER; }
  get right() { return this.width - 8; }
  get top() { return CHART + 8 + STRIP; }
  get bottom() { return this.tall - AXIS; }

  x(position) {
    return this.left + ((position - this.x0) / (this.x1 - this.x0)) * (this.right - this.left);
  }

  y(address) {
    return this.top + ((address - this.y0) / (this.y1 - this.y0)) * (this.bottom - this.top);
  }

  position(x) {
    return this.x0 + ((x - this.left) / (this.right - this.left)) * (this.x1 - this.x0);
  }

  address(y) {
    return this.y0 + ((y - this.top) / (this.bottom - this.top)) * (this.y1 - this.y0);
  }

  inside(x, y) {
    return x >= this.left && x <= this.right && y >= this.top && y <= this.bottom;
  }

  // Shows a rectangle, limited to the whole map and to at least 2 positions and 16 bytes.
  show(x0, x1, y0, y1) {
    [this.x0, this.x1] = within(x0, x1, this.whole.x0, this.whole.x1, 2);
    [this.y0, this.y1] = within(y0, y1, this.whole.y0, this.whole.y1, 16);
  }

  zoom(factor, x = (this.left + this.right) / 2, y = (this.top + this.bottom) / 2) {
    const [p, a] = [this.position(x), this.address(y)];
    this.show(
      p - (p - this.x0) * factor,
      p + (this.x1 - p) * factor,
      a - (a - this.y0) * factor,
      a + (this.y1 - a) * factor,
    );
  }

  // Moves until the rectangle is visible, at the same scale; returns whether it had to move.
  reveal(x0, x1, y0, y1) {
    const [width, height] = [this.x1 - this.x0, this.y1 - this.y0];
    const [beside, above] = [x1 <= this.x0 || x0 >= this.x1, y1 <= this.y0 || y0 >= this.y1];
    const [x, y] = [beside ? (x0 + x1 - width) / 2 : this.x0, above ? (y0 + y1 - height) / 2 : this.y0];
    if (beside || above) this.show(x, x + width, y, y + height);
    return beside || above;
  }
}

function within(from, to, least, most, smallest) {
  const span = Math.min(Math.max(to - from, Math.min(smallest, most - least)), most - least);
  const start = Math.min(Math.max((from + to - span) / 2, least), most - span);
  return [start, start + span];
}
