// The first drawing, after all parts are there.
candidate.addEventListener("change", () => choose(Number(candidate.value)));
for (const select of [selectX, selectY]) select.addEventListener("change", drawScatter);
drawScatter();
onPlot("scatter", "plotly_click", (event) => choose(event.points[0].customdata));
drawAll();
if (current !== null) choose(current);
