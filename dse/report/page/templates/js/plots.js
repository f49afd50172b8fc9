// Plots. Every part calls `plot(id, traces, layoutExtra)` whenever its data change. The latest
// arguments are kept and drawn once the element comes into view, and again when the theme changes.
const plots = new Map();
// Where a finger drags, it scrolls the page and does not enlarge a plot.
const coarse = window.matchMedia("(pointer: coarse)");
const layout = (extra) => Object.assign({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
  margin: { l: 64, r: 16, t: 12, b: 46 }, showlegend: false, hovermode: "closest",
  hoverlabel: { bgcolor: themed("#ffffff", "#1c2127"), bordercolor: grey, font: { color: ink, size: 12 }, align: "left" },
}, coarse.matches ? { dragmode: false } : {}, extra);
const axis = (title, extra) => Object.assign({ title: { text: plain(title), standoff: 8 }, gridcolor: line, zerolinecolor: line,
  exponentformat: "none", separatethousands: true, fixedrange: coarse.matches }, extra);
// Plotly is unpacked and run when the first plot is to be drawn, after the tables are there.
function needPlotly() {
  if (window.Plotly) return;
  const script = document.createElement("script");
  script.textContent = unpack("plotly");
  document.head.append(script);
}
const recoloured = (value, key) => {
  if (typeof value === "string") return pairs.has(value) ? pairs.get(value)[dark ? 1 : 0] : value;
  if (value === null || typeof value !== "object" || ["x", "y", "z", "text", "customdata"].includes(key)) return value;
  if (Array.isArray(value)) return value.map((item) => recoloured(item, ""));
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, recoloured(item, name)]));
};
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const kept = plots.get(entry.target.id);
    kept.visible = entry.isIntersecting;
    if (kept.visible && kept.stale) render(entry.target.id);
  }
}, { rootMargin: "300px" });
function plot(id, traces, layoutExtra) {
  const element = byId(id);
  if (!element) return;
  if (!plots.has(id)) {
    const legend = document.createElement("div");
    legend.className = "legend";
    element.before(legend);
    plots.set(id, { visible: false, handlers: [], bound: 0, hidden: new Set(), legend });
    watcher.observe(element);
  }
  const kept = plots.get(id);
  Object.assign(kept, { traces, layoutExtra, stale: true });
  drawLegend(id);
  if (kept.visible) render(id);
}
const groupOf = (trace) => trace.legendgroup ?? trace.name;
// Draws at once.
function render(id, more) {
  needPlotly();
  const kept = plots.get(id);
  kept.stale = false;
  const traces = kept.traces.map((trace) => kept.hidden.has(groupOf(trace)) ? { ...trace, visible: false } : trace);
  Plotly.react(id, recoloured(traces), recoloured(layout({ ...kept.layoutExtra, ...more })), config);
  for (; kept.bound < kept.handlers.length; kept.bound++) byId(id).on(...kept.handlers[kept.bound]);
}
const narrow = (id) => byId(id).clientWidth < 560;
function redrawAll() {
  for (const [id, kept] of plots) {
    kept.stale = true;
    drawLegend(id);
    if (kept.visible) render(id);
  }
}
// Legends are text beside the plot, so they wrap like text and never lie on a mark; each entry is a
// button that hides its marks.
function drawLegend(id) {
  const kept = plots.get(id), listed = kept.traces.filter((trace) => trace.name && trace.showlegend !== false);
  kept.legend.hidden = listed.length < 2;
  kept.legend.replaceChildren(...(kept.legend.hidden ? [] : listed).map((trace) => {
    const button = document.createElement("button"), text = document.createElement("span"), group = groupOf(trace);
    button.type = "button";
    button.setAttribute("aria-pressed", String(!kept.hidden.has(group)));
    text.textContent = trace.name;
    button.append(swatch(trace), text);
    button.addEventListener("click", () => {
      if (!kept.hidden.delete(group)) kept.hidden.add(group);
      drawLegend(id);
      render(id);
    });
    return button;
  }));
}
// Corners of marks by their shape: how many, how deep every second one is, and the first one's angle.
const corners = { "square": [4, 1, 45], "diamond": [4, 1, 0], "triangle-up": [3, 1, 0], "star": [10, 0.45, 0], "hexagon": [6, 1, 30], "pentagon": [5, 1, 0] };
function swatch(trace) {
  const drawn = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const picture = drawn("svg", { viewBox: "-9 -7 18 14", width: 18, height: 14, "aria-hidden": "true" });
  const { marker = {}, mode = "markers" } = trace, shape = marker.symbol ?? "circle";
  const colour = recoloured(typeof marker.color === "string" ? marker.color : trace.line?.color ?? trace.error_y?.color ?? ink);
  if (trace.type === "bar") picture.append(drawn("rect", { x: -6, y: -6, width: 12, height: 12, rx: 2, fill: colour }));
  if (mode.includes("lines")) picture.append(drawn("path", { d: "M-9 0H9", stroke: recoloured(trace.line?.color ?? colour), "stroke-width": 1.6, "stroke-dasharray": trace.line?.dash ? "2 2" : "none" }));
  if (trace.type === "bar" || !mode.includes("markers")) return picture;
  if (trace.error_y) picture.append(drawn("path", { d: "M0 -6V6M-3 -6H3M-3 6H3", stroke: colour, "stroke-width": 1.4 }));
  else if (corners[shape]) {
    const [count, depth, turn] = corners[shape];
    const places = Array.from({ length: count }, (_, i) => [i % 2 ? 6 * depth : 6, (turn + 360 * i / count) * Math.PI / 180]);
    picture.append(drawn("polygon", { points: places.map(([far, angle]) => `${far * Math.sin(angle)},${-far * Math.cos(angle)}`).join(" "), fill: colour }));
  } else if (shape === "circle" || shape === "circle-open") {
    picture.append(drawn("circle", { r: 5, fill: shape === "circle" ? colour : "none", stroke: colour, "stroke-width": 1.6 }));
  } else picture.append(drawn("path", { d: shape === "cross" ? "M0 -6V6M-6 0H6" : "M-5 -5L5 5M-5 5L5 -5", stroke: colour, "stroke-width": shape === "x-thin-open" ? 1.4 : 4 }));
  return picture;
}
// Handlers of Plotly's own events, such as "plotly_click"; call it after the first `plot`.
function onPlot(id, event, handler) {
  plots.get(id).handlers.push([event, handler]);
}
// A sentence under a plot that says in words what it shows; assistive technology reads it with the plot.
// What only a screen can do is said in `advice`.
function describe(id, sentence, advice = "") {
  let words = byId(`${id}-words`);
  if (!words) {
    words = document.createElement("p");
    words.id = `${id}-words`;
    words.className = "hint words";
    byId(id).after(words);
    byId(id).setAttribute("aria-describedby", words.id);
  }
  const more = document.createElement("span");
  more.className = "on-screen";
  more.textContent = advice && ` ${advice}`;
  words.replaceChildren(sentence, more);
}
// The data of a plot as a table that opens under it. `rows` is a list of lists of numbers or texts, or
// a function that returns one; the table is filled when it is opened.
function asTable(id, headers, rows) {
  let box = byId(`${id}-table`);
  if (!box) {
    box = document.createElement("details");
    box.id = `${id}-table`;
    box.className = "as-table";
    const summary = document.createElement("summary");
    summary.textContent = "Data of the plot as a table";
    box.append(summary);
    (byId(`${id}-words`) ?? byId(id)).after(box);
    box.addEventListener("toggle", () => box.fill());
  }
  box.fill = () => {
    if (!box.open) return;
    const scroll = document.createElement("div"), table = document.createElement("table");
    scroll.className = "scroll";
    scroll.append(table);
    const list = typeof rows === "function" ? rows() : rows;
    const numeric = headers.map((_, i) => list.some((row) => typeof row[i] === "number"));
    const head = table.createTHead().insertRow();
    headers.forEach((title, i) => {
      const th = document.createElement("th");
      th.scope = "col";
      th.textContent = title;
      if (numeric[i]) th.className = "n";
      head.append(th);
    });
    const body = table.createTBody();
    for (const values of list) {
      const row = body.insertRow();
      values.forEach((value, i) => cell(row, value === null || value === undefined ? "–" :
        typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 }) : value, numeric[i]));
    }
    box.querySelector(".scroll")?.remove();
    box.append(scroll);
  };
  box.fill();
}
