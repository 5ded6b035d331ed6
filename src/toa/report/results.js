// Draws the results of an estimator: {title, lead, sections: [{title, parts: [{kind, …}]}]}.

// ---- charts -----------------------------------------------------------------------------------------------------

const [SECOND, DAY] = [1000, 86400000];
const pad = (value, size = 2) => String(value).padStart(size, "0");

// dates are shown as written in the data: their numbers are milliseconds of that wall clock
function stamp(value, step = 0) {
  const date = new Date(value);
  const day = `${pad(date.getUTCFullYear(), 4)}-${pad(date.getUTCMonth() + 1)}-${pad(date.getUTCDate())}`;
  if (step >= 360 * DAY) return day.slice(0, 4);
  if (step >= 28 * DAY) return day.slice(0, 7);
  const time = `${pad(date.getUTCHours())}:${pad(date.getUTCMinutes())}`;
  const seconds = date.getUTCSeconds() ? `:${pad(date.getUTCSeconds())}` : "";
  if (step >= DAY) return day;
  if (step) return value % DAY === 0 ? day : time + seconds;
  return value % DAY === 0 ? day : `${day} ${time}${seconds}`;
}

const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600].map((size) => size * SECOND);

function dateTicks(low, high, most) {
  const rough = (high - low) / most;
  const found = [];
  const step = STEPS.find((size) => size >= rough);
  if (step) {
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push([at, stamp(at, step)]);
    return found;
  }
  const months = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200].find((count) => count * 30 * DAY >= rough) || 6000;
  const first = new Date(low);
  const start = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
  for (let month = start; ; month += months) {
    const at = Date.UTC(Math.floor(month / 12), month % 12, 1);
    if (at > high) return found;
    if (at >= low) found.push([at, stamp(at, months * 30 * DAY)]);
  }
}

// index of the first entry that is at least value
function place(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// entries of a line between two indices; of many the lowest and the highest of each interval
function trace({ start, y }, from, to, most) {
  const [first, last] = [Math.max(start, from), Math.min(start + y.length - 1, to)];
  const size = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let at = first; at <= last; at += size) {
    let [low, high] = [at, at];
    for (let other = at; other < at + size && other <= last; other++) {
      if (y[other - start] < y[low - start]) low = other;
      if (y[other - start] > y[high - start]) high = other;
    }
    for (const index of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) found.push([index, y[index - start]]);
  }
  return found;
}

const COLORS = ["var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--faint)"];
const DASHES = ["6 3", "2 3", "9 3 2 3", "1 2"];

// how each line is drawn; baselines differ by colour and dashes
function lineStyles(series) {
  const styles = {};
  let baselines = 0;
  for (const one of series) for (const panel of one.panels) for (const { name, kind } of panel.lines) {
    if (name in styles) continue;
    if (kind === "baseline") {
      styles[name] = { color: COLORS[baselines % 4], dash: DASHES[baselines % 4], width: 1.4 };
      baselines++;
    } else styles[name] = { past: { color: "var(--ink)", width: 1 }, forecast: { color: "var(--series-0)", width: 2 }, quantile: { color: "var(--series-0)", dash: "2 2", width: 1 } }[kind];
  }
  return styles;
}

