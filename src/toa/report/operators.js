// ---- operators --------------------------------------------------------------------------------------------------

// from blue (negative) over the background to red (positive); position in -1 … 1
function heat(position, dark) {
  const strength = Math.min(1, Math.abs(position)) ** 0.7;
  const middle = dark ? [30, 35, 41] : [253, 253, 251];
  const end = position < 0 ? (dark ? [98, 160, 255] : [22, 70, 160]) : (dark ? [255, 120, 96] : [176, 28, 28]);
  return middle.map((from, channel) => Math.round(from + (end[channel] - from) * strength));
}

function offsets(picture) {
  const raw = atob(picture.values);
  return Float64Array.from(raw, (letter) => ((letter.charCodeAt(0) << 24) >> 24) * picture.scale / 127);
}

// gain of one row per frequency: the absolute value of its discrete Fourier transform
function rowGain(row) {
  const n = row.length;
  return Array.from({ length: Math.floor(n / 2) + 1 }, (_, f) => {
    let [re, im] = [0, 0];
    row.forEach((weight, t) => {
      re += weight * Math.cos((2 * Math.PI * f * t) / n);
      im -= weight * Math.sin((2 * Math.PI * f * t) / n);
    });
    return Math.hypot(re, im);
  });
}

function choice(title, id, names, onchange) {
  const select = make("select", { id, onchange: () => onchange(Number(select.value)) },
    ...names.map((name, index) => make("option", { value: index }, name)));
  return make("label", {}, title, select);
}

// models: [{label, pictures}]; about(model) is what stands below the frequency response
function showOperators(place, models, about) {
  const view = make("div");
  const parts = make("span");
  let model = models[0];
  let withIdentity = false;
  const shown = { picture: model.pictures[0] };
  const pick = (index) => { shown.picture = model.pictures[index]; draw(); };
  const pickModel = (index) => {
    model = models[index];
    const names = model.pictures.map((one) => `layer ${one.layer}, ${one.part}, head ${one.head}`);
    parts.replaceChildren(choice("Operator", "operator-part", names, pick));
    pick(0);
  };
  const draw = () => view.replaceChildren(operatorView(model, shown.picture, withIdentity, about));
  const form = make("form", { id: "operator-form", class: "choices", "aria-label": "Choose an operator", onsubmit: (event) => event.preventDefault() },
    models.length > 1 ? choice("Model", "operator-model", models.map((one) => one.label), pickModel) : null, parts,
    choice("Shown", "operator-shown", ["M = S − I", "S = I + M"], (index) => { withIdentity = index === 1; draw(); }));
  place.replaceChildren(form, view);
  pickModel(0);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

function operatorView(model, picture, withIdentity, about) {
  const side = Math.ceil(picture.tokens / picture.block);
  const values = offsets(picture);
  if (withIdentity) for (let i = 0; i < side; i++) values[i * side + i] += 1;
  const most = values.reduce((high, value) => Math.max(high, Math.abs(value)), 0) || 1;
  const label = `Operator of ${model.label}, layer ${picture.layer}, ${picture.part}, head ${picture.head}, ${picture.tokens} tokens`;
  const readout = make("p", { id: "readout", role: "status", "aria-live": "polite" }, `${side} rows and columns`);
  const canvas = make("canvas", { id: "heat", width: side, height: side, tabindex: 0, role: "img", "aria-label": label });
  const response = make("figure", { id: "response" });
  const at = { row: 0, column: 0, kept: -1 };
  const span = (index) => (picture.block === 1 ? String(index + 1) : `${index * picture.block + 1} to ${Math.min(picture.tokens, (index + 1) * picture.block)}`);

  function paint() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    values.forEach((value, index) => image.data.set([...heat(value / most, dark), 255], index * 4));
    context.putImageData(image, 0, 0);
  }

  function tell(row, column) {
    [at.row, at.column] = [Math.max(0, Math.min(side - 1, row)), Math.max(0, Math.min(side - 1, column))];
    readout.textContent = `output ${span(at.row)}, input ${span(at.column)}: ${short(values[at.row * side + at.column])}`;
  }

  function keep(row) {
    at.kept = row;
    const series = [{ name: "S, all rows", color: 0, points: picture.response.map((gain, f) => [f, gain]) }];
    if (row >= 0 && picture.block === 1) {
      const weights = Array.from(values.slice(row * side, (row + 1) * side));
      if (!withIdentity) weights[row] += 1;
      series.push({ name: `row ${row + 1}`, color: 1, points: rowGain(weights).map((gain, f) => [f, gain]) });
    }
    const chart = curves(series, { title: "Frequency response", across: `periods in ${picture.tokens} tokens`, up: "gain", zero: true });
    response.replaceChildren(chart, legend(series));
  }

  const where = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor(((event.clientY - box.top) / box.height) * side), Math.floor(((event.clientX - box.left) / box.width) * side)];
  };
  canvas.addEventListener("pointermove", (event) => tell(...where(event)));
  canvas.addEventListener("click", (event) => { tell(...where(event)); keep(at.row); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) tell(at.row + step[0], at.column + step[1]);
    else if (event.key === "Enter") keep(at.row);
    else return;
    event.preventDefault();
  });
  paint();
  keep(-1);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = [-1, -0.5, 0, 0.5, 1].map((position) => `rgb(${heat(position, dark).join(" ")})`).join(", ");
  const block = picture.block === 1 ? "" : ` Each point is the entry with the largest absolute value in a block of ${picture.block} x ${picture.block}.`;
  return make("div", { class: "operator" },
    make("figure", {}, canvas, make("div", { class: "bar", style: `background: linear-gradient(to right, ${stops})` }),
      make("div", { class: "ends" }, make("span", {}, short(-most)), make("span", {}, "0"), make("span", {}, short(most))),
      readout, make("figcaption", {}, `Rows are outputs, columns inputs; ${picture.tokens} tokens.${block}`)),
    make("div", {}, make("h3", {}, "Frequency response"), response,
      make("figcaption", {}, "Norm of S applied to a wave of norm 1; gain 1 means unchanged."),
      about(model)));
}
