// Two candidates side by side: what differs, and by how much.
const sides = [byId("side-a"), byId("side-b")].filter(Boolean);
const figuresOf = new Map(data.figures.values);
const trialOf = new Map(data.trials.map((trial) => [trial.number, trial]));
for (const side of sides) for (const detail of data.details) side.add(new Option(label(detail.number) + (detail.number === data.front.recommended ? " (recommended)" : ""), String(detail.number)));
const slowestOf = (detail) => {
  const busy = computeOf(detail);
  return busy.indexOf(Math.max(...busy));
};
function difference(a, b) {
  if (a === null || b === null || a === undefined || b === undefined) return "–";
  if (a === b) return "equal";
  return a === 0 ? "–" : `${b > a ? "+" : "−"}${Math.abs(100 * (b / a - 1)).toFixed(1)} %`;
}
function movedTables(a, b) {
  const words = (table) => `${table.kind} ${table.kernel} ${table.ranks}`, before = new Map(a.tables.map((table) => [table.name, words(table)]));
  return b.tables.filter((table) => before.get(table.name) !== words(table)).length;
}
function drawSides() {
  const [a, b] = sides.map((side) => details.get(Number(side.value))), body = byId("sides-table").tBodies[0];
  if (!a || !b) return;
  body.replaceChildren();
  const line_ = (title, first, second, apart, same, numeric) => {
    const row = body.insertRow();
    if (same) row.className = "same";
    cell(row, title, false);
    for (const text of [first, second, apart]) cell(row, text, numeric);
  };
  byId("sides-head").cells[1].textContent = label(a.number);
  byId("sides-head").cells[2].textContent = label(b.number);
  data.figures.figures.forEach((figure, i) => {
    const [first, second] = [a, b].map((one) => figuresOf.get(one.number)?.[i]);
    if (first === undefined && second === undefined || first === null && second === null) return;
    line_(figure.title, show(figure, first), show(figure, second), difference(first, second), first === second, true);
  });
  const [left, right] = [a, b].map((one) => trialOf.get(one.number) ?? baseline);
  data.parameters.forEach((name, i) => {
    const [first, second] = [left, right].map((trial) => trial.parameters[i]), numbers = typeof first === "number" && typeof second === "number";
    line_(name.replaceAll("_", " "), String(first), String(second), first === second ? "equal" : numbers ? difference(first, second) : "different", first === second, true);
  });
  if (a.tables.length) {
    const moved = movedTables(a, b);
    line_("Tables placed differently", "", "", moved ? `${moved} of ${b.tables.length}` : "none", !moved, true);
  }
  if (!byId("sides")) return;
  const rows = [a, b].map((one) => one.breakdown_ms[slowestOf(one)]), totals = rows.map((row) => row.reduce((sum, part) => sum + part, 0));
  const [unit, factor] = Math.max(...totals) >= 1000 ? ["s", 1000] : ["ms", 1], word = data.rank_word.toLowerCase();
  const names = [a, b].map((one, i) => `${"AB"[i]}: ${label(one.number)}, ${word} ${one.ranks[slowestOf(one)]}`);
  plot("sides", data.breakdown_parts.map((part, i) => ({ type: "bar", orientation: "h", name: part, y: names, x: rows.map((row) => row[i] / factor), marker: { color: partColours[part] },
    hovertemplate: `%{y}, ${part}: %{x:.4g} ${unit}<extra></extra>` })), { barmode: "stack", bargap: 0.35, margin: { l: 150, r: 16, t: 30, b: 44 },
    legend: { orientation: "h", y: 1, yanchor: "bottom", traceorder: "normal" }, xaxis: axis(unit), yaxis: { autorange: "reversed" } });
  describe("sides", a === b ? "The same configuration twice." : totals[0] === totals[1] ? "Both take equally long." :
    `An iteration of ${label(b.number)} is ${difference(totals[0], totals[1]).replace("+", "").replace("−", "")} ${totals[1] > totals[0] ? "longer" : "shorter"} than one of ${label(a.number)}; bars are the ${word} of each that computes longest.`);
}
if (data.details.length) {
  const numbers = data.details.map((detail) => detail.number), first = data.front.recommended ?? numbers[0];
  sides[0].value = String(first);
  sides[1].value = String(data.front.second ?? numbers.find((number) => number !== first) ?? first);
  for (const side of sides) side.addEventListener("change", drawSides);
  drawSides();
}
