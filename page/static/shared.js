"use strict";
// Shared by the pages: formatting, tables, and the server's events. All texts are inserted as text, never as markup.
const shared = (() => {
  const link = {ahead: 0, connected: false, ended: false}; // ahead: seconds of the server's clock
  const at = id => document.getElementById(id);
  const now = () => Date.now() / 1000 + link.ahead;
  const say = (id, text) => { if (at(id).textContent !== text) at(id).textContent = text; };
  const number = (value, digits = 4) => value === null || value === undefined ? "–"
    : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 || !value ? value.toFixed(digits) : value.toExponential(2);
  const count = value => value.toLocaleString("en");
  const clock = time => new Date((time - link.ahead) * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"});

  function bytes(size) {
    for (const unit of ["B", "KB", "MB", "GB"]) {
      if (size < 1000 || unit === "GB") return `${size.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
      size /= 1000;
    }
  }

  function lasting(seconds) {
    if (seconds < 100) return `${Math.round(seconds)} s`;
    if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
  }

  function ago(time) {
    const seconds = Math.max(0, now() - time);
    return seconds < 2 ? "now" : `${lasting(seconds)} ago`;
  }

  // A column is a name, a function that makes a cell, and a class. A cell is a text, or {key, parts}: elements kept while the key is the same.
  // A row stays with its item, so that focus and clicks stay too.
  function table(box, columns, items) {
    const called = name => typeof name === "function" ? name() : name;
    if (!box.tHead) {
      const head = box.createTHead().insertRow();
      box.createTBody();
      for (const [name, , kind] of columns) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.className = typeof kind === "string" ? kind : "";
        cell.textContent = called(name);
        head.append(cell);
      }
    }
    const body = box.tBodies[0], rows = new Map([...body.rows].map(row => [row.dataset.name, row]));
    const names = new Set(items.map(item => item.name));
    for (const [name, row] of rows) if (!names.has(name)) row.remove();
    items.forEach((item, place) => {
      let row = rows.get(item.name);
      if (!row) {
        row = document.createElement("tr");
        row.dataset.name = item.name;
        for (const [name] of columns) row.insertCell().dataset.label = called(name);
      }
      if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
      columns.forEach(([, make, kind], column) => {
        const cell = row.cells[column], made = make(item), text = typeof made === "string";
        const key = text ? `text ${made}` : made.key;
        if (cell.dataset.key === key) return;
        cell.dataset.key = key;
        cell.replaceChildren(...(text ? [made] : made.parts()).filter(part => part !== ""));
        cell.className = (typeof kind === "function" ? kind(item) : kind) || "";
      });
    });
  }

  // Receives the server's events until the end; reconnects after a pause.
  function listen(receive, show, begin, over) {
    const source = new EventSource("events");
    const again = () => {
      source.close();
      fetch("state").then(answer => { if (answer.status === 401) location.reload(); }).catch(() => {});
      setTimeout(() => listen(receive, show, begin, over), 3000);
    };
    const received = event => {
      const {now: theirs, ...parts} = JSON.parse(event.data);
      if (theirs !== undefined) link.ahead = theirs - Date.now() / 1000;
      link.connected = true;
      link.ended = false;
      receive(parts);
    };
    source.addEventListener("whole", event => { begin(); received(event); });
    source.addEventListener("change", received);
    source.addEventListener("end", () => {
      link.ended = true;
      show();
      if (over()) source.close(); else again();
    });
    source.onerror = () => {
      link.connected = false;
      show();
      if (source.readyState === EventSource.CLOSED) again(); // else the browser reconnects
    };
  }

  return {at, say, number, count, bytes, lasting, link, now, clock, ago, table, listen};
})();
