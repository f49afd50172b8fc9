// Light or dark, and paper.
const themeButton = byId("theme");
const themes = ["", "light", "dark"];
function showTheme() {
  dress();
  themeButton.textContent = `Theme: ${recall("theme") || "as the system"}`;
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
// Paper is light and narrow, and shows plots that nobody has scrolled to. Printing waits for no
// promise, so plots are drawn at once. What is folded away stays away.
const paperWidth = 680;
window.addEventListener("beforeprint", () => {
  dark = false;
  unrollPlan(true);
  for (const id of plots.keys()) {
    if (window.Plotly && byId(id).offsetParent) render(id, { width: Math.min(paperWidth, byId(id).clientWidth), height: byId(id).clientHeight, autosize: false });
  }
});
window.addEventListener("afterprint", () => {
  dark = isDark();
  unrollPlan(false);
  // A plot keeps the width it had on paper until it is told to measure its place again.
  for (const id of plots.keys()) if (byId(id).classList.contains("js-plotly-plot")) render(id, { autosize: true });
  for (const id of plots.keys()) if (byId(id).classList.contains("js-plotly-plot") && byId(id).offsetParent) Plotly.Plots.resize(id);
});
// Plotly is needed on paper even where no plot has come into view.
if (window.requestIdleCallback) window.requestIdleCallback(() => plotlyReady());
