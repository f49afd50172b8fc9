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
onChoose.push((detail) => {
  remember("candidate", detail.number);
  tell(`${label(detail.number)} is now the candidate.`, true);
});
window.addEventListener("hashchange", () => {
  if (!location.hash.includes("=")) return;
  chosen = readAddress();
  showTheme();
  restoreAll();
  const number = Number(recall("candidate") || NaN);
  if (details.has(number) && number !== current) choose(number);
});
// Links within the page must not replace what the address keeps.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  const target = document.getElementById(link.getAttribute("href").slice(1));
  target.tabIndex = -1;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
});
// The contents mark the section that is being read.
{
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const heads = [...links.keys()].map(byId), bar = document.querySelector("nav");
  let now = null, asked = false;
  const follow = () => {
    asked = false;
    const atEnd = scrollY > 0 && scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    const last = heads.filter((head) => atEnd || head.getBoundingClientRect().top < innerHeight / 3).at(-1) ?? null;
    if (last === now) return;
    if (now) links.get(now.id).removeAttribute("aria-current");
    now = last;
    const link = now && links.get(now.id);
    link?.setAttribute("aria-current", "true");
    bar.scrollLeft = link ? link.offsetLeft - bar.clientWidth / 2 : 0;
  };
  window.addEventListener("scroll", () => { if (!asked) { asked = true; requestAnimationFrame(follow); } }, { passive: true });
  follow();
}
// The page says that it is there once its tables have been painted and its first plot is drawn.
setTimeout(() => {
  const first = [...document.querySelectorAll(".plot")].find((element) => plots.has(element.id));
  if (first && plots.get(first.id).stale) render(first.id);
  document.documentElement.dataset.ready = "1";
});
