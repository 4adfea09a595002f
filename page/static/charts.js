"use strict";
// Curves by Plotly. Each function draws into one element; without Plotly all stay hidden.
const charts = (() => {
  const MANY = 12; // sites; beyond it, a band and the chosen site's line
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const palette = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const resized = new ResizeObserver(boxes => boxes.forEach(({target}) => { if (target.data && !target.hidden) Plotly.Plots.resize(target); }));

  function draw(id, traces, layout, described) {
    const box = document.getElementById(id);
    box.hidden = !window.Plotly || !traces.length;
    if (box.hidden) return;
    const axis = {gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true,
      ticks: "outside", ticklen: 6, tickcolor: "rgba(0,0,0,0)"};
    const narrow = box.clientWidth < 480;
    const base = {
      font: {family: "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif", size: narrow ? 11 : 13, color: colour("ink")},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", dragmode: false,
      margin: {l: 50, r: 26, t: 34, b: 46}, uirevision: "kept",
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)"},
    };
    const {xaxis, yaxis, ...rest} = layout;
    const whole = {...base, ...rest, xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}};
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", described);
    Plotly.react(box, traces, whole, {displayModeBar: false});
    resized.observe(box);
  }

  const title = text => ({title: {text, standoff: 8}});
  const line = (x, y, name, more = {}) => ({x, y, name, type: "scatter", mode: x.length < 40 ? "lines+markers" : "lines",
    marker: {size: 5}, ...more});

  function quantiles(columns, part) { // of several curves, point by point
    return columns[0].map((_, place) => {
      const values = columns.map(one => one[place]).filter(value => value !== null && value !== undefined).sort((a, b) => a - b);
      return values.length ? values[Math.round(part * (values.length - 1))] : null;
    });
  }

  // Pooled curve thick, single sites thin; for many sites a band and the chosen one.
  function learning(id, curve, name, sites, chosen, what, best) {
    const pooled = curve && curve.y[`${name}:pooled`];
    const x = curve ? curve.x : [], traces = [];
    if (!pooled || pooled.every(value => value === null)) return draw(id, [], {}, "");
    const own = sites.filter(site => curve.y[`${name}:${site}`]);
    const shown = chosen ? own.filter(site => site === chosen) : own.length <= MANY ? own : [];
    if (own.length > MANY) {
      const columns = own.map(site => curve.y[`${name}:${site}`]), hidden = {mode: "lines", line: {width: 0}, hoverinfo: "skip"};
      traces.push(line(x, quantiles(columns, 0.1), "", {...hidden, showlegend: false}));
      traces.push(line(x, quantiles(columns, 0.9), "8 of 10 sites", {...hidden, fill: "tonexty", fillcolor: colour("line")}));
    }
    shown.forEach((site, place) => traces.push(line(x, curve.y[`${name}:${site}`], site, {
      mode: "lines", showlegend: shown.length === 1, line: {width: 1.2, color: colour(chosen ? "orange" : "grey"), dash: dashes[chosen ? 1 : place % 6]}})));
    traces.push(line(x, pooled, "all together", {line: {width: 2.6, color: colour("blue")}}));
    if (best !== null && best <= x[x.length - 1]) {
      const place = x.findIndex(end => end >= best);
      traces.push({x: [best], y: [pooled[place]], name: `best, epoch ${best}`, mode: "markers", type: "scatter",
        marker: {symbol: "star", size: 14, color: colour("orange")}});
    }
    draw(id, traces, {xaxis: title("epoch"), yaxis: title(what)}, `${what} by epoch, now ${pooled[pooled.length - 1]}`);
  }

  function steps(id, curve, sites, chosen) {
    const traces = [];
    if (curve && curve.x.length > 1) {
      if (chosen && curve.y[`loss:${chosen}`])
        traces.push(line(curve.x, curve.y[`loss:${chosen}`], chosen, {mode: "lines", line: {width: 1.2, color: colour("orange"), dash: "dash"}}));
      traces.push(line(curve.x, curve.y.loss, "all together", {mode: "lines", line: {width: 2, color: colour("blue")}}));
    }
    draw(id, traces, {xaxis: title("step"), yaxis: title("training loss")}, "training loss by step");
  }

  function times(id, sites, times) {
    const known = sites.filter(site => times[site]), traces = [];
    const reduction = times[""] ? times[""][0] : 0;
    if (known.length) ["computing", "on the wire", "waiting for others"].forEach((name, part) => traces.push({
      type: "bar", orientation: "h", name, y: known, x: known.map(site => 1000 * times[site][part]),
      marker: {color: [colour("blue"), colour("green"), colour("grey")][part]}, hovertemplate: `%{x:.3g} ms ${name}<extra>%{y}</extra>`}));
    if (known.length) traces.push({type: "bar", orientation: "h", name: "reduction at the aggregator", y: known,
      x: known.map(() => 1000 * reduction), marker: {color: colour("orange")}, hovertemplate: "%{x:.3g} ms<extra>reduction</extra>"});
    const box = document.getElementById(id);
    box.style.height = `${Math.max(240, 130 + 19 * known.length)}px`;
    const yaxis = {autorange: "reversed", type: "category", tickmode: "linear", showgrid: false};
    draw(id, traces, {barmode: "stack", xaxis: title("milliseconds of a step"), yaxis},
      "time of a step by site; the table has the same figures");
  }

  function ranks(id, curve, layers) {
    const known = curve ? layers.filter(layer => curve.y[`rank:${layer}`]) : [];
    const x = curve ? curve.x : [];
    if (known.length > 8) {
      const heat = {type: "heatmap", x, y: known, z: known.map(layer => curve.y[`rank:${layer}`]), colorscale: "Viridis",
        colorbar: {thickness: 12, title: {text: "rank"}}};
      return draw(id, [heat], {xaxis: title("step"), yaxis: {type: "category", autorange: "reversed"}}, "effective rank by layer and step");
    }
    const traces = known.map((layer, place) => line(x, curve.y[`rank:${layer}`], layer,
      {mode: "lines", line: {width: 2, color: palette[place % 6], dash: dashes[place % 6]}}));
    draw(id, traces, {xaxis: title("step"), yaxis: {...title("effective rank"), rangemode: "tozero"}, showlegend: true}, "effective rank by layer and step");
  }

  function spectrum(id, when, curve, layer) {
    const traces = [];
    if (curve && curve.x.length) {
      const x = when.y.step, names = Object.keys(curve.y).filter(name => curve.y[name].some(value => value > 0)).sort((a, b) => a - b);
      names.forEach((name, place) => traces.push(line(x, curve.y[name].map(value => value > 0 ? value : null), name,
        {line: {width: 1.6, color: palette[place % 6], dash: dashes[Math.floor(place / 6) % 6]}})));
    }
    draw(id, traces, {xaxis: title("step"), yaxis: {...title("singular value"), type: "log", nticks: 3}, showlegend: true},
      `leading singular values of ${layer} by step`);
  }

  return {learning, steps, times, ranks, spectrum};
})();
