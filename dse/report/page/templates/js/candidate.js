// Everything about the chosen candidate.
const candidate = byId("candidate");
for (const detail of data.details) candidate.add(new Option(label(detail.number), String(detail.number)));
function mark() {
  document.querySelectorAll("tr[data-number]").forEach((row) => row.classList.toggle("chosen", row.dataset.number === String(current)));
}
// What ranks differ in is how long they compute; transfers are as long for all that meet.
const computeOf = (detail) => detail.breakdown_ms.map((row) => row[data.breakdown_parts.indexOf("Compute")]);
// Bars of ranks: by number, or those that compute longest first where there are many.
function rankOrder(detail) {
  const all = detail.ranks.map((_, i) => i);
  if (byId("rank-order").value !== "busy" || !byId("breakdown")) return all;
  const busy = computeOf(detail);
  return all.sort((a, b) => busy[b] - busy[a] || a - b);
}
function stacked(id, titles, colours, ranks, rows, unit, shapes_ = [], top = null) {
  // Places on the axis are positions, so that ranks can stand in any order.
  const word = data.rank_word.toLowerCase(), every = Math.ceil(ranks.length / (narrow(id) ? 8 : 24)), places = ranks.map((_, i) => i);
  const labelled = places.filter((place) => place % every === 0);
  plot(id, titles.map((title, i) => ({ type: "bar", name: title, x: places, y: rows.map((row) => row[i]), customdata: ranks,
    marker: { color: colours[i] }, hovertemplate: `${word} %{customdata}, ${title}: %{y} ${unit}<extra></extra>` })),
  { barmode: "stack", shapes: shapes_, bargap: ranks.length > 32 ? 0 : 0.25,
    xaxis: axis(data.rank_word, { tickvals: labelled, ticktext: labelled.map((place) => String(ranks[place])), tickangle: 0 }), yaxis: axis(unit, top ? { range: [0, top] } : {}) });
  asTable(id, [data.rank_word, ...titles.map((title) => `${title} (${unit})`)], () => rows.map((row, i) => [String(ranks[i]), ...row]));
}
function drawRanks(detail) {
  const order = rankOrder(detail), ranks = order.map((i) => detail.ranks[i]);
  byId("rank-controls").hidden = detail.ranks.length <= 16;
  if (byId("breakdown")) drawTimes(detail, order, ranks);
  if (byId("memory")) drawMemory(detail, order, ranks);
}
function drawTimes(detail, order, ranks) {
  const [unit, factor] = breakdownUnit(detail);
  const busy = computeOf(detail).map((part) => part / factor);
  const word = data.rank_word.toLowerCase(), most = Math.max(...busy), least = Math.min(...busy);
  describe("breakdown", most === least ? `Every ${word} computes for ${most.toPrecision(4)} ${unit}.` :
    `${data.rank_word} ${detail.ranks[busy.indexOf(most)]} computes longest, ${most.toPrecision(4)} ${unit}, and ${word} ${detail.ranks[busy.indexOf(least)]} shortest, ${least.toPrecision(4)} ${unit}.`);
  stacked("breakdown", data.breakdown_parts, data.breakdown_parts.map((part) => partColours[part]), ranks,
    order.map((i) => detail.breakdown_ms[i].map((part) => part / factor)), unit);
}
function drawMemory(detail, order, ranks) {
  const word = data.rank_word.toLowerCase();
  const held = detail.memory_gib.map((row) => row.reduce((sum, part) => sum + part, 0)), fullest = Math.max(...held);
  // Where hardly anything is used, the line of the capacity would press the bars to the ground.
  const low = fullest < 0.25 * detail.usable_gib;
  describe("memory", `Fullest is ${word} ${detail.ranks[held.indexOf(fullest)]} with ${fullest.toPrecision(4)} of ${detail.usable_gib} GiB usable${low ? "; the limit is above the plot" : ""}.`);
  stacked("memory", data.memory_purposes, purposes, ranks, order.map((i) => detail.memory_gib[i]), "GiB", low ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1,
    y0: detail.usable_gib, y1: detail.usable_gib, line: { color: ink, width: 1.5, dash: "dash" },
    label: { text: `usable ${detail.usable_gib} GiB`, textposition: "end", font: { color: ink } } }], low ? null : 1.14 * Math.max(fullest, detail.usable_gib));
}
byId("rank-order").addEventListener("change", () => { if (details.has(current)) drawRanks(details.get(current)); });
function listed(id, rows) {
  byId(id).replaceChildren(...rows.flatMap(([name, text]) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = text;
    return [dt, dd];
  }));
}
function choose(number) {
  const detail = details.get(number);
  if (!detail) return tell(`${label(number)} has no details: the page keeps them for the front and the best of the others.`);
  current = number;
  candidate.value = String(number);
  listed("summary", detail.summary);
  const trial = data.trials.find((one) => one.number === number);
  listed("chosen-parameters", trial ? shownParameters.filter((i) => trial.parameters[i] !== "").map((i) => [capital(worded(data.parameters[i])), spelled(trial.parameters[i])]) : []);
  drawRanks(detail);
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
