// Light or dark, and paper.
const themeButton = byId("theme");
const themes = ["", "light", "dark"];
function showTheme() {
  dress();
  themeButton.textContent = `Theme: ${recall("theme") || "system"}`;
  if (dark === isDark()) return;
  dark = isDark();
  redrawAll();
}
themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  remember("theme", themes[(themes.indexOf(recall("theme")) + 1) % themes.length]);
  showTheme();
});
night.addEventListener("change", showTheme);
showTheme();
// Paper is light and has one width, and shows plots that nobody has scrolled to. Printing waits for
// no promise, so plots are drawn at once. What is folded away stays away.
const paperWidth = 700, paperHeight = 300;
const isShown = (id) => byId(id).offsetParent !== null;
window.addEventListener("beforeprint", () => {
  dark = false;
  unrollPlan(true);
  for (const id of plots.keys()) {
    drawLegend(id);
    if (isShown(id)) render(id, { width: paperWidth, height: Math.min(byId(id).clientHeight, byId(id).classList.contains("tall") ? paperHeight : Infinity), autosize: false });
  }
});
window.addEventListener("afterprint", () => {
  dark = isDark();
  unrollPlan(false);
  // A plot keeps the width it had on paper until it is told to measure its place again.
  for (const id of plots.keys()) {
    drawLegend(id);
    if (!byId(id).classList.contains("js-plotly-plot")) continue;
    render(id, { autosize: true });
    if (isShown(id)) Plotly.Plots.resize(id);
  }
});
