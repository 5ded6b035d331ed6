"use strict";
// Draws the report from its data. It creates nodes and text, never markup, so that no record can inject markup.

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

// ---- a number and its records -----------------------------------------------------------------------------------

function showNumber(data, index) {
  const line = data.lines[index];
  const records = line.records.map((place) => data.records[place]);
  $("detail-title").textContent = [line.data, line.backbone, line.attention, line.metric].filter(Boolean).join(", ");
  const facts = make("dl");
  const add = (name, value) => value && facts.append(make("dt", {}, name), make("dd", {}, value));
  add("table", line.table);
  add("protocol", line.protocol);
  add("published", line.published);
  add("ours", line.text);
  add("difference", line.difference === null ? "" : signed(line.difference, line.digits));
  add("by seed", line.values.map(([seed, value]) => `${seed === null ? "all" : seed}: ${value}`).join(", "));
  add("status", line.status === "measured" ? "" : `${line.status}: ${line.reason}`);
  const body = [facts];
  const curved = learning(records);
  if (curved) body.push(curved);
  body.push(...records.map((record) => describe(data, record, line.read)));
  $("detail-body").replaceChildren(...body);
  if (!$("detail").open) $("detail").showModal();
  $("detail").scrollTop = 0;
}

function learning(records) {
  const trained = records.filter((record) => record.history.length).slice(0, 8);
  const series = trained.flatMap((record, color) => ["train", "validation"].map((part) => ({
    name: record.label, color, dashed: part === "train",
    points: record.history.map((entry, epoch) => [epoch + 1, entry[part]]).filter((point) => point[1] !== undefined && point[1] !== null),
  }))).filter((one) => one.points.length);
  if (!series.length) return null;
  const chart = curves(series, { title: "Learning curves", across: "epoch", up: "loss" });
  return make("figure", { class: "learning" }, chart, legend(series, "Solid: validation; dashed: training."));
}

function describe(data, record, metric) {
  const href = encodeURI(data.files[record.file]);
  const copy = navigator.clipboard && make("button", { type: "button", onclick: async (event) => {
    await navigator.clipboard.writeText(record.command);
    event.target.textContent = "Copied";
  } }, "Copy");
  const facts = make("dl");
  const add = (name, value) => value !== null && value !== undefined && value !== "" && facts.append(make("dt", {}, name), make("dd", {}, value));
  add("value", metric in record.metrics ? `${metric} = ${record.metrics[metric]}` : "");
  add("record", make("span", {}, make("a", { href }, data.files[record.file]), record.line ? `, line ${record.line}` : ""));
  add("config hash", record.hash);
  add("data", record.checksum);
  add("device", record.device);
  add("commit", record.commit);
  add("time", record.seconds === null ? "" : `${record.seconds} s`);
  add("best epoch", record.best_epoch);
  add("operators", record.operators);
  const others = Object.entries(record.metrics).map(([name, value]) => `${name} ${value}`).join(", ");
  return make("section", { class: "record", "data-hash": record.hash }, make("h3", {}, record.label), facts,
    make("pre", {}, make("code", { class: "command" }, record.command)), copy,
    make("details", {}, make("summary", {}, "All metrics"), make("p", {}, others)));
}

// ---- parts of the page ------------------------------------------------------------------------------------------

function signed(value, digits) {
  const shown = value.toFixed(digits);
  return Number(shown) === 0 ? shown.replace("-", "") : value > 0 ? `+${shown}` : shown;
}

function difference(line) {
  if (line.difference === null) return "";
  const gain = line.higher ? line.difference : -line.difference;
  const kind = Math.abs(gain) < 0.5 * 10 ** (1 - line.digits) ? "" : gain > 0 ? "better" : "worse";
  return make("span", { class: kind || null }, signed(line.difference, line.digits));
}

function ours(line, index) {
  if (line.text) return make("a", { href: `#number-${index}`, class: "number" }, line.text);
  return make("a", { href: `#number-${index}`, class: "faint" }, line.status);
}

const FILTERS = [["task", "Task"], ["table", "Table"], ["backbone", "Backbone"], ["dataset", "Data set"], ["attention", "Attention"], ["metric", "Metric"], ["protocol", "Protocol"], ["status", "Status"]];

