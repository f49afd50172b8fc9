// Predicted against measured.
function drawValidation(validation) {
  const rows = validation.rows, all = rows.flatMap((row) => [...row.predicted, ...row.measured]).filter((value) => value !== null);
  const ends = [Math.min(...all), Math.max(...all)];
  const bars = (values) => ({ type: "data", symmetric: false, color: soft, array: values.map((v) => v[2] === null ? 0 : v[2] - v[1]), arrayminus: values.map((v) => v[0] === null ? 0 : v[1] - v[0]) });
  plot("validation", [
    { type: "scatter", mode: "lines", name: "predicted as measured", x: ends, y: ends, showlegend: false, line: { color: ink, width: 1, dash: "dot" }, hoverinfo: "skip" },
    { type: "scatter", mode: "markers+text", showlegend: false, x: rows.map((row) => row.predicted[1]), y: rows.map((row) => row.measured[1]),
      error_x: bars(rows.map((row) => row.predicted)), error_y: bars(rows.map((row) => row.measured)),
      text: rows.map((row) => `#${row.number}`), textposition: "top right", marker: { color: rows.map((row) => row.inside ? palette[2] : palette[5]), symbol: rows.map((row) => row.inside ? "circle" : "diamond"), size: 10 },
      customdata: rows.map((row) => [row.number, plain(row.error), plain(row.note)]), hovertemplate: "<b>#%{customdata[0]}</b><br>Predicted %{x} ms, measured %{y} ms (%{customdata[1]})<br>%{customdata[2]}<extra></extra>" },
  ], { xaxis: axis("Predicted (ms)"), yaxis: axis("Measured (ms)") });
}
if (data.validation) drawValidation(data.validation);
