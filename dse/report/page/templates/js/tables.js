// Tables of configurations: sorting, pages, filters, keys.
const columns = [
  { title: "#", numeric: true, of: (t) => t.number, text: (t) => t.number < 0 ? "as captured" : String(t.number) },
  ...data.axes.map((objective, i) => ({ title: objective.title, numeric: true, of: (t) => t.values[i] ?? null, text: (t) => show(objective, t.values[i]) })),
  ...(baseline && !data.axes.some((objective) => objective.title.startsWith("Speed-up")) ?
    [{ title: "Speed-up", numeric: true, of: (t) => t.speedup, text: (t) => t.speedup === null ? "–" : `${t.speedup.toFixed(3)} ×` }] : []),
];
const parameterColumns = (indices) => indices.map((i) => ({ title: capital(worded(data.parameters[i])), numeric: false, of: (t) => t.parameters[i], text: (t) => spelled(t.parameters[i]) }));
const statusColumns = [{ title: "Status", numeric: false, of: (t) => t.status, text: (t) => t.status + (t.front ? " ★" : "") },
  { title: "Reason", numeric: false, wide: true, of: (t) => t.reason, text: (t) => t.reason }];
// Numbers come before texts, what is missing last in both directions.
function compare(a, b) {
  const p = a ?? null, q = b ?? null;
  if (p === null || q === null) return p === q ? 0 : p === null ? Infinity : -Infinity;
  if (typeof p !== typeof q) return typeof p === "number" ? -1 : 1;
  return p < q ? -1 : p > q ? 1 : 0;
}
function makeTable(table, cols, rows, pageSize, changed) {
  const state = { column: -1, up: true, page: 0, rows };
  const head = table.tHead.insertRow(), body = table.tBodies[0];
  cols.forEach((column, index) => {
    const th = document.createElement("th"), button = document.createElement("button");
    th.scope = "col";
    if (column.numeric) th.className = "n";
    button.type = "button";
    button.textContent = column.title;
    button.addEventListener("click", () => {
      state.up = state.column === index ? !state.up : true;
      state.column = index;
      state.page = 0;
      changed();
    });
    th.appendChild(button);
    head.appendChild(th);
  });
  // One row takes part in the order of the Tab key; the arrows go on from there.
  function reach(row, focus) {
    for (const other of body.rows) other.tabIndex = other === row ? 0 : -1;
    if (focus) row.focus();
  }
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr"), list = [...body.rows], at = list.indexOf(row);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: list.length - 1 }[event.key];
    if (next !== undefined && list[next]) reach(list[next], true);
    else if (event.key === "Enter" || event.key === " ") choose(Number(row.dataset.trial));
    else return;
    event.preventDefault();
  });
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (!row || row.parentNode !== body) return;
    reach(row, false);
    choose(Number(row.dataset.trial));
  });
  function draw() {
    const sorted = [...state.rows];
    if (state.column >= 0) {
      const key = cols[state.column].of, sign = state.up ? 1 : -1;
      sorted.sort((a, b) => {
        const order = compare(key(a), key(b));
        return Number.isFinite(order) ? sign * order : order;
      });
    }
    [...head.cells].forEach((c, i) => c.setAttribute("aria-sort", i !== state.column ? "none" : state.up ? "ascending" : "descending"));
    const pages = Math.max(1, Math.ceil(sorted.length / pageSize));
    state.page = Math.max(0, Math.min(state.page, pages - 1));
    body.replaceChildren();
    for (const trial of sorted.slice(state.page * pageSize, (state.page + 1) * pageSize)) {
      const row = body.insertRow();
      for (const column of cols) cell(row, column.text(trial), column.numeric, column.wide);
      row.dataset.trial = String(trial.number);
      if (details.has(trial.number)) row.dataset.number = row.dataset.trial;
    }
    table.setAttribute("aria-rowcount", String(sorted.length + 1));
    const first = [...body.rows].find((row) => row.dataset.number === String(current)) ?? body.rows[0];
    if (first) reach(first, false);
    mark();
    markCurrent();
    return { pages, count: sorted.length, page: state.page };
  }
  return { state, draw };
}
// What was chosen, in words, beside what was clicked; the sections below show it.
function tell(text, linked) {
  for (const said of document.querySelectorAll(".said")) {
    const link = document.createElement("a");
    link.href = "#h-detail";
    link.textContent = "Go to its details";
    said.replaceChildren(text, ...(linked ? [" ", link] : []));
  }
}
function markCurrent() {
  for (const row of document.querySelectorAll("tr[data-trial]")) {
    if (row.dataset.number === String(current)) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}
onChoose.push(markCurrent);
const boundColumn = data.bound_by.length ? [{ title: "Bound by", numeric: false, of: (t) => boundBy.get(t.number) ?? "", text: (t) => boundBy.get(t.number) ?? "" }] : [];
const equalTo = new Map(data.equal), ofFront = varying(baseline ? [baseline, ...front] : front);
const equalColumn = data.equal.length ? [{ title: "Equal configurations", numeric: false, of: (t) => equalTo.get(t.number) ?? "", text: (t) => equalTo.get(t.number) ?? "" }] : [];
const frontRows = makeTable(byId("front-table"), [...columns, ...boundColumn, ...parameterColumns(ofFront), ...equalColumn], baseline ? [baseline, ...front] : front, 1000, () => frontRows.draw());
frontRows.draw();
byId("front-common").textContent = constant(front, ofFront);
byId("all-common").textContent = constant(data.trials, shownParameters);
// The table of all trials. Each parameter that takes a few values has a list of them.
const allColumns = [...columns, ...parameterColumns(shownParameters), ...statusColumns];
const all = makeTable(byId("all-table"), allColumns, data.trials, 50, () => drawAll());
const filters = new Map();
const fewValues = 40;
data.parameters.forEach((name, i) => {
  const values = [...new Set(data.trials.map((t) => t.parameters[i]))].sort(compare);
  if (values.length < 2 || values.length > fewValues) return;
  const box = document.createElement("label"), select = document.createElement("select");
  select.dataset.parameter = name;
  select.add(new Option("all", ""));
  for (const value of values) select.add(new Option(spelled(value), String(value)));
  box.append(`${capital(worded(name))} `, select);
  byId("parameter-filters").append(box);
  filters.set(`p.${name}`, [select, (t) => String(t.parameters[i])]);
});
byId("parameter-box").hidden = filters.size === 0;
filters.set("status", [byId("status"), (t) => t.status]);
let texts = null;
function drawAll() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  // Built when somebody types, not when the page opens.
  if (words.length) texts ??= new Map(data.trials.map((t) => [t, `${t.number} ${t.status} ${t.parameters.join(" ")} ${t.parameters.map(spelled).join(" ")} ${t.reason}`.toLowerCase()]));
  const wanted = [...filters.values()].filter(([select]) => select.selectedIndex > 0);
  all.state.rows = data.trials.filter((t) => wanted.every(([select, of]) => of(t) === select.value) && words.every((word) => texts.get(t).includes(word)));
  const { pages, count, page } = all.draw();
  const total = data.trials.length.toLocaleString("en-US");
  byId("page").textContent = `${count === data.trials.length ? total : `${count.toLocaleString("en-US")} of ${total}`} configurations, page ${page + 1} of ${pages}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page + 1 >= pages;
  byId("clear").disabled = !words.length && !wanted.length;
  for (const [key, [select]] of filters) remember(key, select.selectedIndex > 0 ? select.value : "");
  remember("filter", byId("filter").value);
  remember("sort", all.state.column < 0 ? "" : `${allColumns[all.state.column].title}:${all.state.up ? "up" : "down"}`);
  remember("page", page ? page + 1 : "");
}
// Takes over what the address says; what it names and the page does not have is left out.
function restoreAll() {
  byId("filter").value = recall("filter");
  for (const [key, [select]] of filters) {
    select.selectedIndex = Math.max(0, [...select.options].findIndex((option) => option.value === recall(key)));
  }
  const sort = recall("sort"), cut = sort.lastIndexOf(":");
  all.state.column = allColumns.findIndex((column) => column.title === sort.slice(0, Math.max(0, cut)));
  all.state.up = sort.slice(cut + 1) !== "down";
  all.state.page = (Number.parseInt(recall("page"), 10) || 1) - 1;
  byId("parameter-box").open = [...filters].some(([key, [select]]) => key !== "status" && select.selectedIndex > 0);
  drawAll();
}
function filterAnew() {
  all.state.page = 0;
  drawAll();
}
byId("filter").addEventListener("input", filterAnew);
for (const [select] of filters.values()) select.addEventListener("change", filterAnew);
byId("clear").addEventListener("click", () => {
  byId("filter").value = "";
  for (const [select] of filters.values()) select.selectedIndex = 0;
  filterAnew();
  byId("filter").focus();
});
byId("previous").addEventListener("click", () => { all.state.page -= 1; drawAll(); });
byId("next").addEventListener("click", () => { all.state.page += 1; drawAll(); });
