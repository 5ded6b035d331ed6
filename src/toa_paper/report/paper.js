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
    make("pre", {}, make("code", { class: "command" }, record.command)), copyButton(record.command),
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

function dots(line) {
  if (line.values.length < 2) return "";
  const values = line.values.map(([, value]) => value), published = line.published ? Number(line.published) : null;
  const all = published === null ? values : [...values, published], low = Math.min(...all), span = Math.max(...all) - low || 1;
  const place = (value) => (5 + 70 * (value - low) / span).toFixed(1);
  return shape("svg", { class: "dots", viewBox: "0 0 80 12", role: "img", "aria-label": `by seed: ${values.join(", ")}` },
    ...(published === null ? [] : [shape("line", { x1: place(published), x2: place(published), y1: 0, y2: 12, class: "level" })]),
    ...values.map((value) => shape("circle", { cx: place(value), cy: 6, r: 2.5 })));
}

const FILTERS = [["task", "Task"], ["table", "Table"], ["backbone", "Backbone"], ["dataset", "Data set"], ["attention", "Attention"], ["metric", "Metric"], ["protocol", "Protocol"], ["status", "Status"]];

function numbers(data) {
  const lines = data.lines.map((line, index) => ({ ...line, index }));
  const columns = [
    text("data", "data"), text("backbone", "backbone"), text("attention", "attention"), text("metric", "metric"),
    { title: "published", right: true, key: (line) => (line.published ? Number(line.published) : null), cell: (line) => line.published },
    { title: "ours", right: true, key: (line) => line.mean, cell: (line) => ours(line, line.index) },
    { title: "by seed", key: (line) => line.mean, cell: dots },
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

function operators(data) {
  const about = (model) => {
    const record = data.records[model.record];
    return record ? make("div", {}, learning([record]), describe(data, record, "")) : make("p", { class: "note" }, `config hash ${model.hash}; its record was not read`);
  };
  if (data.operators.length) showOperators($("operator-view"), data.operators, about);
  else $("operator-view").append(make("p", { class: "note" }, "There is no model and no operators.json beside the records."));
}

function follow(data) {
  const found = /^#number-(\d+)$/.exec(location.hash);
  if (found && data.lines[Number(found[1])]) showNumber(data, Number(found[1]));
  else if ($("detail").open) $("detail").close();
}

unpack($("data").textContent).then((data) => {
  $("found").replaceChildren(...Object.entries(data.found).flatMap(([title, lines]) => [make("h2", {}, title),
    make("ul", {}, ...lines.map((words) => make("li", {}, words)))]));
  $("headline").textContent = data.headline;
  if (data.regimes.length > 1) plain($("regimes-table"), data.regimes, "Gains by regime", 7);
  else $("regimes").hidden = true;
  plain($("summary-table"), data.summary, "Status of each table");
  if (data.recipes.length) {
    plain($("recipes-table"), data.recipes[0], "Recipes side by side", 3);
    plain($("ablation-table"), data.recipes[1], "SOR and operators under toa", 3);
  } else $("recipes").hidden = true;
  if (data.signed.length) plain($("signed-table"), data.signed, "Signed attentions", 2);
  else $("signed").hidden = true;
  ranksTable(data);
  contests(data);
  numbers(data);
  operators(data);
  $("skipped").replaceChildren(...data.skipped.map((words) => make("li", {}, words)));
  addEventListener("hashchange", () => follow(data));
  // closing a number resets the address, so that the same link opens it again
  $("detail").addEventListener("close", () => location.hash.startsWith("#number-") && history.replaceState(null, "", "#numbers"));
  follow(data);
  document.body.dataset.ready = "yes";
});
