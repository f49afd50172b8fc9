// What all parts of the page share: the data, colours, numbers and labels.
if (!window.DecompressionStream) {
  document.getElementById("too-old").hidden = false;
  return;
}
// What a reader has chosen lies behind the # of the address, so that a link or a reload keeps it.
let chosen = readAddress();
function readAddress() {
  const text = location.hash.slice(1);
  return new URLSearchParams(text.includes("=") ? text : "");
}
const recall = (key) => chosen.get(key) ?? "";
function remember(key, value) {
  if (recall(key) === String(value)) return;
  if (value === "") chosen.delete(key);
  else chosen.set(key, String(value));
  // Some viewers forbid to change the address; the page works without.
  try { history.replaceState(null, "", `#${chosen}`); } catch { /* not kept */ }
}
// Light, dark, or as the system has it.
const night = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => recall("theme") === "dark" || (recall("theme") !== "light" && night.matches);
function dress() {
  const theme = recall("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
dress();
// Data and Plotly lie in the page as base64 of gzip; unpacking asks nobody for anything.
function unpack(id) {
  const packed = document.getElementById(id).textContent;
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(packed) : Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const data = JSON.parse(await unpack("payload"));
// Trials come as columns: lists, words with codes, or parts of tuples of which some are empty.
function listOf(column) {
  if (Array.isArray(column)) return column;
  if (column.codes) return column.codes.map((code) => column.words[code]);
  const parts = column.parts.map(listOf), empty = new Set(column.empty);
  return parts[0].map((_, row) => empty.has(row) ? [] : parts.map((part) => part[row]));
}
const fields = Object.entries(data.trials.columns).map(([name, column]) => [name, listOf(column)]);
data.trials = Array.from({ length: data.trials.count }, (_, row) => Object.fromEntries(fields.map(([name, list]) => [name, list[row]])));
// Dark or light: `dark` is what is shown now. A colour that differs between the two is asked for
// with both values; a kept plot is translated when the theme changes.
let dark = isDark();
const pairs = new Map();
function themed(inLight, inDark) {
  pairs.set(inLight, [inLight, inDark]).set(inDark, [inLight, inDark]);
  return dark ? inDark : inLight;
}
const ink = themed("#1a1d21", "#e7eaee"), line = themed("#d9dee4", "#343b44");
// Okabe-Ito colours: told apart by colour-blind readers; shapes differ as well.
const palette = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"];
const shapes = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "pentagon"];
const partColours = { "Compute": "#0072b2", "Exposed communication": "#e69f00", "Host": "#999999", "Idle": themed("#e3e7ec", "#3a424c") };
const purposes = ["#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#d55e00"];
const config = { responsive: true, displayModeBar: false };
const details = new Map(data.details.map((detail) => [detail.number, detail]));
// What draws again when another candidate is chosen; each takes its details.
const onChoose = [];
let current = data.front.recommended ?? (data.details.length ? data.details[0].number : null);
const front = data.trials.filter((trial) => trial.front)
  .sort((a, b) => (a.values[0] - b.values[0]) * (data.axes[0].maximize ? -1 : 1));
// The step as captured, for the table of the front and the plot; only studies of a trace have it.
const baseline = data.baseline && { number: -1, status: "as captured", front: false, values: data.baseline, speedup: 1,
  parameters: data.parameters.map(() => "–"), reason: "" };
const label = (number) => number < 0 ? "as captured" : `#${number}`;
const byId = (id) => document.getElementById(id);
// Plotly reads a few tags in labels, so text from files is escaped for it.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const show = (axis, value) => value === null || value === undefined ? "–" :
  value.toLocaleString("en-US", { minimumFractionDigits: axis.digits, maximumFractionDigits: axis.digits });
const layout = (extra) => Object.assign({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
  margin: { l: 64, r: 16, t: 12, b: 48 }, legend: { orientation: "h", y: 1.12 }, hovermode: "closest",
  hoverlabel: { bgcolor: themed("#ffffff", "#1c2127"), bordercolor: themed("#8a939d", "#8a939d"), font: { color: ink, size: 12 }, align: "left" },
}, extra);
const axis = (title, extra) => Object.assign({ title: { text: plain(title) }, gridcolor: line, zerolinecolor: line }, extra);

// A logarithmic axis whose marks are written out: 1, 2, 5, 10, 20, 50 …
function logTicks(low, high) {
  const marks = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of [1, 2, 5]) marks.push(Number((digit * 10 ** power).toPrecision(1)));
  }
  return { type: "log", tickvals: marks, ticktext: marks.map((mark) => mark.toLocaleString("en-US", { maximumSignificantDigits: 3 })) };
}
// Parameters that differ between trials; the others need no column.
const varying = (trials) => data.parameters.map((_, i) => i).filter((i) => new Set(trials.map((trial) => trial.parameters[i])).size > 1);

