// What all parts of the page share: the data, colours, numbers and words.
const byId = (id) => document.getElementById(id);
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
// Data and Plotly are in the page as base64 of gzip.
function unpack(id) {
  const packed = byId(id).textContent;
  return new TextDecoder().decode(inflate(Uint8Array.fromBase64 ? Uint8Array.fromBase64(packed) : Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0))));
}
const data = JSON.parse(unpack("payload"));
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
const ink = themed("#1a1d21", "#e7eaee"), line = themed("#d9dee4", "#343b44"), soft = themed("#57606b", "#9aa5b1");
// The hues of Okabe and Ito, which colour-blind readers can tell apart, as dark or as bright as it
// takes to stand out from the paper (3:1); shapes differ as well.
const palette = [themed("#0072b2", "#4aa3df"), themed("#b97700", "#f0b429"), themed("#008a63", "#2bbf94"), themed("#b5548a", "#e08fbe"),
  themed("#3a8fc7", "#8fd0f5"), themed("#c24f00", "#f58549"), themed("#7a7a1f", "#c2c25a"), themed("#882255", "#d1699f")];
const shapes = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "pentagon"];
const grey = themed("#83898f", "#a3aab2");
const partColours = { "Compute": palette[0], "Exposed communication": palette[1], "Host": grey, "Idle": themed("#e3e7ec", "#3a424c") };
const purposes = [0, 4, 2, 1, 3, 5, 6, 7].map((i) => palette[i]);
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
// Plotly reads a few tags in labels, so text from files is escaped for it.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const show = (axis, value) => value === null || value === undefined ? "–" :
  value.toLocaleString("en-US", { minimumFractionDigits: axis.digits, maximumFractionDigits: axis.digits });
// A value with its unit, as in a sentence.
const amount = (axis, value) => `${show(axis, value)} ${axis.unit}`.trim();
// Names of parameters and values as people read them. Lists may break after a plus.
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const worded = (name) => name.replaceAll("_", " ");
const spelled = (value) => typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 12 }) :
  typeof value === "boolean" ? (value ? "yes" : "no") : value === "" ? "–" : String(value).replaceAll("+", "+\u200b");
const named = (i, trial) => `${worded(data.parameters[i])} ${spelled(trial.parameters[i])}`;
// A logarithmic axis whose marks are written out: 1, 2, 5, 10, 20, 50 … More of them where the axis is
// short, and powers of ten alone where it is long.
function logTicks(low, high) {
  const marks = [], ratio = high / low, digits = ratio < 5 ? [1, 1.5, 2, 3, 4, 5, 7] : ratio > 5000 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of digits) marks.push(Number((digit * 10 ** power).toPrecision(2)));
  }
  return { type: "log", tickvals: marks, ticktext: marks.map((mark) => mark.toLocaleString("en-US", { maximumSignificantDigits: 3 })) };
}
// Parameters that differ between trials; the others need no column, only a line.
const allParameters = data.parameters.map((_, i) => i);
const varying = (trials) => allParameters.filter((i) => new Set(trials.map((trial) => trial.parameters[i])).size > 1);
const constant = (trials, shown) => {
  const left = trials.length ? allParameters.filter((i) => !shown.includes(i) && trials[0].parameters[i] !== "") : [];
  return left.length ? `The same for all of them: ${left.map((i) => named(i, trials[0])).join(", ")}.` : "";
};

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

