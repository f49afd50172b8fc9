// Two candidates side by side: what differs, and by how much.
const sides = [byId("side-a"), byId("side-b")].filter(Boolean);
const figuresOf = new Map(data.figures.values);
const trialOf = new Map(data.trials.map((trial) => [trial.number, trial]));
for (const side of sides) for (const detail of data.details) side.add(new Option(label(detail.number) + (detail.number === data.front.recommended ? " (recommended)" : ""), String(detail.number)));
const slowestOf = (detail) => {
  const busy = computeOf(detail);
  return busy.indexOf(Math.max(...busy));
};
// A share of a share would be misread, so shares differ by points.
function difference(a, b, unit) {
  if (a === null || b === null || (a === 0 && unit !== "%")) return "–";
  if (unit === "%") return `${b > a ? "+" : "−"}${Math.abs(b - a).toFixed(1)} points`;
  return `${b > a ? "+" : "−"}${Math.abs(100 * (b / a - 1)).toFixed(1)} %`;
}
function movedTables(a, b) {
  const words = (table) => `${table.kind} ${table.kernel} ${table.ranks}`, before = new Map(a.tables.map((table) => [table.name, words(table)]));
  return b.tables.filter((table) => before.get(table.name) !== words(table)).length;
}
function drawSides() {
  const [a, b] = sides.map((side) => details.get(Number(side.value))), body = byId("sides-table").tBodies[0];
  if (!a || !b) return;
  body.replaceChildren();
  // What is equal is named in a line under the table.
  const equal = [];
  const put = (title, ...texts) => {
    const row = body.insertRow();
    cell(row, title, false);
    for (const text of texts) cell(row, text, true);
  };
  byId("sides-head").cells[1].textContent = label(a.number);
  byId("sides-head").cells[2].textContent = label(b.number);
  data.figures.figures.forEach((figure, i) => {
    const [first, second] = [a, b].map((one) => figuresOf.get(one.number)?.[i] ?? null);
    if (first !== second) put(figure.title, show(figure, first), show(figure, second), difference(first, second, figure.unit));
    else if (first !== null) equal.push(`${figure.noun} ${amount(figure, first)}`);
  });
  const [left, right] = [a, b].map((one) => trialOf.get(one.number) ?? baseline);
  data.parameters.forEach((name, i) => {
    const [first, second] = [left, right].map((trial) => trial.parameters[i]), numbers = typeof first === "number" && typeof second === "number";
    if (first !== second) put(capital(worded(name)), spelled(first), spelled(second), numbers ? difference(first, second) : "different");
    else if (first !== "") equal.push(named(i, left));
  });
  if (a.tables.length) {
    const moved = movedTables(a, b);
    if (moved) put("Tables placed differently", "", "", `${moved} of ${b.tables.length}`);
    else equal.push("placement of all tables");
  }
  byId("sides-equal").textContent = equal.length ? `Equal: ${equal.join(", ")}.` : "";
  if (!byId("sides")) return;
  const rows = [a, b].map((one) => one.breakdown_ms[slowestOf(one)]), totals = rows.map((row) => row.reduce((sum, part) => sum + part, 0));
  const [unit, factor] = Math.max(...totals) >= 1000 ? ["s", 1000] : ["ms", 1], word = data.rank_word.toLowerCase();
  const names = [a, b].map((one, i) => `${"AB"[i]}: ${label(one.number)}, ${word} ${one.ranks[slowestOf(one)]}`);
  plot("sides", data.breakdown_parts.map((part, i) => ({ type: "bar", orientation: "h", name: part, y: names, x: rows.map((row) => row[i] / factor), marker: { color: partColours[part] },
    hovertemplate: `%{y}, ${part}: %{x:.4g} ${unit}<extra></extra>` })), { barmode: "stack", bargap: 0.35, margin: { l: 8, r: 16, t: 8, b: 48 },
    xaxis: axis(unit), yaxis: { autorange: "reversed", automargin: true, fixedrange: coarse.matches } });
  describe("sides", a === b ? "The same configuration twice." : totals[0] === totals[1] ? "Both iterations take equally long." :
    `An iteration of ${label(b.number)} is ${difference(totals[0], totals[1]).replace("+", "").replace("−", "")} ${totals[1] > totals[0] ? "longer" : "shorter"} than one of ${label(a.number)}; bars are the ${word} of each that computes longest.`);
}
if (data.details.length) {
  const numbers = data.details.map((detail) => detail.number), first = data.front.recommended ?? numbers[0];
  sides[0].value = String(first);
  sides[1].value = String(data.front.second ?? numbers.find((number) => number !== first) ?? first);
  for (const side of sides) side.addEventListener("change", drawSides);
  drawSides();
}