function cell(row, text, numeric, wide) {
  const td = document.createElement("td");
  td.textContent = text;
  if (numeric) td.className = "n";
  if (wide && text) {
    td.className = "wide";
    td.title = text;
  }
  row.appendChild(td);
}

// Plots. Every part calls `plot(id, traces, layoutExtra)` whenever its data change. The latest
// arguments are kept and drawn once the element comes into view, and again when the theme changes.
const plots = new Map();
let plotlyCode = null;
// Plotly is unpacked and run when the first plot is to be drawn, after the tables are there.
function plotlyReady() {
  plotlyCode ??= unpack("plotly").then((code) => {
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
  });
  return plotlyCode;
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
    if (!kept) continue;
    kept.visible = entry.isIntersecting;
    if (kept.visible && kept.stale) drawPlot(entry.target.id);
  }
}, { rootMargin: "300px" });
function plot(id, traces, layoutExtra) {
  const element = byId(id);
  if (!element) return;
  if (!plots.has(id)) {
    plots.set(id, { visible: false, handlers: [], bound: 0, count: 0 });
    watcher.observe(element);
  }
  const kept = plots.get(id);
  Object.assign(kept, { traces, layoutExtra, stale: true });
  if (kept.visible) drawPlot(id);
}
// Draws now, or as soon as Plotly is unpacked; a later call for the same plot wins.
function drawPlot(id) {
  const kept = plots.get(id), turn = ++kept.count;
  kept.stale = false;
  kept.drawn = plotlyReady().then(() => turn === kept.count ? render(id) : kept.drawn);
  return kept.drawn;
}
// Where there is little room, the legend goes below the plot.
const narrow = (id) => byId(id).clientWidth < 560;
function below(traces, extra) {
  const listed = extra.showlegend === false ? 0 : traces.filter((trace) => trace.name && trace.showlegend !== false).length;
  if (!listed) return {};
  return { legend: { orientation: "h", x: 0, yref: "container", y: 0, yanchor: "bottom", font: { size: 11 } },
    margin: { l: 56, t: 12, ...extra.margin, r: 10, b: 58 + 19 * Math.ceil(listed / 2) } };
}
function render(id, more) {
  const kept = plots.get(id), extra = { ...kept.layoutExtra, ...more };
  const drawn = Plotly.react(id, recoloured(kept.traces), recoloured(layout({ ...extra, ...(narrow(id) ? below(kept.traces, extra) : {}) })), config);
  for (; kept.bound < kept.handlers.length; kept.bound++) byId(id).on(...kept.handlers[kept.bound]);
  return drawn;
}
// Draws all plots that are not drawn yet and returns when they are there.
const drawStale = () => Promise.all([...plots].map(([id, kept]) => kept.stale ? drawPlot(id) : kept.drawn));
function redrawAll() {
  for (const [id, kept] of plots) {
    kept.stale = true;
    if (kept.visible) drawPlot(id);
  }
}
// Handlers of Plotly's own events, such as "plotly_click"; call it after the first `plot`.
function onPlot(id, event, handler) {
  plots.get(id).handlers.push([event, handler]);
}
// A sentence under a plot that says in words what it shows; assistive technology reads it with the plot.
function describe(id, sentence) {
  let words = byId(`${id}-words`);
  if (!words) {
    words = document.createElement("p");
    words.id = `${id}-words`;
    words.className = "hint words";
    byId(id).after(words);
    byId(id).setAttribute("aria-describedby", words.id);
  }
  words.textContent = sentence;
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
