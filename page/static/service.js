"use strict";
// The runs and sites of a service; owners can also submit and cancel runs.
(() => {
  const {at, say, count, lasting, link, now, ago} = shared;
  const known = {}, owner = document.body.dataset.owner; // undefined for viewers
  const MAX_FILE = 8 << 20;
  const day = time => time === null ? "–" : new Date((time - link.ahead) * 1000).toLocaleString([], {dateStyle: "short", timeStyle: "short"});

  function element(name, text, more = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    return Object.assign(made, more);
  }

  function acting(run) {
    const cancels = run.open && run.owner === owner;
    return {key: `${run.report} ${cancels}`, parts: () => [
      run.report ? element("a", "Report", {href: `${run.name}/report.html`, ariaLabel: `Report of ${run.name}`}) : "",
      cancels ? element("button", "Cancel", {type: "button", ariaLabel: `Cancel ${run.name}`, onclick: () => cancel(run.name)}) : ""]};
  }

  const columns = [
    ["run", run => ({key: `${run.page}`, parts: () => [run.page ? element("a", run.name, {href: `${run.name}/`}) : run.name]})],
    ["state", run => run.state + (run.reason ? `: ${run.reason}` : ""), run => run.kind],
    ["steps", run => run.steps ? `${count(run.step)} of ${count(run.steps)}` : "–", "number"],
    ["owner", run => run.owner || "–"], ["method", run => run.method],
    ["sites", run => run.sites], ["submitted", run => day(run.submitted)],
    ["took", run => run.started === null ? "–" : lasting((run.ended === null ? now() : run.ended) - run.started), "number"],
    ["actions", acting, "acts"],
  ];
  const members = [
    ["site", site => site.name], ["state", site => site.state, site => `state ${site.kind}`],
    ["last seen", site => known.seen[site.name] ? ago(known.seen[site.name]) : "never"],
    ["version", site => site.version || "–"], ["trains", site => site.trains.join(", ") || "–"],
    ["asked to approve", site => site.asked.join(", ") || "–"],
  ];

  function show() {
    if (!known.service) return;
    const {version, places, training, waiting} = known.service, silent = !link.connected || link.ended;
    say("status", silent ? "The service does not answer. The page shows earlier figures and keeps trying."
      : `rankdad ${version}: ${count(training)} training, at most ${count(places)} at once; ${count(waiting)} waiting.`);
    at("status").className = silent ? "bad" : "";
    at("none").hidden = known.runs.length > 0;
    at("runs-table").closest(".table").hidden = !known.runs.length;
    shared.table(at("runs-table"), columns, known.runs);
    shared.table(at("sites-table"), members, known.sites);
  }

  // Pages of other sites cannot send this header, so they cannot act for the owner.
  async function send(address, body) {
    try {
      const answer = await fetch(address, {method: "POST", body, headers: {"x-rankdad-page": "1", "content-type": "application/json"}});
      const result = await answer.json();
      return answer.ok ? {run: result} : {errors: result.errors || [result.error]};
    } catch {
      return {errors: ["The service does not answer. Try again."]};
    }
  }

  async function cancel(run) {
    if (!confirm(`Cancel ${run} for all sites? It cannot be resumed.`)) return;
    const {errors} = await send(`${run}/cancel`, "");
    at("refused").hidden = !errors;
    say("refused", errors ? `${run} is not cancelled: ${errors.join(" ")}` : "");
  }

  let number = null; // identity of the submission: sent twice, it is one run
  function answered(run, errors) {
    const box = at("answer");
    if (run) return box.replaceChildren(element("p", `${run.run} is submitted: ${run.state}${run.reason ? `, ${run.reason}` : ""}.`));
    const list = document.createElement("ul");
    list.append(...errors.map(error => element("li", error)));
    box.replaceChildren(element("p", "It is not submitted:", {className: "bad"}), list);
  }

  async function submit(event) {
    event.preventDefault();
    const button = event.target.querySelector("button");
    number ??= [...crypto.getRandomValues(new Uint8Array(8))].map(byte => byte.toString(16).padStart(2, "0")).join("");
    button.disabled = true;
    const {run, errors} = await send(`submit?id=${number}`, at("spec").value);
    button.disabled = false;
    if (run) event.target.reset();
    answered(run, errors);
  }

  async function read() {
    const [file] = at("file").files;
    if (!file) return;
    if (file.size > MAX_FILE) return answered(null, [`${file.name} is larger than 8 MB: it is not a RUN.json.`]);
    at("spec").value = await file.text();
    changed();
  }

  function changed() {
    number = null;
    at("answer").replaceChildren();
  }

  if (owner !== undefined) {
    at("submission").addEventListener("submit", submit);
    at("submission").addEventListener("reset", () => { number = null; });
    at("file").addEventListener("change", read);
    at("spec").addEventListener("input", changed);
  }
  setInterval(show, 1000);
  shared.listen(message => { Object.assign(known, message); show(); }, show, () => {}, () => false);
})();
