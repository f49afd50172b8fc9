// The first drawing, after all parts are there.
candidate.addEventListener("change", () => choose(Number(candidate.value)));
for (const button of document.querySelectorAll("button[data-choose]")) {
  button.addEventListener("click", () => {
    choose(Number(button.dataset.choose));
    byId("h-detail").scrollIntoView();
  });
}
for (const select of [selectX, selectY]) select.addEventListener("change", drawScatter);
drawScatter();
onPlot("scatter", "plotly_click", (event) => choose(event.points[0].customdata));
restoreAll();
if (details.has(Number(recall("candidate") || NaN))) current = Number(recall("candidate"));
if (current !== null) choose(current);
onChoose.push((detail) => remember("candidate", detail.number));
window.addEventListener("hashchange", () => {
  if (!location.hash.includes("=")) return;
  chosen = readAddress();
  showTheme();
  restoreAll();
  const number = Number(recall("candidate") || NaN);
  if (details.has(number) && number !== current) choose(number);
});
// The page says that it is there once its tables and its first plot are.
const firstPlot = [...document.querySelectorAll(".plot")].find((element) => plots.has(element.id));
if (firstPlot) await (plots.get(firstPlot.id).stale ? drawPlot(firstPlot.id) : plots.get(firstPlot.id).drawn);
document.documentElement.dataset.ready = "1";
