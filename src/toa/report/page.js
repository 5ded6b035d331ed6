"use strict";
// Shared by all pages with data: nodes, sortable tables and curves. It creates nodes and text, never markup, so that no
// name or record can inject markup.

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function shape(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

// a page that was not loaded from a safe address has no clipboard
const copyButton = (words) => navigator.clipboard && make("button", { type: "button", onclick: async (event) => {
  await navigator.clipboard.writeText(words);
  event.target.textContent = "Copied";
} }, "Copy");

// ---- sortable tables -------------------------------------------------------------------------------------------

// a column: {title, key(row) to sort by, cell(row) to show, and classes: right, wrap}
const classes = (column) => ["right", "wrap"].filter((name) => column[name]).join(" ") || null;

function sortable(place, columns, rows, caption) {
  const state = { column: -1, down: false };
  const body = make("tbody");
  const heads = columns.map((column, index) =>
    make("th", { scope: "col", class: classes(column), "aria-sort": "none" },
      make("button", { type: "button", onclick: () => sort(index) }, column.title)));
  const table = make("table", { "aria-label": caption }, make("thead", {}, make("tr", {}, ...heads)), body);

  function compare(left, right) {
    // missing values come last in both directions
    if (left === null || right === null) return (left === null) - (right === null);
    const order = typeof left === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
    return state.down ? -order : order;
  }

  function sort(index) {
    state.down = state.column === index && !state.down;
    state.column = index;
    heads.forEach((head, place) =>
      head.setAttribute("aria-sort", place !== index ? "none" : state.down ? "descending" : "ascending"));
    draw();
  }

  function draw() {
    const shown = [...rows];
    if (state.column >= 0) {
      const key = columns[state.column].key;
      shown.sort((a, b) => compare(key(a), key(b)));
    }
    body.replaceChildren(...shown.map((row) =>
      make("tr", {}, ...columns.map((column) =>
        make("td", { class: classes(column), "data-title": column.title }, column.cell(row))))));
  }

  draw();
  place.replaceChildren(table);
  // a scrolling region needs a name and keyboard focus
  for (const [name, value] of [["tabindex", 0], ["role", "region"], ["aria-label", caption]]) place.setAttribute(name, value);
  return { show(chosen) { rows = chosen; draw(); } };
}

const text = (title, key, more = {}) => ({ title, key: (row) => row[key], cell: (row) => row[key] ?? "", ...more });
const number = (title, key, digits, more = {}) => ({
  title, right: true, key: (row) => row[key],
  cell: (row) => (row[key] === null || row[key] === undefined ? "-" : digits === null ? String(row[key]) : row[key].toFixed(digits)),
  ...more,
});

// a table of strings, sorted as numbers where they begin with one; the first columns are aligned left
function plain(place, [head, ...body], caption, left = 1) {
  const key = (cell) => (cell === "" || cell === "-" ? null : Number.isNaN(parseFloat(cell)) ? cell : parseFloat(cell));
  sortable(place, head.map((title, i) => ({
    title, right: i >= left, key: (row) => (i < left ? row[i] : key(row[i])), cell: (row) => row[i],
  })), body, caption);
  return place;
}

// ---- curves -----------------------------------------------------------------------------------------------------

function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

const short = (value) => String(Number(value.toPrecision(4)));

// series: [{name, points: [[x, y], …], color: 0 … 3, dashed}]
function curves(series, { title, across, up, zero = false }) {
  const [width, height, left, right, top, bottom] = [640, 300, 62, 12, 14, 42];
  const points = series.flatMap((one) => one.points);
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [zero ? Math.min(0, ...ys) : Math.min(...ys), Math.max(...ys)];
  if (y1 === y0) y1 = y0 + (Math.abs(y0) || 1);
  const px = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const image = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const y of ticks(y0, y1)) {
    image.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }));
    image.append(shape("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(x0, x1)) {
    image.append(shape("text", { x: px(x), y: height - bottom + 16, "text-anchor": "middle" }, short(x)));
  }
  image.append(shape("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, across));
  image.append(shape("text", { x: left, y: 10 }, up));
  for (const one of series) {
    const style = `stroke: var(--series-${one.color % 4})`;
    const path = one.points.map((p) => `${px(p[0]).toFixed(1)},${py(p[1]).toFixed(1)}`).join(" ");
    image.append(shape("polyline", { class: "curve", points: path, style, "stroke-dasharray": one.dashed ? "5 4" : "none" }));
    if (one.points.length === 1) {
      const [x, y] = one.points[0];
      image.append(shape("circle", { cx: px(x), cy: py(y), r: 3, style: `fill: var(--series-${one.color % 4})` }));
    }
  }
  return image;
}

// names of the solid curves; `words` explains the dashed ones
function legend(series, words = "") {
  const names = series.filter((one) => !one.dashed).map((one) =>
    make("span", { style: `color: var(--series-${one.color % 4}); padding-right: 1em` }, `— ${one.name}`));
  return make("figcaption", {}, ...names, words);
}
