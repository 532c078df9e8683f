
const parse = (color) => color.match(/[\d.]+/g).map(Number);
const linear = (part) => {
  const share = part / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
};
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = parse(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const hasText = (node) => node.nodeType === 3 && node.textContent.trim();
const poor = new Set();
let seen = 0;
for (const element of document.querySelectorAll("body *")) {
  if (element.closest("script") || ![...element.childNodes].some(hasText)) continue;
  if (!element.checkVisibility({ visibilityProperty: true })) continue;
  seen += 1;
  const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio >= 4.5) continue;
  poor.add(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${element.textContent}`);
}
return [seen, [...poor]];
