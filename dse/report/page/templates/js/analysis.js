// The study as a whole: how fast the front was found, which parameters mattered, and on what the
// recommended candidate depends.
const percent = (share, digits) => (share * 100).toFixed(digits);
function drawHypervolume(view) {
  plot("hypervolume", [{ type: "scatter", mode: "lines", x: [0, ...view.evaluations], y: [0, ...view.shares.map((share) => share * 100)],
    line: { color: palette[0], width: 2, shape: "hv" }, hovertemplate: "%{y:.1f} % of the final hypervolume<br>after %{x} evaluations<extra></extra>" }],
  { showlegend: false, xaxis: axis("Evaluations", { rangemode: "tozero" }), yaxis: axis("Final hypervolume (%)", { range: [0, 104] }) });
  asTable("hypervolume", ["Evaluation", "Share of the final hypervolume (%)"],
    () => view.evaluations.map((evaluation, i) => [evaluation, view.shares[i] * 100]));
}
function drawImportance(view, index) {
  const id = `importance-${index}`, count = view.parameters.length;
  byId(id).style.height = `${70 + 26 * count}px`;
  plot(id, [{ type: "bar", orientation: "h", x: view.shares.map((share) => share * 100), y: view.parameters.map((name) => plain(worded(name))), marker: { color: palette[0] },
    text: view.shares.map((share) => `${percent(share, 1)} %`), textposition: "outside", cliponaxis: false, hovertemplate: "%{y}: %{x:.1f} %<extra></extra>" }],
  { showlegend: false, margin: { l: 8, r: 46, t: 6, b: 40 }, xaxis: axis("Importance (%)", { rangemode: "tozero" }),
    yaxis: { autorange: "reversed", automargin: true, type: "category", fixedrange: coarse.matches } });
  describe(id, view.sentence);
  asTable(id, ["Parameter", "Importance (%)"], () => view.parameters.map((name, i) => [worded(name), view.shares[i] * 100]));
}
// Inputs that move by another share than the rest say so.
const stepped = (bar) => bar.steps.every((step) => Math.abs(Math.abs(step) - 0.1) < 0.0005) ? bar.name :
  `${bar.name} (${percent(bar.steps[0], 1)} / +${percent(bar.steps[1], 1)} %)`;
function drawTornado(view, index) {
  const chosenAxis = view.axes[index], moved = chosenAxis.bars.filter((bar) => bar.changes.some((change) => change !== 0));
  const still = chosenAxis.bars.filter((bar) => !moved.includes(bar)).map((bar) => bar.name);
  const value = (number) => number.toLocaleString("en-US", { maximumSignificantDigits: 4 });
  const widest = Math.max(0.001, ...moved.flatMap((bar) => bar.changes.map(Math.abs))) * 100;
  const side = (end, name, colour) => ({ type: "bar", orientation: "h", name, y: moved.map((bar) => plain(stepped(bar))),
    x: moved.map((bar) => bar.changes[end] * 100), marker: { color: colour },
    text: moved.map((bar) => value(bar.values[end])), textposition: "outside", cliponaxis: false,
    customdata: moved.map((bar) => [bar.steps[end] * 100, bar.fits[end] ? "" : "<br>does not fit the memory"]),
    hovertemplate: `%{y} %{customdata[0]:+.1f} %<br>${capital(plain(chosenAxis.noun))} %{text} ${plain(chosenAxis.unit)} (%{x:+.2f} %)%{customdata[1]}<extra></extra>` });
  const room = narrow("tornado") ? 1.9 : 1.35;
  byId("tornado").style.height = `${110 + 40 * Math.max(1, moved.length)}px`;
  plot("tornado", [side(0, "input lower", palette[1]), side(1, "input higher", palette[0])],
    { barmode: "overlay", margin: { l: 8, r: 20, t: 8, b: 52 }, bargap: 0.35,
      xaxis: axis(`Change of ${chosenAxis.noun} (%)`, { range: [-room * widest, room * widest], zerolinecolor: ink }),
      yaxis: { autorange: "reversed", automargin: true, type: "category", fixedrange: coarse.matches } });
  const first = moved[0];
  const leading = first ? `Largest effect: ${stepped(first)}, from ${value(first.values[0])} to ${value(first.values[1])} instead of ${value(chosenAxis.base)} ${chosenAxis.unit}. ` : "";
  const unmoved = still.length ? `No effect: ${still.join(", ")}. ` : "";
  const misfits = moved.filter((bar) => bar.fits.includes(false)).map((bar) => bar.name);
  const crowded = misfits.length ? `Does not fit the memory at one end: ${misfits.join(", ")}. ` : "";
  describe("tornado", `${chosenAxis.maximize ? "More" : "Less"} is better. ${leading}${unmoved}${crowded}`.trim());
  asTable("tornado", ["Input", "Lower (%)", "Value", "Change (%)", "Higher (%)", "Value", "Change (%)"], () => chosenAxis.bars.map((bar) =>
    [bar.name, bar.steps[0] * 100, bar.values[0], bar.changes[0] * 100, bar.steps[1] * 100, bar.values[1], bar.changes[1] * 100]));
}
{
  const { hypervolume, importance, tornado } = data.analysis;
  if (hypervolume.evaluations.length) drawHypervolume(hypervolume);
  importance.forEach((view, index) => { if (view.parameters.length) drawImportance(view, index); });
  if (tornado.axes.length) {
    const select = byId("tornado-axis");
    tornado.axes.forEach((one, index) => select.add(new Option(one.title, String(index))));
    select.addEventListener("change", () => drawTornado(tornado, Number(select.value)));
    drawTornado(tornado, 0);
  }
}
