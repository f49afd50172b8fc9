// Tables of configurations: sorting, pages, filters.
const columns = [
  { title: "#", numeric: true, of: (t) => t.number, text: (t) => t.number < 0 ? "as captured" : String(t.number) },
  ...data.axes.map((objective, i) => ({ title: objective.title, numeric: true, of: (t) => t.values[i] ?? null, text: (t) => show(objective, t.values[i]) })),
  ...(baseline && !data.axes.some((objective) => objective.title.startsWith("Speed-up")) ?
    [{ title: "Speed-up", numeric: true, of: (t) => t.speedup, text: (t) => t.speedup === null ? "–" : `${t.speedup.toFixed(3)} ×` }] : []),
  ...data.parameters.map((name, i) => ({ title: name.replaceAll("_", " "), numeric: false, of: (t) => t.parameters[i], text: (t) => String(t.parameters[i]) })),
];
const statusColumns = [{ title: "status", numeric: false, of: (t) => t.status, text: (t) => t.status + (t.front ? " ★" : "") },
  { title: "reason", numeric: false, wide: true, of: (t) => t.reason, text: (t) => t.reason }];
function makeTable(table, cols, rows, pageSize) {
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
      [...head.cells].forEach((c, i) => i === index ? c.setAttribute("aria-sort", state.up ? "ascending" : "descending") : c.removeAttribute("aria-sort"));
      draw();
    });
    th.appendChild(button);
    head.appendChild(th);
  });
  function draw() {
    const sorted = [...state.rows];
    if (state.column >= 0) {
      const key = cols[state.column].of;
      sorted.sort((a, b) => {
        const p = key(a), q = key(b);
        if (p === null || q === null) return p === q ? 0 : p === null ? 1 : -1;
        return (p < q ? -1 : p > q ? 1 : 0) * (state.up ? 1 : -1);
      });
    }
    const pages = Math.max(1, Math.ceil(sorted.length / pageSize));
    state.page = Math.min(state.page, pages - 1);
    body.replaceChildren();
    for (const trial of sorted.slice(state.page * pageSize, (state.page + 1) * pageSize)) {
      const row = body.insertRow();
      for (const column of cols) cell(row, column.text(trial), column.numeric, column.wide);
      if (details.has(trial.number)) {
        row.dataset.number = String(trial.number);
        row.tabIndex = 0;
        row.addEventListener("click", () => choose(trial.number));
        row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(trial.number); });
      }
    }
    mark();
    return { pages, count: sorted.length, page: state.page };
  }
  return { state, draw };
}
makeTable(byId("front-table"), columns, baseline ? [baseline, ...front] : front, 1000).draw();
const all = makeTable(byId("all-table"), [...columns, ...statusColumns], data.trials, 50);
function drawAll() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean), status = byId("status").value;
  all.state.rows = data.trials.filter((t) => (!status || t.status === status) &&
    words.every((word) => `${t.number} ${t.status} ${t.parameters.join(" ")} ${t.reason}`.toLowerCase().includes(word)));
  const { pages, count, page } = all.draw();
  byId("page").textContent = `${count} configurations, page ${page + 1} of ${pages}`;
}
byId("filter").addEventListener("input", () => { all.state.page = 0; drawAll(); });
byId("status").addEventListener("change", () => { all.state.page = 0; drawAll(); });
byId("previous").addEventListener("click", () => { all.state.page = Math.max(0, all.state.page - 1); drawAll(); });
byId("next").addEventListener("click", () => { all.state.page += 1; drawAll(); });
