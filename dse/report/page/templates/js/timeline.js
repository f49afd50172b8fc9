// The predicted iteration of the chosen candidate: one row for each stream of the shown ranks.
const timelines = new Map(data.timeline.candidates.map((one) => [one.number, one]));
const barColours = ["#0072b2", "#009e73", "#e69f00", "#cc79a7", "#999999"];
function drawTimeline(detail) {
  const note = byId("timeline-note"), box = byId("timeline"), found = timelines.get(detail.number);
  const missing = !timelines.size ? data.timeline.note :
    `The page keeps no time line of ${label(detail.number)}, only of ${[...timelines.keys()].map(label).join(", ")}. ${data.timeline.note}`;
  note.textContent = found ? [found.shown, found.joined_ms ? `Neighbours of a kind less than ${found.joined_ms} ms apart are one bar.` : "",
    data.timeline.note].filter(Boolean).join(" ") : missing;
  box.hidden = !found;
  if (!found) return;
  const seconds = found.iteration_ms >= 10000, unit = seconds ? "s" : "ms";
  const length = found.iteration_ms / (seconds ? 1000 : 1), scale = length / data.timeline.ticks;
  const rows = found.streams.map((stream, i) => i), height = 24;
  box.style.height = `${90 + height * Math.max(3, rows.length)}px`;
  // Neighbours are told apart by a thin gap, which would hide bars that are not much wider.
  const gap = (ticks) => ticks > 0.004 * data.timeline.ticks ? 0.6 : 0;
  const idle = { type: "bar", orientation: "h", name: "Idle", y: rows, x: rows.map(() => length), base: rows.map(() => 0), width: 0.8,
    marker: { color: partColours.Idle }, hoverinfo: "skip" };
  const traces = data.timeline.kinds.map((kind, number) => {
    const bars = found.streams.flatMap((stream, row) => stream.start.flatMap((start, i) => stream.kind[i] === number ?
      [[row, start * scale, stream.duration[i] * scale, stream.name[i], gap(stream.duration[i])]] : []));
    return { type: "bar", orientation: "h", name: kind, width: 0.8, marker: { color: barColours[number], line: { width: bars.map((bar) => bar[4]), color: themed("#ffffff", "#14171b") } },
      y: bars.map((bar) => bar[0]), base: bars.map((bar) => bar[1]), x: bars.map((bar) => bar[2]),
      text: bars.map((bar) => plain(data.timeline.names[bar[3]])), textposition: "none",
      customdata: bars.map((bar) => [found.streams[bar[0]].title, bar[1], bar[2]]),
      hovertemplate: `<b>%{text}</b><br>%{customdata[0]}<br>from %{customdata[1]:.5g} ${unit}, for %{customdata[2]:.4g} ${unit}<extra>${kind}</extra>` };
  }).filter((trace) => trace.y.length);
  plot("timeline", [idle, ...traces], { barmode: "overlay", bargap: 0, legend: { orientation: "h", y: 1, yanchor: "bottom" }, margin: { l: 210, r: 16, t: 32, b: 44 },
    xaxis: axis(unit, { range: [0, length * 1.005] }), yaxis: { tickvals: rows, ticktext: found.streams.map((stream) => plain(stream.title)),
      range: [rows.length - 0.4, -0.6], fixedrange: true, zeroline: false, showgrid: false } });
  const share = (stream) => stream.duration.reduce((sum, ticks) => sum + ticks, 0) / data.timeline.ticks;
  const busy = found.streams.map(share), most = busy.indexOf(Math.max(...busy));
  describe("timeline", `One iteration of ${length.toPrecision(4)} ${unit}; ${found.streams[most].title} is busiest, ${(100 * busy[most]).toFixed(0)} % of the time. Drag over the plot to enlarge a part, double-click to see all.`);
  asTable("timeline", ["Stream", "Task", "Kind", `Start (${unit})`, `Length (${unit})`], () => found.streams.flatMap((stream) =>
    stream.start.map((start, i) => [stream.title, data.timeline.names[stream.name[i]], data.timeline.kinds[stream.kind[i]], start * scale, stream.duration[i] * scale])));
}
onChoose.push(drawTimeline);
if (!data.details.length) byId("timeline-note").textContent = data.timeline.note;
