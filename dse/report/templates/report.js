"use strict";
(() => {
  const data = JSON.parse(document.getElementById("payload").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#e7eaee" : "#1a1d21", line = dark ? "#343b44" : "#d9dee4";
  // Okabe-Ito colours: told apart by colour-blind readers; shapes differ as well.
  const palette = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"];
  const shapes = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "pentagon"];
  const partColours = { "Compute": "#0072b2", "Exposed communication": "#e69f00", "Host": "#999999", "Idle": dark ? "#3a424c" : "#e3e7ec" };
  const purposes = ["#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#d55e00"];
  const config = { responsive: true, displayModeBar: false };
  const details = new Map(data.details.map((detail) => [detail.number, detail]));
  let current = data.details.length ? data.details[0].number : null;
  const front = data.trials.filter((trial) => trial.front)
    .sort((a, b) => (a.values[0] - b.values[0]) * (data.axes[0].maximize ? -1 : 1));
  // The step as captured, for the table of the front and the plot; only studies of a trace have it.
  const baseline = data.baseline && { number: -1, status: "as captured", front: false, values: data.baseline, speedup: 1,
    parameters: data.parameters.map(() => "–"), reason: "" };
  const label = (number) => number < 0 ? "as captured" : `#${number}`;
  const byId = (id) => document.getElementById(id);
  // Plotly reads a few tags in labels, so text from files is escaped for it.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const show = (axis, value) => value === null || value === undefined ? "–" :
    value.toLocaleString("en-US", { minimumFractionDigits: axis.digits, maximumFractionDigits: axis.digits });
  const layout = (extra) => Object.assign({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
    margin: { l: 64, r: 16, t: 12, b: 48 }, legend: { orientation: "h", y: 1.12 }, hovermode: "closest",
  }, extra);
  const axis = (title, extra) => Object.assign({ title: { text: plain(title) }, gridcolor: line, zerolinecolor: line }, extra);

  function cell(row, text, numeric, wide) {
    const td = document.createElement("td");
    td.textContent = text;
    if (numeric) td.className = "n";
    if (wide && text) td.className = "wide";
    row.appendChild(td);
  }

  // ---- scatter -----------------------------------------------------------
  const selectX = byId("axis-x"), selectY = byId("axis-y");
  data.axes.forEach((objective, index) => {
    for (const select of [selectX, selectY]) select.add(new Option(objective.title, String(index)));
  });
  selectX.value = data.axes.length > 1 ? "1" : "0";
  selectY.value = "0";
  const hover = (trial) => `<b>${label(trial.number)}</b> ${trial.number < 0 ? "" : plain(trial.status)}<br>` +
    data.axes.map((objective, i) => `${plain(objective.title)}: ${show(objective, trial.values[i])}`).join("<br>") + "<br>" +
    data.parameters.map((name, i) => `${plain(name)}: ${plain(trial.parameters[i])}`).join("<br>");
  function points(trials, x, y, extra) {
    return Object.assign({
      type: "scatter", mode: "markers", x: trials.map((t) => t.values[x]), y: trials.map((t) => t.values[y]),
      customdata: trials.map((t) => t.number), text: trials.map(hover), hovertemplate: "%{text}<extra></extra>",
    }, extra);
  }
  function drawScatter() {
    const x = Number(selectX.value), y = Number(selectY.value);
    const evaluated = data.trials.filter((t) => t.values.length > 0);
    const traces = [points(evaluated.filter((t) => t.status === "infeasible"), x, y,
      { name: "not feasible", marker: { color: dark ? "#5b6470" : "#b9c0c8", size: 6, symbol: "x-thin-open" } })];
    const groups = [...new Set(evaluated.map((t) => t.group))].sort();
    groups.forEach((group, index) => {
      const mine = evaluated.filter((t) => t.group === group && t.status === "feasible");
      traces.push(points(mine, x, y, { name: plain(group), marker: {
        color: palette[index % palette.length], symbol: shapes[index % shapes.length],
        size: mine.map((t) => t.front ? 12 : 6), opacity: mine.map((t) => t.front ? 1 : 0.55),
        line: { color: ink, width: mine.map((t) => t.front ? 1.2 : 0) } } }));
    });
    if (baseline) traces.push(points([baseline], x, y, { name: "as captured", marker: { color: ink, size: 13, symbol: "x" } }));
    // The staircase joins the points of the front that no other beats in the two shown objectives.
    const best = nonDominated(front, x, y);
    traces.push({ type: "scatter", mode: "lines", name: "front in these two", x: best.map((t) => t.values[x]),
      y: best.map((t) => t.values[y]), line: { color: ink, width: 1, dash: "dot" }, hoverinfo: "skip" });
    Plotly.react("scatter", traces, layout({ xaxis: axis(data.axes[x].title, scaleOf(evaluated, x)),
      yaxis: axis(data.axes[y].title, scaleOf(evaluated, y)) }), config);
  }
  // Values that span more than one and a half decades are unreadable on a linear axis. What is far
  // from everything feasible is left outside until somebody zooms out.
  function scaleOf(trials, index) {
    const valuesOf = (some) => some.map((t) => t.values[index]).filter((value) => value !== null);
    const values = valuesOf(trials), low = Math.min(...values), high = Math.max(...values);
    if (low > 0 && high / low > 30) return { type: "log", dtick: "D2" };
    const feasible = valuesOf(trials.filter((t) => t.status === "feasible"));
    if (!feasible.length) return {};
    const from = Math.min(...feasible), to = Math.max(...feasible), room = Math.max(to - from, 0.1 * Math.abs(to));
    if (room <= 0 || (from - low <= 3 * room && high - to <= 3 * room)) return {};
    return { range: [Math.max(low, from - room) - 0.06 * room, Math.min(high, to + room) + 0.06 * room] };
  }
  function nonDominated(trials, x, y) {
    const sx = data.axes[x].maximize ? -1 : 1, sy = data.axes[y].maximize ? -1 : 1;
    return trials.filter((a) => !trials.some((b) =>
      sx * b.values[x] <= sx * a.values[x] && sy * b.values[y] <= sy * a.values[y] &&
      (b.values[x] !== a.values[x] || b.values[y] !== a.values[y]))).sort((a, b) => a.values[x] - b.values[x]);
  }

  // ---- tables ------------------------------------------------------------
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

  // ---- candidate ---------------------------------------------------------
  const candidate = byId("candidate");
  for (const detail of data.details) candidate.add(new Option(label(detail.number), String(detail.number)));
  function mark() {
    document.querySelectorAll("tr[data-number]").forEach((row) => row.classList.toggle("chosen", row.dataset.number === String(current)));
  }
  function stacked(id, titles, colours, ranks, rows, unit, extraTraces, shapes_) {
    const traces = titles.map((title, i) => ({ type: "bar", name: title, x: ranks, y: rows.map((row) => row[i]),
      marker: { color: colours[i] }, hovertemplate: `${data.rank_word.toLowerCase()} %{x}, ${title}: %{y} ${unit}<extra></extra>` }));
    Plotly.react(id, traces.concat(extraTraces), layout({ barmode: "stack", shapes: shapes_, bargap: 0.25, legend: { x: 1.01, y: 1, traceorder: "normal" },
      xaxis: axis(data.rank_word, { dtick: ranks.length > 16 ? 4 : 1 }), yaxis: axis(unit) }), config);
  }
  function choose(number) {
    const detail = details.get(number);
    if (!detail) return;
    current = number;
    candidate.value = String(number);
    const list = byId("summary");
    list.replaceChildren();
    for (const [label, text] of detail.summary) {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = label;
      dd.textContent = text;
      list.append(dt, dd);
    }
    stacked("breakdown", data.breakdown_parts, data.breakdown_parts.map((part) => partColours[part]), detail.ranks, detail.breakdown_ms.map((row) => row.map((part) => part / breakdownUnit(detail)[1])), breakdownUnit(detail)[0], [], []);
    if (byId("memory")) stacked("memory", data.memory_purposes, purposes, detail.ranks, detail.memory_gib, "GiB", [], [{ type: "line", xref: "paper", x0: 0, x1: 1,
      y0: detail.usable_gib, y1: detail.usable_gib, line: { color: ink, width: 1.5, dash: "dash" },
      label: { text: `usable ${detail.usable_gib} GiB`, textposition: "end", font: { color: ink } } }]);
    if (byId("heatmap")) drawPlan(detail);
    if (byId("changes-table")) drawChanges(detail);
    mark();
  }
  function breakdownUnit(detail) {
    const longest = Math.max(...detail.breakdown_ms.map((row) => row.reduce((sum, part) => sum + part, 0)));
    return longest >= 1000 ? ["s", 1000] : ["ms", 1];
  }
  function drawChanges(detail) {
    const body = byId("changes-table").tBodies[0], notes = byId("notes");
    body.replaceChildren();
    notes.replaceChildren();
    for (const change of detail.changes) {
      const row = body.insertRow();
      cell(row, change.title, false);
      for (const text of [change.tasks.toLocaleString("en-US"), change.before_ms.toFixed(3), change.after_ms.toFixed(3),
        change.after_ms > 0 ? `${(change.before_ms / change.after_ms).toFixed(3)} ×` : "–"]) cell(row, text, true);
    }
    if (!detail.changes.length) cell(body.insertRow(), "none: the step as captured", false);
    for (const note of detail.notes) {
      const item = document.createElement("li");
      item.textContent = note;
      notes.appendChild(item);
    }
  }
  function drawPlan(detail) {
    const ranks = detail.ranks;
    const share = detail.tables.map((table) => {
      const row = ranks.map(() => 0);
      const copies = table.kind === "data_parallel" ? 1 : 1 / table.ranks.length;
      for (const rank of table.ranks) row[rank] += copies;
      return row;
    });
    const few = detail.tables.length <= 80;
    byId("heatmap").style.height = `${Math.min(900, 110 + 18 * Math.min(44, detail.tables.length))}px`;
    Plotly.react("heatmap", [{ type: "heatmap", z: share, x: ranks, y: detail.tables.map((t) => plain(t.name)), xgap: 1, ygap: few ? 1 : 0,
      text: detail.tables.map((t) => ranks.map(() => plain(t.kind))), zmin: 0, zmax: 1,
      colorscale: [[0, dark ? "#1c2127" : "#f1f3f6"], [1e-6, dark ? "#27486b" : "#c9def2"], [1, "#0072b2"]], colorbar: { title: { text: "share" } },
      hovertemplate: "%{y} on rank %{x}: %{z:.3f} (%{text})<extra></extra>" }],
      layout({ margin: { l: 110, r: 16, t: 8, b: 40 }, xaxis: axis("Rank", { dtick: ranks.length > 16 ? 4 : 1 }), yaxis: { autorange: "reversed", automargin: true } }), config);
    const body = byId("plan-table").tBodies[0];
    body.replaceChildren();
    for (const table of detail.tables) {
      const row = body.insertRow();
      for (const text of [table.name, table.kind, table.kernel, table.ranks.join(", ")]) cell(row, text, false);
    }
  }
  function drawValidation(validation) {
    const rows = validation.rows, all = rows.flatMap((row) => [...row.predicted, ...row.measured]).filter((value) => value !== null);
    const ends = [Math.min(...all), Math.max(...all)];
    const bars = (values) => ({ type: "data", symmetric: false, color: line, array: values.map((v) => v[2] === null ? 0 : v[2] - v[1]), arrayminus: values.map((v) => v[0] === null ? 0 : v[1] - v[0]) });
    Plotly.react("validation", [
      { type: "scatter", mode: "lines", name: "the same", x: ends, y: ends, line: { color: ink, width: 1, dash: "dot" }, hoverinfo: "skip" },
      { type: "scatter", mode: "markers+text", name: "candidates", x: rows.map((row) => row.predicted[1]), y: rows.map((row) => row.measured[1]),
        error_x: bars(rows.map((row) => row.predicted)), error_y: bars(rows.map((row) => row.measured)),
        text: rows.map((row) => `#${row.number}`), textposition: "top right", marker: { color: rows.map((row) => row.inside ? palette[2] : palette[5]), symbol: rows.map((row) => row.inside ? "circle" : "diamond"), size: 10 },
        customdata: rows.map((row) => [row.number, row.error_percent, plain(row.note)]), hovertemplate: "<b>#%{customdata[0]}</b> predicted %{x} ms, measured %{y} ms (%{customdata[1]} %)<br>%{customdata[2]}<extra></extra>" },
    ], layout({ showlegend: false, xaxis: axis("predicted (ms)"), yaxis: axis("measured (ms)") }), config);
  }
  if (data.validation) drawValidation(data.validation);
  candidate.addEventListener("change", () => choose(Number(candidate.value)));
  for (const select of [selectX, selectY]) select.addEventListener("change", drawScatter);
  drawScatter();
  byId("scatter").on("plotly_click", (event) => choose(event.points[0].customdata));
  drawAll();
  if (current !== null) choose(current);
})();