function numbers(data) {
  const lines = data.lines.map((line, index) => ({ ...line, index }));
  const columns = [
    text("data", "data"), text("backbone", "backbone"), text("attention", "attention"), text("metric", "metric"),
    { title: "published", right: true, key: (line) => (line.published ? Number(line.published) : null), cell: (line) => line.published },
    { title: "ours", right: true, key: (line) => line.mean, cell: (line) => ours(line, line.index) },
    { title: "difference", right: true, key: (line) => line.difference, cell: difference },
    { title: "M = 0", right: true, key: (line) => line.without_operators, cell: (line) =>
      (line.without_operators === null ? "" : `${signed(line.without_operators, 1)} %`) },
    number("seeds", "seeds", null), text("protocol", "protocol"), text("table", "table"), text("reason", "reason", { wrap: true }),
  ];
  const table = sortable($("numbers-table"), columns, lines, "Every number");
  const chosen = {};
  for (const [key, title] of FILTERS) {
    const values = [...new Set(lines.map((line) => line[key]))].filter((value) => value !== "");
    const select = make("select", { id: `filter-${key}`, onchange: refresh }, make("option", { value: "" }, "all"),
      ...values.map((value) => make("option", { value }, value)));
    chosen[key] = select;
    $("filters").append(make("label", {}, title, select));
  }
  $("filters").append(make("button", { type: "reset", onclick: () => setTimeout(refresh) }, "Show all"));
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  if (lines.some((line) => line.status === "measured")) chosen.status.value = "measured";

  function refresh() {
    const kept = lines.filter((line) => FILTERS.every(([key]) => !chosen[key].value || line[key] === chosen[key].value));
    table.show(kept);
    const [shown, all, extra] = [kept, lines, lines.filter((line) => line.extra)].map((one) => one.length.toLocaleString("en"));
    $("count").textContent = `${shown} of ${all} numbers${extra === "0" ? "" : `; ${extra} of them are further measurements of a published number, under another protocol or other rules`}`;
  }
  refresh();
}

function ranksTable(data) {
  const columns = [
    text("table", "table"), text("backbone", "backbone"), text("attention", "variant"),
    { title: "over", right: true, key: (row) => row.shared, cell: (row) => `${row.shared} of ${row.blocks}` },
    number("rank, ours", "our_rank", 2), number("rank, paper", "same_rank", 2),
    number("top-1, ours", "our_top1", null), number("top-1, paper", "same_top1", null),
    number("paper over all: rank", "published_rank", 2), number("top-1", "published_top1", null),
  ];
  sortable($("ranks-table"), columns, data.ranks, "Average ranks and first places");
}

function contests(data) {
  const parts = data.contests.map((contest) => make("section", { class: "contest" }, make("h3", {}, contest.title),
    contest.table.length ? plain(make("div", { class: "scroll" }), contest.table, contest.title) : null,
    contest.diagram ? make("img", { class: "diagram", alt: `Critical-difference diagram: ${contest.title}`, src: `data:image/svg+xml;base64,${contest.diagram}` }) : null,
    make("p", { class: "note" }, contest.notes.join(" "))));
  $("contests").replaceChildren(...(parts.length ? parts : [make("p", { class: "note" }, "Nothing measured yet can be tested.")]));
}

function follow(data) {
  const found = /^#number-(\d+)$/.exec(location.hash);
  if (found && data.lines[Number(found[1])]) showNumber(data, Number(found[1]));
  else if ($("detail").open) $("detail").close();
}

unpack($("data").textContent).then((data) => {
  $("headline").textContent = data.headline;
  plain($("summary-table"), data.summary, "Status of each table");
  $("gains").replaceChildren(...data.gains.map((words) => make("li", {}, words)));
  if (data.recipes.length) {
    plain($("recipes-table"), data.recipes[0], "Recipes side by side", 2);
    plain($("ablation-table"), data.recipes[1], "SOR and operators under toa", 3);
  } else $("recipes").hidden = true;
  ranksTable(data);
  contests(data);
  numbers(data);
  showOperators(data);
  $("skipped").replaceChildren(...data.skipped.map((words) => make("li", {}, words)));
  addEventListener("hashchange", () => follow(data));
  // closing a number resets the address, so that the same link opens it again
  $("detail").addEventListener("close", () => location.hash.startsWith("#number-") && history.replaceState(null, "", "#numbers"));
  follow(data);
  document.body.dataset.ready = "yes";
});
