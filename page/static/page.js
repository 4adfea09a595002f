"use strict";
// Stores the server's document and shows it. All texts are inserted as text, never as markup.
(() => {
  const {at, say, number, count, bytes, lasting, link, now, clock, ago} = shared;
  const known = {}, curves = {};
  let pending = false;

  // Appends or replaces bins of curves.
  function take(patches) {
    for (const [name, {first, x, y}] of Object.entries(patches)) {
      if (!first || !curves[name]) curves[name] = {x: [], y: {}};
      const curve = curves[name];
      curve.x.length = first;
      curve.x.push(...x);
      for (const column of new Set([...Object.keys(curve.y), ...Object.keys(y)])) {
        const values = curve.y[column] || (curve.y[column] = []);
        while (values.length < first) values.push(null);
        values.length = first;
        values.push(...(y[column] || x.map(() => null)));
      }
    }
  }

  function receive(message) {
    const {curves: patches, ...parts} = message;
    if (patches) take(patches);
    Object.assign(known, parts);
    if (patches || parts.times) pending = true;
    if (patches || parts.run || parts.stand) choices();
    show();
  }

  function show() {
    if (!known.run) return;
    const {run, stand, traffic} = known; // a page may lack the traffic
    const stopped = stand.status !== "running";
    const reason = stand.reason ? `: ${stand.reason}` : "";
    const silent = link.ended ? !stopped : !link.connected;
    say("status", silent ? `The server ${link.ended ? "stopped before the run's end" : "does not answer"}. ` +
      "The page shows earlier figures and keeps trying."
      : `${run.method}, ${run.members}: ${stopped ? stand.status + reason : stand.where}` + (stand.warning ? ` – ${stand.warning}` : ""));
    at("status").className = silent || ["failed", "refused"].includes(stand.status) ? "bad" : "";
    const best = stand.best_epoch === null ? "" : ` Best so far: epoch ${stand.best_epoch}` +
      (stand.best_value === null ? "." : `, with ${run.metric_name} ${number(stand.best_value, 3)}.`);
    const reached = stand.validation === null || stand.validation === undefined ? "" : `${run.metric_name} ${number(stand.validation, 3)} on validation rows of all hospitals.`;
    say("verdict", stand.loss === null ? "Unknown: no step is complete yet." : learns() + (reached && ` Now: ${reached}`) + best);
    say("loss", stand.loss === null ? "No step is complete yet." : `Training loss ${number(stand.loss)} in step ${count(stand.step)}.`);
    waiting();
    at("bar").value = stand.steps ? stand.step / stand.steps : 0;
    say("left", stopped ? `Ended: ${stand.status} after ${count(stand.step)} steps in ${lasting(stand.seconds)}.`
      : !stand.ends ? "Unknown before the first step."
      : `About ${clock(stand.ends)}, in ${lasting(Math.max(0, stand.ends - now()))}, unless it stops early: ${Math.floor(100 * stand.step / stand.steps)} % is done.`);
    say("traffic", !traffic || !stand.step ? "Nothing yet." : `${bytes(traffic.up)} up and ${bytes(traffic.down)} down in all. Per ${run.noun} and step: ` +
      `${bytes(traffic.step_up)} up and ${bytes(traffic.step_down)} down, where a full gradient is ${bytes(traffic.dense)}` +
      (traffic.ratio >= 1 ? `: ${traffic.ratio.toFixed(1)} times fewer.`
        : run.method === "dsgd" ? "." : `: ${(1 / traffic.ratio).toFixed(1)} times more.`));
    const reduction = known.times && known.times[""];
    say("seconds", !stand.step ? "No step is complete yet." : `A step takes ${number(1000 * stand.step_seconds, 1)} ms on average` +
      (reduction ? `; aggregation took ${number(1000 * reduction[0], 1)} ms in recent steps.` : "."));
    const steps = curves.steps, layers = run.layers.filter(layer => steps && steps.y[`rank:${layer}`]);
    say("ranks", layers.length ? `${layers.length === 1 ? "1 layer is sent as factors" : `${layers.length} layers are sent as factors`}; latest ranks: ` + layers.slice(0, 8).map(layer => {
      const values = steps.y[`rank:${layer}`];
      return `${layer} ${number(values[values.length - 1], 1)}`;
    }).join(", ") + (layers.length > 8 ? ", …" : "") : "No layer was sent as factors.");
    table();
    lines();
    draw();
  }

  // Compares the last third of the curve with the first: the validation metric, else the training loss.
  function learns() {
    const {run} = known, curve = curves.epochs;
    const of = name => curve && (curve.y[`${name}:pooled`] || []).filter(value => value !== null && value !== undefined);
    const validated = of(run.metric), name = validated && validated.length ? run.metric : "train_loss", values = of(name);
    if (!values || values.length < 3) return "Too early to tell.";
    const part = Math.max(1, Math.floor(values.length / 3)), mean = own => own.reduce((a, b) => a + b) / own.length;
    const gain = (mean(values.slice(-part)) - mean(values.slice(0, part))) * (run.lower_is_better || name === "train_loss" ? -1 : 1);
    const what = name === "train_loss" ? "the training loss" : `${run.metric_name} on validation rows`;
    return gain > 0 ? `Yes: ${what} is better than at the start.` : `No: ${what} is no better than at the start.`;
  }

  function waiting() {
    const {waiting: round, stand, run} = known, seconds = now() - round.since;
    const others = round.without.length ? ` It continues without ${round.without.join(", ")}.` : "";
    const waits = stand.status === "running" && round.sites.length > 0 && seconds >= 1;
    at("awaited").className = waits ? "waiting" : "";
    const few = round.sites.slice(0, 20), more = round.sites.length - few.length;
    say("awaited", stand.status !== "running" ? "None: the run has ended." : waits
      ? `${few.join(", ")}${more ? ` and ${more} more` : ""}, since ${clock(round.since)} (${lasting(seconds)}).${others}`
      : `None for longer than a second.${others}`);
  }

  const plain = [
    ["hospital", site => site.name], ["state", site => site.state, site => `state ${site.kind}`], ["rows", site => site.rows === null ? "–" : count(site.rows), "number"],
    ["last seen", site => known.seen[site.name] ? ago(known.seen[site.name]) : known.stand.status === "running" ? "never" : "–"],
    ["remarks", site => site.warnings.join("; ")],
  ];
  const columns = [
    ["site", site => site.name], ["state", site => site.state, site => `state ${site.kind}`], ["rows", site => site.rows === null ? "–" : count(site.rows), "number"],
    ["last seen", site => known.seen[site.name] ? ago(known.seen[site.name]) : known.stand.status === "running" ? "never" : "–"],
    ["computes", site => part(site, 0), "number"], ["wire", site => part(site, 1), "number"], ["waits", site => part(site, 2), "number"],
    ["loss", site => last("steps", `loss:${site.name}`), "number"],
    [() => known.run.metric_name, site => last("epochs", `${known.run.metric}:${site.name}`), "number"],
    ["left out", site => site.left_out ? count(site.left_out) : "", "number"],
    ["refused", site => site.refused ? `${count(site.refused)}, last: ${site.refusal}` : ""],
    ["warnings", site => site.warnings.join("; ")], ["version", site => site.version || "–"],
  ];

  function part(site, place) {
    const own = known.times && known.times[site.name];
    return own && own[place] !== null ? `${number(1000 * own[place], 1)} ms` : "–";
  }

  function last(curve, column) {
    const values = curves[curve] && curves[curve].y[column];
    const own = values && values.filter(value => value !== null);
    return own && own.length ? number(own[own.length - 1]) : "–";
  }

  const isTechnical = () => !at("panel-technical").hidden;
  const table = () => isTechnical() ? shared.table(at("sites-table"), columns, known.sites) : shared.table(at("hospitals-table"), plain, known.sites);

  let logged = null;
  function lines() {
    if (logged === known.log) return;
    logged = known.log;
    const box = at("lines"), below = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    box.replaceChildren(...known.log.map(([time, level, text]) => {
      const item = document.createElement("li");
      item.className = level;
      item.textContent = time === null ? text : `${new Date(time * 1000).toLocaleTimeString()} ${level === "info" ? "" : level + ": "}${text}`;
      return item;
    }));
    if (below) box.scrollTop = box.scrollHeight;
  }

  function fill(id, names, first) {
    const box = at(id), chosen = box.value;
    box.closest(".choice").hidden = !window.Plotly || names.length < (first ? 2 : 1);
    if (box.options.length === names.length + !!first) return;
    box.replaceChildren(...(first ? [new Option(first, "")] : []), ...names.map(name => new Option(name, name)));
    if (names.includes(chosen)) box.value = chosen;
  }

  function choices() {
    fill("site", known.run.sites, "no single site");
    fill("layer", Object.keys(curves).filter(name => name.startsWith("spectrum:")).map(name => name.slice(9)), "");
  }

  function draw(again = false) {
    if (!(pending || again) || document.hidden || !known.run) return;
    pending = false;
    const {run, stand} = known, chosen = at("site").value, layer = at("layer").value;
    const validated = curves.epochs && (curves.epochs.y[`${run.metric}:pooled`] || []).some(value => value !== null);
    if (!isTechnical()) return validated
      ? charts.learning("metric-chart", curves.epochs, run.metric, run.sites, chosen, `validation ${run.metric_name}`, stand.best_epoch)
      : charts.learning("metric-chart", curves.epochs, "train_loss", run.sites, chosen, "training loss", null);
    charts.learning("loss-chart", curves.epochs, "train_loss", run.sites, chosen, "training loss", null);
    charts.steps("steps-chart", curves.steps, run.sites, chosen);
    charts.times("times-chart", run.sites, known.times || {});
    charts.ranks("rank-chart", curves.steps, run.layers);
    charts.spectrum("spectrum-chart", curves.spectra, curves[`spectrum:${layer}`], layer);
  }

  // WAI-ARIA tabs: arrow keys choose, Tab reaches only the chosen one. Hidden charts are not drawn.
  const tabs = [...document.querySelectorAll("[role=tab]")];
  function choose(tab) {
    for (const one of tabs) {
      one.setAttribute("aria-selected", String(one === tab));
      one.tabIndex = one === tab ? 0 : -1;
      at(one.getAttribute("aria-controls")).hidden = one !== tab;
    }
    if (known.run) { table(); lines(); draw(true); }
  }
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", event => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const next = tabs[(place + 1) % tabs.length];
      choose(next);
      next.focus();
    });
  });
  at("site").addEventListener("change", () => draw(true));
  at("layer").addEventListener("change", () => draw(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  document.addEventListener("visibilitychange", () => draw());
  setInterval(() => { if (known.run) { waiting(); table(); } }, 500);
  shared.listen(receive, show, () => { for (const name of Object.keys(curves)) delete curves[name]; }, () => known.stand.status !== "running");
})();
