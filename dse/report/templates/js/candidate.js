// Everything about the chosen candidate.
const candidate = byId("candidate");
for (const detail of data.details) candidate.add(new Option(label(detail.number), String(detail.number)));
function mark() {
  document.querySelectorAll("tr[data-number]").forEach((row) => row.classList.toggle("chosen", row.dataset.number === String(current)));
}
function stacked(id, titles, colours, ranks, rows, unit, extraTraces, shapes_) {
  const traces = titles.map((title, i) => ({ type: "bar", name: title, x: ranks, y: rows.map((row) => row[i]),
    marker: { color: colours[i] }, hovertemplate: `${data.rank_word.toLowerCase()} %{x}, ${title}: %{y} ${unit}<extra></extra>` }));
  plot(id, traces.concat(extraTraces), { barmode: "stack", shapes: shapes_, bargap: 0.25, legend: { x: 1.01, y: 1, traceorder: "normal" },
    xaxis: axis(data.rank_word, { dtick: ranks.length > 16 ? 4 : 1 }), yaxis: axis(unit) });
}
function choose(number) {
  const detail = details.get(number);
  if (!detail) return;
  current = number;
  candidate.value = String(number);
  const list = byId("summary");
  list.replaceChildren();
  for (const [label, text] of detail.summary) {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = label;
    dd.textContent = text;
    list.append(dt, dd);
  }
  stacked("breakdown", data.breakdown_parts, data.breakdown_parts.map((part) => partColours[part]), detail.ranks, detail.breakdown_ms.map((row) => row.map((part) => part / breakdownUnit(detail)[1])), breakdownUnit(detail)[0], [], []);
  if (byId("memory")) stacked("memory", data.memory_purposes, purposes, detail.ranks, detail.memory_gib, "GiB", [], [{ type: "line", xref: "paper", x0: 0, x1: 1,
    y0: detail.usable_gib, y1: detail.usable_gib, line: { color: ink, width: 1.5, dash: "dash" },
    label: { text: `usable ${detail.usable_gib} GiB`, textposition: "end", font: { color: ink } } }]);
  if (byId("heatmap")) drawPlan(detail);
  if (byId("changes-table")) drawChanges(detail);
  for (const draw of onChoose) draw(detail);
  mark();
}
function breakdownUnit(detail) {
  const longest = Math.max(...detail.breakdown_ms.map((row) => row.reduce((sum, part) => sum + part, 0)));
  return longest >= 1000 ? ["s", 1000] : ["ms", 1];
}
function drawChanges(detail) {
  const body = byId("changes-table").tBodies[0], notes = byId("notes");
  body.replaceChildren();
  notes.replaceChildren();
  for (const change of detail.changes) {
    const row = body.insertRow();
    cell(row, change.title, false);
    for (const text of [change.tasks.toLocaleString("en-US"), change.before_ms.toFixed(3), change.after_ms.toFixed(3),
      change.after_ms > 0 ? `${(change.before_ms / change.after_ms).toFixed(3)} ×` : "–"]) cell(row, text, true);
  }
  if (!detail.changes.length) cell(body.insertRow(), "none: the step as captured", false);
  for (const note of detail.notes) {
    const item = document.createElement("li");
    item.textContent = note;
    notes.appendChild(item);
  }
}
function drawPlan(detail) {
  const ranks = detail.ranks;
  const share = detail.tables.map((table) => {
    const row = ranks.map(() => 0);
    const copies = table.kind === "data_parallel" ? 1 : 1 / table.ranks.length;
    for (const rank of table.ranks) row[rank] += copies;
    return row;
  });
  const few = detail.tables.length <= 80;
  byId("heatmap").style.height = `${Math.min(900, 110 + 18 * Math.min(44, detail.tables.length))}px`;
  plot("heatmap", [{ type: "heatmap", z: share, x: ranks, y: detail.tables.map((t) => plain(t.name)), xgap: 1, ygap: few ? 1 : 0,
    text: detail.tables.map((t) => ranks.map(() => plain(t.kind))), zmin: 0, zmax: 1,
    colorscale: [[0, themed("#f1f3f6", "#1c2127")], [1e-6, themed("#c9def2", "#27486b")], [1, "#0072b2"]], colorbar: { title: { text: "share" } },
    hovertemplate: "%{y} on rank %{x}: %{z:.3f} (%{text})<extra></extra>" }],
    { margin: { l: 110, r: 16, t: 8, b: 40 }, xaxis: axis("Rank", { dtick: ranks.length > 16 ? 4 : 1 }), yaxis: { autorange: "reversed", automargin: true } });
  const body = byId("plan-table").tBodies[0];
  body.replaceChildren();
  for (const table of detail.tables) {
    const row = body.insertRow();
    for (const text of [table.name, table.kind, table.kernel, table.ranks.join(", ")]) cell(row, text, false);
  }
}