function chart(spec) {
  const entries = (pick) => [...new Set(spec.series.flatMap((one) => one.panels.flatMap(pick)))];
  const panels = entries((panel) => [panel.name]);
  const lines = entries((panel) => [...panel.lines.map((line) => line.name), ...(panel.band ? [panel.band.name] : [])]);
  const styles = lineStyles(spec.series);
  // a column may have the name of a line
  const [off, offPanels] = [new Set(spec.off.lines), new Set(spec.off.panels)];
  const view = { at: 0, low: 0, high: 1 };
  const drawn = make("div", { class: "panels" });
  const name = (value) => (spec.dates ? stamp(value) : String(value));

  function limit(low, high) {
    const x = spec.series[view.at].x;
    const [least, most] = [x[0], x[x.length - 1]];
    [view.low, view.high] = [Math.max(least, low), Math.min(most, high)];
    if (!(view.high > view.low)) [view.low, view.high] = [least, most > least ? most : least + 1];
    draw();
  }

  function choose(index, low = null, high = null) {
    view.at = index;
    const { x, view: range } = spec.series[index];
    if (select) select.value = String(index);
    if (low === null) limit(...(range ? [x[range[0]], x[range[1]]] : [x[0], x[x.length - 1]]));
    else limit(low, high);
  }

  function zoom(factor, shift = 0) {
    const half = (view.high - view.low) / 2;
    const middle = view.low + half + shift * half;
    limit(middle - half * factor, middle + half * factor);
  }

  const boxes = (title, values, hidden) => values.length < 2 ? null : make("fieldset", { class: "boxes" }, make("legend", {}, title),
    ...values.map((value) => {
      const box = make("input", { type: "checkbox", onchange: () => { hidden[box.checked ? "delete" : "add"](value); draw(); } });
      box.checked = !hidden.has(value);
      const style = hidden === off && styles[value];
      const swatch = style && make("span", { class: "swatch", style: `border-top: 3px ${style.dash ? "dashed" : "solid"} ${style.color}` });
      return make("label", { class: "box" }, box, swatch, value);
    }));
  const select = spec.series.length < 2 ? null : make("select", { onchange: () => choose(Number(select.value)) },
    ...spec.series.map((one, index) => make("option", { value: index }, one.name)));
  const buttons = [["Zoom in", () => zoom(0.5)], ["Zoom out", () => zoom(2)], ["Earlier", () => zoom(1, -1)], ["Later", () => zoom(1, 1)],
    ["Show all", () => limit(-Infinity, Infinity)]];

  function draw() {
    const one = spec.series[view.at];
    const shown = one.panels.filter((panel) => !offPanels.has(panel.name));
    drawn.replaceChildren(...(shown.length ? shown : [null]).map((panel) => panel
      ? panelView({ panel, one, view, off, styles, name, limit, dates: spec.dates, across: Math.max(260, drawn.clientWidth || 800) })
      : make("p", { class: "note" }, "All columns are off.")));
  }

  // a higher readout must not draw again
  let wide = 0;
  new ResizeObserver(() => {
    if (drawn.clientWidth !== wide) draw();
    wide = drawn.clientWidth;
  }).observe(drawn);
  const node = make("div", { class: "chart" },
    make("form", { class: "choices", "aria-label": "Part of the series", onsubmit: (event) => event.preventDefault() },
      select && make("label", {}, "Series", select), ...buttons.map(([title, onclick]) => make("button", { type: "button", onclick }, title))),
    boxes("Columns", panels, offPanels), boxes("Lines", lines, off),
    make("p", { class: "note" }, "Drag across a chart to zoom; point at it, or use the arrow keys on it, to read values."), drawn);
  choose(0);
  return { node, choose };
}

function extent(panel, off, from, to) {
  let [low, high] = [Infinity, -Infinity];
  const add = (line) => {
    for (let index = Math.max(line.start, from); index <= Math.min(line.start + line.y.length - 1, to); index++) {
      const value = line.y[index - line.start];
      if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  };
  panel.lines.filter((line) => !off.has(line.name)).forEach(add);
  if (panel.band && !off.has(panel.band.name)) for (const y of [panel.band.lower, panel.band.upper]) add({ start: panel.band.start, y });
  if (panel.level) [low, high] = [Math.min(low, panel.level.value), Math.max(high, panel.level.value)];
  if (low > high) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - margin, high + margin];
}

