// How a platform scales: ranks by batch, the fastest of each.
function drawScaling(view) {
  const values = (of) => [...new Set(view.points.map(of))].sort((a, b) => a - b);
  const batches = values((point) => point.batch), ranks = values((point) => point.ranks);
  const head = byId("scaling-table").tHead, body = byId("scaling-table").tBodies[0];
  head.replaceChildren();
  body.replaceChildren();
  const titles = ["Ranks", ...batches.map((batch) => batch ? `Batch ${batch.toLocaleString("en-US")}` : view.unit), "Efficiency", "Fastest is bound by"];
  const row = head.insertRow();
  titles.forEach((title, i) => {
    const th = document.createElement("th");
    th.scope = "col";
    th.textContent = title;
    if (i < titles.length - 1) th.className = "n";
    row.append(th);
  });
  for (const count of ranks) {
    const own = view.points.filter((point) => point.ranks === count), best = own.reduce((a, b) => b.speed > a.speed ? b : a);
    const line_ = body.insertRow();
    cell(line_, count.toLocaleString("en-US"), true);
    for (const batch of batches) {
      const point = own.find((one) => one.batch === batch);
      cell(line_, point ? point.text : "–", true);
      if (point === best) line_.lastChild.classList.add("best");
    }
    cell(line_, `${(100 * best.efficiency).toFixed(0)} %`, true);
    cell(line_, best.bound_by, false);
  }
  const all = batches.map((batch, i) => {
    const own = view.points.filter((point) => point.batch === batch);
    return { type: "scatter", mode: "lines+markers", name: batch ? `batch ${batch.toLocaleString("en-US")}` : "throughput", x: own.map((point) => point.ranks), y: own.map((point) => point.speed),
      marker: { size: 9, symbol: shapes[i % shapes.length], color: palette[i % palette.length] }, line: { color: palette[i % palette.length], width: 1.5 },
      customdata: own.map((point) => [point.number, 100 * point.efficiency, plain(point.bound_by || "nothing known"), point.text]),
      hovertemplate: `<b>#%{customdata[0]}</b> on %{x} ranks<br>Throughput %{customdata[3]} ${view.unit}<br>Efficiency %{customdata[1]:.0f} %<br>Bound by %{customdata[2]}<extra></extra>` };
  });
  const fewest = ranks[0], base = Math.max(...view.points.filter((point) => point.ranks === fewest).map((point) => point.speed)) / fewest;
  const ideal = { type: "scatter", mode: "lines", name: "proportional to ranks", x: ranks, y: ranks.map((count) => base * count), line: { color: soft, dash: "dot", width: 1.4 }, hoverinfo: "skip" };
  const speeds = view.points.map((point) => point.speed);
  // One number of ranks is no curve; the table says it all.
  byId("scaling").hidden = ranks.length < 2;
  plot("scaling", ranks.length > 1 ? [ideal, ...all] : [], { xaxis: axis("Ranks", { type: "log", tickvals: ranks, ticktext: ranks.map(String) }),
    yaxis: axis(view.unit, logTicks(Math.min(...speeds), Math.max(...speeds, base * ranks[ranks.length - 1]))) });
  const last = view.points.filter((point) => point.ranks === ranks[ranks.length - 1]).reduce((a, b) => b.speed > a.speed ? b : a);
  describe("scaling", ranks.length < 2 ? `All configurations of this platform use ${fewest} ranks.` :
    `Efficiency is the throughput of each rank as a share of the best on ${fewest} ranks: ${(100 * last.efficiency).toFixed(0)} % on ${last.ranks}. A dash means not evaluated or not feasible.`);
}
if (data.scaling.length) {
  const select = byId("scaling-platform");
  data.scaling.forEach((view, i) => select.add(new Option(view.platform, String(i))));
  select.parentNode.hidden = data.scaling.length < 2;
  select.addEventListener("change", () => drawScaling(data.scaling[Number(select.value)]));
  drawScaling(data.scaling[0]);
  onPlot("scaling", "plotly_click", (event) => { if (event.points[0].customdata) choose(event.points[0].customdata[0]); });
}
