// The plan of the chosen candidate: which rank holds which part of which table.
const sizeOf = new Map(data.tables.map((table) => [table.name, table]));
const ranksOf = (text) => text.split(",").flatMap((run) => {
  const [first, last] = run.split("-").map(Number);
  return last === undefined ? [first] : Array.from({ length: last - first + 1 }, (_, i) => first + i);
});
const planOrders = [["as planned", null], ["name", (t) => t.name], ["rows", (t) => -(sizeOf.get(t.name)?.rows ?? 0)],
  ["size", (t) => -(sizeOf.get(t.name)?.size_bytes ?? 0)], ["bytes read a sample", (t) => -(sizeOf.get(t.name)?.read_bytes ?? 0)],
  ["ranks", (t) => -ranksOf(t.ranks).length], ["first rank", (t) => ranksOf(t.ranks)[0]], ["sharding type", (t) => t.kind]];
// Sizes are not known where the model is not kept; without them only what the plan says can sort.
const usable = planOrders.filter(([title]) => data.tables.length || !["rows", "size", "bytes read a sample"].includes(title));
const gib = (size) => size >= 2 ** 30 ? `${(size / 2 ** 30).toPrecision(3)} GiB` : `${(size / 2 ** 20).toPrecision(3)} MiB`;
const sizeWords = (table) => {
  const size = sizeOf.get(table.name);
  return size ? `${size.rows.toLocaleString("en-US")} × ${size.dim}, ${gib(size.size_bytes)}, ${size.read_bytes.toLocaleString("en-US")} B read a sample` : "";
};
// Only rows that are in view are drawn: the plot stays in place and a tall box scrolls behind it.
let planRows = [], planKinds = [], planRanks = [];
const planHead = 48;
// On paper nothing scrolls, so all rows are drawn there.
let rowsInView = 36;
function unrollPlan(all) {
  rowsInView = all ? Infinity : 36;
  if (byId("heatmap") && details.has(current)) drawPlan(details.get(current));
}
const rowHeight = () => planRows.length > rowsInView ? 13 : 17;
const shortened = (name, most) => name.length > most ? `${name.slice(0, most / 2 - 1)}…${name.slice(-most / 2)}` : name;
function drawPlanRows() {
  const unit = rowHeight(), seen = Math.min(planRows.length, rowsInView), room = planRows.length - seen;
  const first = Math.min(room, Math.round(byId("plan-scroll").scrollTop / unit)), tables = planRows.slice(first, first + seen);
  const held = tables.map((table) => ranksOf(table.ranks)), every = Math.ceil(planRanks.length / (narrow("heatmap") ? 8 : 20));
  const cells = tables.map((table, i) => {
    const row = planRanks.map(() => null);
    for (const rank of held[i]) row[rank] = planKinds.indexOf(table.kind);
    return row;
  });
  const words = tables.map((table, i) => new Array(planRanks.length).fill([plain(table.name), `${plain(table.kind)}, ${plain(table.kernel)}, ` +
    (table.kind === "data_parallel" ? "a copy on each" : held[i].length > 1 ? `1/${held[i].length} of it` : "all of it") + `<br>${sizeWords(table)}`]));
  const colours = planKinds.flatMap((_, i) => [i, i + 1].map((end) => [end / planKinds.length, palette[i % palette.length]]));
  const places = tables.map((_, i) => i);
  plot("heatmap", [{ type: "heatmap", z: cells, x: planRanks, y: places, xgap: planRanks.length <= 64 ? 1 : 0, ygap: 1, zmin: -0.5, zmax: planKinds.length - 0.5,
    hoverongaps: false, customdata: words, colorscale: colours, showscale: false,
    hovertemplate: "<b>%{customdata[0]}</b> on rank %{x}<br>%{customdata[1]}<extra></extra>" }],
  { margin: { l: narrow("heatmap") ? 96 : 130, r: 8, t: planHead, b: 8 }, xaxis: axis("Rank", { side: "top", dtick: every, tickangle: 0, range: [-0.5, planRanks.length - 0.5], showgrid: false, zeroline: false }),
    yaxis: { range: [seen - 0.5, -0.5], tickvals: places, fixedrange: true, zeroline: false, gridcolor: line, tickfont: { size: unit > 13 ? 11 : 9 },
      ticktext: tables.map((t) => plain(shortened(t.name, narrow("heatmap") ? 14 : 20))) } });
}
function drawPlan(detail) {
  const words = byId("plan-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const tables = detail.tables.filter((t) => words.every((word) => `${t.name} ${t.kind} ${t.kernel}`.toLowerCase().includes(word)));
  const key = usable[Number(byId("plan-order").value)][1];
  if (key) tables.sort((a, b) => { const p = key(a), q = key(b); return p < q ? -1 : p > q ? 1 : 0; });
  byId("plan-count").textContent = tables.length === detail.tables.length ? `${tables.length} tables` : `${tables.length} of ${detail.tables.length} tables`;
  const kinds = [...new Set(detail.tables.map((t) => t.kind))].sort();
  [planRows, planKinds, planRanks] = [tables, kinds, detail.ranks];
  const height = planHead + 8 + rowHeight() * Math.max(3, Math.min(rowsInView, tables.length));
  byId("heatmap").style.height = `${height}px`;
  // With the borders, so that the last row comes into view at the very end.
  byId("plan-scroll").style.maxHeight = `${height + 2}px`;
  byId("plan-room").style.height = `${Math.max(0, tables.length - rowsInView) * rowHeight()}px`;
  byId("plan-scroll").scrollTop = 0;
  drawPlanRows();
  const legend = byId("plan-legend");
  legend.replaceChildren(...kinds.map((kind, i) => {
    const item = document.createElement("span"), patch = document.createElement("span");
    patch.className = "patch";
    patch.style.background = recoloured(palette[i % palette.length]);
    item.append(patch, `${kind} (${detail.tables.filter((t) => t.kind === kind).length})`);
    return item;
  }));
  fillPlanTable(tables);
}
function fillPlanTable(tables) {
  const box = byId("plan-table").closest("details");
  box.fill = () => {
    if (!box.open) return;
    const body = byId("plan-table").tBodies[0];
    body.replaceChildren();
    for (const table of tables) {
      const row = body.insertRow(), size = sizeOf.get(table.name);
      for (const text of [table.name, table.kind, table.kernel, table.ranks.replaceAll(",", ", ").replaceAll("-", "–")]) cell(row, text, false);
      for (const text of size ? [size.rows.toLocaleString("en-US"), String(size.dim), gib(size.size_bytes)] : ["–", "–", "–"]) cell(row, text, true);
    }
  };
  box.fill();
}
if (byId("heatmap")) {
  usable.forEach(([title], i) => byId("plan-order").add(new Option(title, String(i))));
  const again = () => { if (details.has(current)) drawPlan(details.get(current)); };
  byId("plan-order").addEventListener("change", again);
  byId("plan-filter").addEventListener("input", again);
  let asked = false;
  byId("plan-scroll").addEventListener("scroll", () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; drawPlanRows(); });
  });
  byId("plan-table").closest("details").addEventListener("toggle", (event) => event.currentTarget.fill?.());
}