function panelView({ panel, one, view, off, styles, name, limit, dates, across }) {
  const [height, left, right, top, bottom] = [across < 500 ? 190 : 230, 58, 10, 8, 24];
  const { x } = one;
  const [from, to] = [Math.max(0, place(x, view.low) - 1), Math.min(x.length - 1, place(x, view.high))];
  const [y0, y1] = extent(panel, off, from, to);
  const px = (value) => left + ((value - view.low) / (view.high - view.low)) * (across - left - right);
  const py = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
  const clip = `clip-${clips++}`;
  const image = shape("svg", { viewBox: `0 0 ${across} ${height}`, role: "img", tabindex: 0, "aria-label": `${one.name ? `${one.name}, ` : ""}${panel.name}` },
    shape("clipPath", { id: clip }, shape("rect", { x: left, y: 0, width: across - left - right, height })));
  const inside = shape("g", { "clip-path": `url(#${clip})` });
  for (const [low, high, title, kind] of panel.spans || []) {
    const wide = Math.max(2, px(high) - px(low));
    inside.append(shape("rect", { class: kind, x: px(low), y: top, width: wide, height: height - top - bottom }, shape("title", {}, title)));
  }
  for (const y of ticks(y0, y1)) {
    image.append(shape("line", { class: "grid", x1: left, x2: across - right, y1: py(y), y2: py(y) }));
    image.append(shape("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
  }
  const many = Math.max(2, Math.floor((across - left) / 100));
  const marks = dates ? dateTicks(view.low, view.high, many) : ticks(view.low, view.high).filter(Number.isInteger).map((at) => [at, String(at)]);
  for (const [at, words] of marks) image.append(shape("text", { class: "when", x: Math.min(px(at), across - right - 3.3 * words.length), y: height - 6, "text-anchor": "middle" }, words));
  const points = (line) => trace(line, from, to, (across - left) / 2).filter((point) => point[1] !== null).map(([index, y]) => `${px(x[index]).toFixed(1)},${py(y).toFixed(1)}`);
  const band = panel.band && !off.has(panel.band.name) ? panel.band : null;
  if (band) {
    const ends = [band.upper, band.lower].map((y) => points({ start: band.start, y }));
    inside.append(shape("polygon", { class: "band", points: [...ends[0], ...ends[1].reverse()].join(" ") }));
  }
  if (panel.level) inside.append(shape("line", { class: "level", x1: left, x2: across - right, y1: py(panel.level.value), y2: py(panel.level.value) }));
  const shown = panel.lines.filter((line) => !off.has(line.name));
  for (const line of shown) {
    const { color, dash, width } = styles[line.name];
    const places = points(line);
    inside.append(shape("polyline", { class: "curve", "data-name": line.name, points: places.join(" "), style: `stroke: ${color}; stroke-width: ${width}`, "stroke-dasharray": dash || "none" }));
    // one point makes no line
    if (places.length === 1) inside.append(shape("circle", { cx: places[0].split(",")[0], cy: places[0].split(",")[1], r: 3, style: `fill: ${color}` }));
  }
  const cursor = shape("line", { class: "cursor", y1: top, y2: height - bottom, x1: -9, x2: -9 });
  const chosen = shape("rect", { class: "chosen", y: top, height: height - top - bottom, x: -9, width: 0 });
  image.append(inside, cursor, chosen);
  const readout = make("p", { class: "readout", role: "status", "aria-live": "polite" });
  const at = { index: to, drag: null };

  function tell(index) {
    at.index = Math.max(from, Math.min(to, index));
    const inLine = ({ start, y }) => (at.index >= start && at.index < start + y.length ? y[at.index - start] : null);
    const words = shown.map((line) => [line.name, inLine(line)]).filter((pair) => pair[1] !== null).map(([title, y]) => `${title} ${short(y)}`);
    const ends = band ? [band.lower, band.upper].map((y) => inLine({ start: band.start, y })) : [null];
    if (ends[0] !== null) words.push(`${band.name} ${short(ends[0])} to ${short(ends[1])}`);
    const during = (panel.spans || []).filter(([low, high]) => x[at.index] >= low && x[at.index] <= high).map((span) => span[2]);
    readout.textContent = `${name(x[at.index])}: ${[...words, ...during].join("; ")}`;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(x[at.index]));
  }

  const value = (event) => {
    const box = image.getBoundingClientRect();
    const spot = ((event.clientX - box.left) / box.width) * across;
    return view.low + ((Math.max(left, Math.min(across - right, spot)) - left) / (across - left - right)) * (view.high - view.low);
  };
  image.addEventListener("pointerdown", (event) => { at.drag = value(event); image.setPointerCapture(event.pointerId); });
  image.addEventListener("pointermove", (event) => {
    const where = value(event);
    const after = place(x, where);
    tell(after > 0 && where - x[after - 1] < x[Math.min(after, x.length - 1)] - where ? after - 1 : after);
    if (at.drag === null) return;
    chosen.setAttribute("x", Math.min(px(at.drag), px(where)));
    chosen.setAttribute("width", Math.abs(px(at.drag) - px(where)));
  });
  image.addEventListener("pointerup", (event) => {
    const [low, high] = [at.drag, value(event)].sort((a, b) => a - b);
    at.drag = null;
    if (px(high) - px(low) > 8) limit(low, high);
  });
  image.addEventListener("pointercancel", () => { at.drag = null; chosen.setAttribute("width", 0); });
  image.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    tell(at.index + step);
    event.preventDefault();
  });
  return make("figure", {}, make("h3", {}, panel.name), image, readout);
}

let clips = 0;

// ---- cases ------------------------------------------------------------------------------------------------------

// cases: [[name, true class or null, predicted class, probability, index in the chart or null]]
function caseList({ names, cases, chart: spec, of }) {
  const known = cases.some((one) => one[1] !== null);
  const drawing = make("div");
  const title = make("h3");
  const list = make("div", { class: "scroll" });
  const open = (at) => {
    drawing.replaceChildren();
    if (at === null || at === undefined) return;
    const view = chart({ ...spec, series: [spec.series[at]] });
    drawing.append(make("h3", {}, `${of} ${spec.series[at].name}`), view.node);
  };
  const columns = [
    { title: of, key: (one) => one[0], cell: (one) => one[4] === null ? one[0] : make("button", { type: "button", onclick: () => open(one[4]) }, one[0]) },
    ...(known ? [{ title: "true", key: (one) => names[one[1]], cell: (one) => names[one[1]] }] : []),
    { title: "predicted", key: (one) => names[one[2]], cell: (one) => names[one[2]] },
    { title: "probability", right: true, key: (one) => one[3], cell: (one) => one[3].toFixed(3) },
  ];
  const table = sortable(list, columns, cases, "Cases");
  const show = (chosen, words) => {
    title.textContent = words;
    table.show(chosen);
    open(chosen.find((one) => one[4] !== null)?.[4]);
  };
  return { node: make("div", { class: "cases" }, title, list, drawing), show };
}

