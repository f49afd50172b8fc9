// The front: two objectives on the axes, a third by colour, intervals, and what was run for real.
const selectX = byId("axis-x"), selectY = byId("axis-y"), selectZ = byId("axis-z");
data.axes.forEach((objective, index) => {
  for (const select of [selectX, selectY]) select.add(new Option(objective.title, String(index)));
});
selectX.value = data.axes.length > 1 ? "1" : "0";
selectY.value = "0";
// Colours tell the groups apart, which are the values of one parameter.
const groupWord = data.parameters.find((_, i) => data.trials.every((t) => String(t.parameters[i]) === t.group)) ?? "group";
selectZ.add(new Option(worded(groupWord), ""));
data.axes.forEach((objective, index) => selectZ.add(new Option(objective.title, String(index))));
const known = new Map(data.front.points.map((point) => [point.number, point]));
// Long text in a tooltip goes on in a new line.
function wrapped(text, width = 60) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= width) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return plain((lines.length > 4 ? [...lines.slice(0, 4), "…"] : lines).join("\n")).replaceAll("\n", "<br>");
}
const shownParameters = varying(data.trials);
function hover(trial) {
  const point = known.get(trial.number);
  const figures = data.axes.map((objective, i) => `${capital(objective.noun)} ${amount(objective, trial.values[i])}` +
    (point?.predicted[i] ? ` (90 % interval ${show(objective, point.predicted[i][0])} to ${show(objective, point.predicted[i][1])})` : ""));
  const status = trial.number < 0 ? "" : trial.front ? ", on the front" : trial.status === "feasible" ? ", feasible" : ", not feasible";
  return [`<b>${label(trial.number)}</b>${status}`, ...figures.map(plain),
    ...(boundBy.has(trial.number) ? [plain(`Bound by ${boundBy.get(trial.number)}`)] : []),
    ...(trial.number < 0 || !shownParameters.length ? [] : [wrapped(capital(shownParameters.map((i) => named(i, trial)).join(", ")))]),
    ...(trial.reason ? [wrapped(trial.reason)] : []), ...(point?.note ? [wrapped(capital(point.note))] : [])].join("<br>");
}
// A share stays in the line of its sign.
const boundBy = new Map(data.bound_by.map(([number, text]) => [number, text.replace(" %", "\u00a0%")]));
// SVG marks: the plots that need WebGL build code at run time, which the page forbids itself.
function points(trials, x, y, extra) {
  return Object.assign({
    type: "scatter", mode: "markers", x: trials.map((t) => t.values[x]), y: trials.map((t) => t.values[y]),
    customdata: trials.map((t) => t.number), text: trials.map(hover), hovertemplate: "%{text}<extra></extra>",
  }, extra);
}
const onlyFront = byId("only-front");
// Bars from a value to the ends of its interval; points without one get a bar of no length.
function errorBars(values, spans, extra) {
  const ends = (place, sign) => values.map((value, i) => spans[i] && spans[i][place] !== null ? Math.max(0, sign * (spans[i][place] - value)) : 0);
  return { type: "data", symmetric: false, array: ends(1, 1), arrayminus: ends(0, -1), thickness: 1, width: 3, ...extra };
}
// Viridis: read by colour-blind readers, and in grey.
const viridis = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
function between(scale, share) {
  const place = Math.min(Math.max(share, 0), 1) * (scale.length - 1), first = Math.min(Math.floor(place), scale.length - 2);
  const parts = [0, 1].map((i) => [1, 3, 5].map((at) => parseInt(scale[first + i].slice(at, at + 2), 16)));
  return `rgb(${parts[0].map((low, i) => Math.round(low + (parts[1][i] - low) * (place - first))).join(",")})`;
}
const middle = (span) => span && [span[0], span[2]];
function drawScatter() {
  const x = Number(selectX.value), y = Number(selectY.value), z = selectZ.value === "" ? null : Number(selectZ.value);
  const evaluated = data.trials.filter((t) => t.values.length > 0);
  const feasible = evaluated.filter((t) => t.status === "feasible");
  const infeasible = onlyFront.checked ? [] : evaluated.filter((t) => t.status === "infeasible");
  const seen = onlyFront.checked ? front : [...infeasible, ...feasible], traces = [];
  if (infeasible.length) traces.push(points(infeasible, x, y, { name: "not feasible", marker: { color: grey, size: 7, symbol: "x-thin-open" } }));
  const interval = (t, i) => known.get(t.number)?.predicted[i] ?? null;
  if (front.some((t) => interval(t, x) || interval(t, y))) traces.push({ type: "scatter", mode: "markers", name: "90 % interval", hoverinfo: "skip",
    x: front.map((t) => t.values[x]), y: front.map((t) => t.values[y]), marker: { size: 1, color: ink },
    error_x: errorBars(front.map((t) => t.values[x]), front.map((t) => interval(t, x)), { color: soft }),
    error_y: errorBars(front.map((t) => t.values[y]), front.map((t) => interval(t, y)), { color: soft }) });
  const groups = [...new Set(feasible.map((t) => t.group))].sort();
  const colours = z === null ? [] : feasible.map((t) => t.values[z]).filter((value) => value !== null);
  const logarithmic = colours.length > 0 && Math.min(...colours) > 0 && Math.max(...colours) / Math.min(...colours) > 30;
  const turn = logarithmic ? Math.log10 : (value) => value, low = turn(Math.min(...colours));
  const high = Math.max(turn(Math.max(...colours)), low + 1e-9 * (Math.abs(low) || 1));
  const value = (t) => turn(t.values[z]), shade = (at) => between(viridis, (at - low) / (high - low));
  groups.forEach((group, index) => {
    const symbol = shapes[index % shapes.length];
    for (const best of [false, true]) {
      const mine = feasible.filter((t) => t.group === group && t.front === best);
      if (!mine.length || (!best && onlyFront.checked)) continue;
      const marker = { symbol, size: best ? 13 : 7, opacity: best ? 1 : 0.7, line: { color: ink, width: best ? 1.2 : 0 } };
      if (z === null) marker.color = palette[index % palette.length];
      else Object.assign(marker, { color: mine.map((t) => t.values[z] === null ? "#888888" : shade(value(t))) });
      // One entry of the legend for each group: that of the front where it has a point there.
      const listed = best || !feasible.some((t) => t.group === group && t.front);
      traces.push(points(mine, x, y, { name: group, legendgroup: group, showlegend: listed, marker }));
    }
  });
  const run = data.trials.filter((t) => known.get(t.number)?.note && (t.front || !onlyFront.checked));
  if (run.length) traces.push(points(run, x, y, { name: "run for real", marker: { color: palette[5], size: 19, symbol: "circle-open", line: { width: 2 } } }));
  const measured = run.filter((t) => known.get(t.number).measured[x] || known.get(t.number).measured[y]);
  if (measured.length) {
    const spans = (i) => measured.map((t) => known.get(t.number).measured[i]);
    const at = (i) => measured.map((t, k) => spans(i)[k] ? spans(i)[k][1] : t.values[i]);
    traces.push(points(measured, x, y, { name: "measured, 95 % interval", x: at(x), y: at(y),
      marker: { color: palette[5], size: 9, symbol: "diamond" },
      error_x: errorBars(at(x), spans(x).map(middle), { color: palette[5] }), error_y: errorBars(at(y), spans(y).map(middle), { color: palette[5] }) }));
    traces.push({ type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip", line: { color: palette[5], width: 1, dash: "dot" },
      x: measured.flatMap((t, k) => [t.values[x], at(x)[k], null]), y: measured.flatMap((t, k) => [t.values[y], at(y)[k], null]) });
  }
  if (baseline) traces.push(points([baseline], x, y, { name: "as captured", marker: { color: ink, size: 13, symbol: "x" } }));
  // The staircase joins the points of the front that no other beats in the two shown objectives.
  const best = nonDominated(front, x, y);
  if (best.length > 1) traces.push({ type: "scatter", mode: "lines", name: "best in these two objectives", x: best.map((t) => t.values[x]),
    y: best.map((t) => t.values[y]), line: { color: ink, width: 1, dash: "dot" }, hoverinfo: "skip" });
  const extra = { xaxis: axis(data.axes[x].title, scaleOf(seen, x)), yaxis: axis(data.axes[y].title, { automargin: true, ...scaleOf(seen, y) }) };
  if (z !== null && colours.length) {
    const ticks = Array.from({ length: 5 }, (_, i) => low + (high - low) * i / 4);
    // A mark that lies nowhere carries the scale.
    traces.push({ type: "scatter", mode: "markers", x: [null], y: [null], showlegend: false, hoverinfo: "skip",
      marker: { color: [low], cmin: low, cmax: high, colorscale: viridis.map((colour, i) => [i / (viridis.length - 1), colour]), showscale: true,
        colorbar: { title: { text: plain(data.axes[z].title), side: "right" }, tickvals: ticks,
          ticktext: ticks.map((tick) => show(data.axes[z], logarithmic ? 10 ** tick : tick)) } } });
  }
  plot("scatter", traces, extra);
  describe("scatter", !feasible.length ? "No configuration is feasible." :
    `${feasible.length.toLocaleString("en-US")} feasible configurations, ${front.length} of them on the front` +
    (run.length ? `, ${run.length} run for real` : "") + ". " +
    (data.front.points.some((point) => point.predicted[x] || point.predicted[y]) ? "Bars are the 90 % intervals of the prediction." : "Predictions have no intervals here."));
}
// Values that span more than one and a half decades are unreadable on a linear axis. What is far
// from everything feasible is left outside until somebody zooms out.
function scaleOf(trials, index) {
  const valuesOf = (some) => some.map((t) => t.values[index]).filter((value) => value !== null && value !== undefined);
  const values = valuesOf(trials), feasible = valuesOf(trials.filter((t) => t.status === "feasible")), near = feasible.length ? feasible : values;
  if (!near.length) return {};
  const from = Math.min(...near), to = Math.max(...near), low = Math.min(...values), high = Math.max(...values);
  if (from > 0 && to / from > 30) {
    const ends = [Math.max(low, from / 10), Math.min(high, to * 10)], air = 0.05 * Math.log10(ends[1] / ends[0]);
    return { ...logTicks(...ends), ...(low < ends[0] || high > ends[1] ? { range: [Math.log10(ends[0]) - air, Math.log10(ends[1]) + air] } : {}) };
  }
  const room = Math.max(to - from, 0.1 * Math.abs(to));
  if (room <= 0 || (from - low <= 3 * room && high - to <= 3 * room)) return {};
  return { range: [Math.max(low, from - room) - 0.06 * room, Math.min(high, to + room) + 0.06 * room] };
}
function nonDominated(trials, x, y) {
  const sx = data.axes[x].maximize ? -1 : 1, sy = data.axes[y].maximize ? -1 : 1;
  return trials.filter((a) => !trials.some((b) =>
    sx * b.values[x] <= sx * a.values[x] && sy * b.values[y] <= sy * a.values[y] &&
    (b.values[x] !== a.values[x] || b.values[y] !== a.values[y]))).sort((a, b) => a.values[x] - b.values[x]);
}
for (const control of [selectZ, onlyFront]) control.addEventListener("change", drawScatter);
