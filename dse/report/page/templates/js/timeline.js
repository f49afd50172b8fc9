// The predicted iteration of the chosen candidate: one row for each stream of the shown ranks.
const timelines = new Map(data.timeline.candidates.map((one) => [one.number, one]));
const barColours = [palette[0], palette[2], palette[1], palette[3], grey];
function drawTimeline(detail) {
  const note = byId("timeline-note"), box = byId("timeline"), found = timelines.get(detail.number);
  const missing = !timelines.size ? data.timeline.note :
    `The page has no time line of ${label(detail.number)}, only of ${[...timelines.keys()].map(label).join(", ")}. ${data.timeline.note}`;
  note.textContent = found ? [found.shown, found.joined_ms ? `Neighbours of one kind less than ${found.joined_ms} ms apart are drawn as one bar.` : "",
    data.timeline.note].filter(Boolean).join(" ") : missing;
  box.hidden = !found;
  if (!found) return;
  const seconds = found.iteration_ms >= 10000, unit = seconds ? "s" : "ms";
  const length = found.iteration_ms / (seconds ? 1000 : 1), scale = length / data.timeline.ticks;
  // Streams of a rank stand under its name.
  const rows = [], heads = [];
  let place = 0;
  for (const [i, stream] of found.streams.entries()) {
    const [owner, name] = stream.title.split(": ");
    if (!i || !found.streams[i - 1].title.startsWith(`${owner}: `)) heads.push([place++, owner]);
    rows.push({ at: place++, name: name ?? owner });
  }
  box.style.height = `${64 + 22 * Math.max(4, place)}px`;
  // Neighbours are told apart by a thin gap, which would hide bars that are not much wider.
  const gap = (ticks) => ticks > 0.004 * data.timeline.ticks ? 0.6 : 0;
  const idle = { type: "bar", orientation: "h", name: "Idle", y: rows.map((row) => row.at), x: rows.map(() => length), base: rows.map(() => 0), width: 0.8,
    marker: { color: partColours.Idle }, hoverinfo: "skip" };
  const traces = data.timeline.kinds.map((kind, number) => {
    const bars = found.streams.flatMap((stream, row) => stream.start.flatMap((start, i) => stream.kind[i] === number ?
      [[row, start * scale, stream.duration[i] * scale, stream.name[i], gap(stream.duration[i])]] : []));
    return { type: "bar", orientation: "h", name: kind, width: 0.8, marker: { color: barColours[number], line: { width: bars.map((bar) => bar[4]), color: themed("#ffffff", "#14171b") } },
      y: bars.map((bar) => rows[bar[0]].at), base: bars.map((bar) => bar[1]), x: bars.map((bar) => bar[2]),
      text: bars.map((bar) => plain(data.timeline.names[bar[3]])), textposition: "none",
      customdata: bars.map((bar) => [found.streams[bar[0]].title, bar[1], bar[2]]),
      hovertemplate: `<b>%{text}</b><br>%{customdata[0]}<br>from %{customdata[1]:.5g} ${unit}, for %{customdata[2]:.4g} ${unit}<extra>${kind}</extra>` };
  }).filter((trace) => trace.y.length);
  plot("timeline", [idle, ...traces], { barmode: "overlay", bargap: 0, margin: { l: 8, r: 16, t: 8, b: 48 },
    annotations: heads.map(([at, owner]) => ({ text: `<b>${plain(owner)}</b>`, x: 0, y: at, xanchor: "left", yanchor: "middle", showarrow: false, font: { size: 12 } })),
    xaxis: axis(`Time (${unit})`, { range: [0, length * 1.005] }), yaxis: { tickvals: rows.map((row) => row.at), ticktext: rows.map((row) => plain(row.name)),
      range: [place - 0.4, -0.6], automargin: true, fixedrange: true, zeroline: false, showgrid: false } });
  const share = (stream) => stream.duration.reduce((sum, ticks) => sum + ticks, 0) / data.timeline.ticks;
  const busy = found.streams.map(share), most = busy.indexOf(Math.max(...busy));
  describe("timeline", `One iteration of ${length.toPrecision(4)} ${unit}; ${found.streams[most].title} is busiest, ${(100 * busy[most]).toFixed(0)} % of the time.`,
    coarse.matches ? "" : "Drag over the plot to enlarge a part, double-click to see all.");
  asTable("timeline", ["Stream", "Task", "Kind", `Start (${unit})`, `Length (${unit})`], () => found.streams.flatMap((stream) =>
    stream.start.map((start, i) => [stream.title, data.timeline.names[stream.name[i]], data.timeline.kinds[stream.kind[i]], start * scale, stream.duration[i] * scale])));
}
onChoose.push(drawTimeline);
if (!data.details.length) byId("timeline-note").textContent = data.timeline.note;
