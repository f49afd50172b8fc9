// The scatter of objective values.
const selectX = byId("axis-x"), selectY = byId("axis-y");
data.axes.forEach((objective, index) => {
  for (const select of [selectX, selectY]) select.add(new Option(objective.title, String(index)));
});
selectX.value = data.axes.length > 1 ? "1" : "0";
selectY.value = "0";
const hover = (trial) => `<b>${label(trial.number)}</b> ${trial.number < 0 ? "" : plain(trial.status)}<br>` +
  data.axes.map((objective, i) => `${plain(objective.title)}: ${show(objective, trial.values[i])}`).join("<br>") + "<br>" +
  data.parameters.map((name, i) => `${plain(name)}: ${plain(trial.parameters[i])}`).join("<br>");
function points(trials, x, y, extra) {
  return Object.assign({
    type: "scatter", mode: "markers", x: trials.map((t) => t.values[x]), y: trials.map((t) => t.values[y]),
    customdata: trials.map((t) => t.number), text: trials.map(hover), hovertemplate: "%{text}<extra></extra>",
  }, extra);
}
function drawScatter() {
  const x = Number(selectX.value), y = Number(selectY.value);
  const evaluated = data.trials.filter((t) => t.values.length > 0);
  const traces = [points(evaluated.filter((t) => t.status === "infeasible"), x, y,
    { name: "not feasible", marker: { color: themed("#b9c0c8", "#5b6470"), size: 6, symbol: "x-thin-open" } })];
  const groups = [...new Set(evaluated.map((t) => t.group))].sort();
  groups.forEach((group, index) => {
    const mine = evaluated.filter((t) => t.group === group && t.status === "feasible");
    traces.push(points(mine, x, y, { name: plain(group), marker: {
      color: palette[index % palette.length], symbol: shapes[index % shapes.length],
      size: mine.map((t) => t.front ? 12 : 6), opacity: mine.map((t) => t.front ? 1 : 0.55),
      line: { color: ink, width: mine.map((t) => t.front ? 1.2 : 0) } } }));
  });
  if (baseline) traces.push(points([baseline], x, y, { name: "as captured", marker: { color: ink, size: 13, symbol: "x" } }));
  // The staircase joins the points of the front that no other beats in the two shown objectives.
  const best = nonDominated(front, x, y);
  traces.push({ type: "scatter", mode: "lines", name: "front in these two", x: best.map((t) => t.values[x]),
    y: best.map((t) => t.values[y]), line: { color: ink, width: 1, dash: "dot" }, hoverinfo: "skip" });
  plot("scatter", traces, { xaxis: axis(data.axes[x].title, scaleOf(evaluated, x)),
    yaxis: axis(data.axes[y].title, scaleOf(evaluated, y)) });
}
// Values that span more than one and a half decades are unreadable on a linear axis. What is far
// from everything feasible is left outside until somebody zooms out.
function scaleOf(trials, index) {
  const valuesOf = (some) => some.map((t) => t.values[index]).filter((value) => value !== null);
  const values = valuesOf(trials), low = Math.min(...values), high = Math.max(...values);
  if (low > 0 && high / low > 30) return { type: "log", dtick: "D2" };
  const feasible = valuesOf(trials.filter((t) => t.status === "feasible"));
  if (!feasible.length) return {};
  const from = Math.min(...feasible), to = Math.max(...feasible), room = Math.max(to - from, 0.1 * Math.abs(to));
  if (room <= 0 || (from - low <= 3 * room && high - to <= 3 * room)) return {};
  return { range: [Math.max(low, from - room) - 0.06 * room, Math.min(high, to + room) + 0.06 * room] };
}
function nonDominated(trials, x, y) {
  const sx = data.axes[x].maximize ? -1 : 1, sy = data.axes[y].maximize ? -1 : 1;
  return trials.filter((a) => !trials.some((b) =>
    sx * b.values[x] <= sx * a.values[x] && sy * b.values[y] <= sy * a.values[y] &&
    (b.values[x] !== a.values[x] || b.values[y] !== a.values[y]))).sort((a, b) => a.values[x] - b.values[x]);
}