function matrix(part) {
  const { names, counts, cases } = part;
  const list = caseList(part);
  const most = Math.max(1, ...counts.flat());
  const number = (count) => `${count} ${count === 1 ? "case" : "cases"}`;
  const cell = (count, row, column) => {
    const words = `true ${names[row]}, predicted ${names[column]}: ${number(count)}`;
    const style = `background: color-mix(in srgb, var(--${row === column ? "good" : "bad"}) ${Math.round(60 * count / most)}%, var(--paper))`;
    const click = () => list.show(cases.filter((one) => one[1] === row && one[2] === column), words);
    return make("td", { style }, count ? make("button", { type: "button", "aria-label": words, onclick: click }, String(count)) : "");
  };
  const table = make("table", { "aria-label": "Confusion matrix" },
    make("thead", {}, make("tr", {}, make("th", {}, "true \u2193, predicted \u2192"), ...names.map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, ...counts.map((row, index) => make("tr", {}, make("th", { scope: "row" }, names[index]), ...row.map((count, column) => cell(count, index, column))))));
  const wrong = cases.filter((one) => one[1] !== one[2]);
  list.show(wrong.length ? wrong : cases, wrong.length ? `Wrong: ${number(wrong.length)}` : `All: ${number(cases.length)}, none wrong`);
  return make("div", {}, make("div", { class: "scroll matrix", tabindex: 0, role: "region", "aria-label": "Confusion matrix" }, table), list.node);
}

// ---- parts of the page ------------------------------------------------------------------------------------------

// a table whose first cells show a part of the chart above: jumps [[series, low, high] per row]
function linkedTable({ rows: [head, ...body], left = 1, caption, jumps }, charts) {
  const box = make("div", { class: "scroll" });
  if (!jumps) return plain(box, [head, ...body], caption, left);
  const show = ([series, low, high]) => {
    charts[0].choose(series, low, high);
    charts[0].node.scrollIntoView();
  };
  sortable(box, head.map((title, i) => ({
    title, right: i >= left, wrap: i === head.length - 1, key: (row) => (Number.isNaN(Number(row.cells[i])) ? row.cells[i] : Number(row.cells[i])),
    cell: (row) => (i || !row.jump ? row.cells[i] : make("button", { type: "button", onclick: () => show(row.jump) }, row.cells[i])),
  })), body.map((cells, index) => ({ cells, jump: jumps[index] })), caption);
  return box;
}

function bars({ rows }) {
  return make("div", { class: "bars" }, ...rows.flatMap(([title, share, words]) => [make("span", {}, title),
    make("span", { class: "track" }, make("span", { style: `width: ${(100 * share).toFixed(1)}%` })), make("span", {}, words)]));
}

function operatorPart({ models }) {
  const box = make("div", { id: "operator-view" });
  showOperators(box, models, () => null);
  return box;
}

const PARTS = {
  facts: ({ rows }) => make("dl", {}, ...rows.flatMap(([title, words]) => [make("dt", {}, title), make("dd", {}, words)])),
  text: ({ text }) => make("p", {}, text),
  list: ({ items }) => make("ul", {}, ...items.map((item) => make("li", {}, item))),
  code: ({ text }) => make("div", {}, make("pre", {}, make("code", { class: "command" }, text)), copyButton(text)),
  table: linkedTable,
  chart: (spec, charts) => { charts.push(chart(spec)); return charts[charts.length - 1].node; },
  cases: (part) => { const list = caseList(part); list.show(part.cases, `${part.cases.length} cases`); return list.node; },
  matrix, bars, operators: operatorPart,
};

unpack($("data").textContent).then((data) => {
  const charts = [];
  document.querySelector("h1").textContent = data.title;
  const links = data.sections.map(({ title }, index) => make("a", { href: `#part-${index}` }, title));
  document.querySelector("header").append(...data.lead.map((words) => make("p", {}, words)), make("nav", { "aria-label": "Parts of the page" }, ...links));
  for (const [index, { title, parts }] of data.sections.entries()) {
    const section = make("section", { id: `part-${index}`, "aria-labelledby": `h-${index}` }, make("h2", { id: `h-${index}` }, title));
    document.querySelector("main").append(section);
    section.append(...parts.map((part) => PARTS[part.kind](part, charts)));
  }
  document.body.dataset.ready = "yes";
});
