"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const record = JSON.parse(byId("record").textContent);
  const pictures = JSON.parse(byId("pictures-data").textContent);
  const { decisions, table } = record.report;
  const columns = table.columns;
  const make = (tag, text, kind) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (kind) node.className = kind;
    return node;
  };
  const words = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(4)));
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };

  // which decision is in force
  let current = decisions.find((entry) => entry.chosen);
  const flagged = (p) => Boolean(current) && current.rejected > 0 && p !== null && p <= current.threshold;
  function decide() {
    const index = decisions.indexOf(current);
    for (const node of all("[data-when]")) node.toggleAttribute("hidden", Number(node.dataset.when) !== index);
    for (const node of all("[data-method]")) node.hidden = node.dataset.method !== current.method;
    for (const node of all("[data-row]")) {
      if (Number(node.dataset.row) === index) node.setAttribute("aria-current", "true");
      else node.removeAttribute("aria-current");
    }
    for (const node of all("[data-p]")) {
      node.querySelector(".flag").hidden = !flagged(JSON.parse(node.dataset.p));
    }
    byId("status").textContent = `${current.rejected.toLocaleString("en")} of ${current.tested.toLocaleString("en")} tested queries flagged`;
    for (const row of rows) {
      const cell = row.querySelector("td.decision");
      const p = columns.pvalue[row.dataset.at];
      cell.textContent = p === null ? "not tested" : flagged(p) ? "flagged" : "";
      cell.classList.toggle("yes", flagged(p));
    }
    show();
  }

  // the table of queries
  const body = byId("table").tBodies[0];
  let rows = [...body.rows];
  const PAGE = 25;
  let limit = PAGE;
  const order = [...rows];
  const name = (at) => [columns.id?.[at], columns.file?.[at], `row ${columns.row[at]}`, columns.row[at]].filter((v) => v !== null && v !== undefined).join(" ").toLowerCase();
  function matches(row) {
    const at = row.dataset.at, which = byId("which").value, p = columns.pvalue[at];
    if (which === "untested" && p !== null) return false;
    if (which === "flagged" && !flagged(p)) return false;
    if (which === "kept" && (p === null || flagged(p))) return false;
    return name(at).includes(byId("find").value.trim().toLowerCase());
  }
  function show() {
    const kept = rows.filter(matches);
    const shown = new Set(kept.slice(0, limit));
    for (const row of rows) {
      row.hidden = !shown.has(row);
      if (row.detail) row.detail.hidden = row.hidden;
    }
    byId("matches").textContent = `${Math.min(limit, kept.length)} of ${kept.length} shown`;
    byId("more").hidden = kept.length <= limit;
  }
  const keys = {
    rank: (at) => table.rank[at],
    name: (at) => columns.id?.[at] ?? columns.row[at],
    score: (at) => columns.score[at],
    pvalue: (at) => columns.pvalue[at],
    nearest_class: (at) => columns.nearest_class[at],
    ood: (at) => Number(columns.ood[at]),
    decision: (at) => (columns.pvalue[at] === null ? 2 : flagged(columns.pvalue[at]) ? 0 : 1),
  };
  function compare(a, b) {
    if (a === b) return 0;
    if (a === null || a === undefined) return 1; // what is missing stands last, either way
    if (b === null || b === undefined) return -1;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  }
  function sort(head) {
    const key = keys[head.dataset.sort];
    const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.dataset.sort === "score");
    for (const other of all("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const missing = (v) => v === null || v === undefined;
    rows = [...order].sort((x, y) => {
      const a = key(x.dataset.at), b = key(y.dataset.at);
      const found = compare(a, b);
      return down && !missing(a) && !missing(b) ? -found : found;
    });
    for (const row of rows) {
      body.append(row);
      if (row.detail) body.append(row.detail);
    }
    show();
  }
  for (const head of all("#table th[data-sort]")) {
    const button = make("button", head.textContent, "sort");
    button.type = "button";
    button.addEventListener("click", () => sort(head));
    head.replaceChildren(button);
  }

  function bars(title, shares) {
    const box = make("div");
    box.append(make("h4", title));
    for (const [label, share] of shares) {
      const line = make("div", undefined, "share");
      const bar = make("i");
      bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
      const track = make("span");
      track.append(bar);
      line.append(make("span", label), track, make("b", `${(100 * share).toFixed(1)} %`));
      box.append(line);
    }
    return box;
  }
  function detail(at) {
    const box = make("div", undefined, "inside");
    if (pictures.queries[at]) {
      const image = make("img");
      image.src = pictures.queries[at];
      image.alt = `Input ${words(columns.id?.[at] ?? columns.row[at])}`;
      box.append(image);
    }
    const facts = make("div");
    const pairs = make("dl", undefined, "pairs");
    for (const [key, values] of Object.entries(columns)) {
      pairs.append(make("dt", key.replaceAll("_", " ")), make("dd", words(values[at])));
    }
    facts.append(make("h4", "All columns"), pairs);
    box.append(facts);
    const why = record.report.explanations?.[at];
    if (why?.layers) box.append(bars("Share of the score by layer", Object.entries(why.layers)));
    if (why?.directions) box.append(bars("Share of the statistic by eigen-direction, 1 the widest", why.directions.map(([i, share]) => [i === null ? "all\u00a0others" : `direction\u00a0${i + 1}`, share])));
    if (why?.nearest) {
      const near = make("div");
      near.append(make("h4", "Nearest reference inputs"));
      const list = make("dl", undefined, "pairs");
      why.nearest.forEach((row, k) => list.append(make("dt", `reference row ${row}`), make("dd", `distance ${words(why.distances[k])}`)));
      near.append(list);
      box.append(near);
    }
    return box;
  }
  body.addEventListener("click", (event) => {
    const button = event.target.closest("button.open");
    if (!button) return;
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    if (!open) {
      row.detail.remove();
      row.detail = undefined;
      return;
    }
    row.detail = make("tr", undefined, "detail");
    const cell = make("td");
    cell.colSpan = byId("table").tHead.rows[0].cells.length;
    cell.append(detail(row.dataset.at));
    row.detail.append(cell);
    row.after(row.detail);
  });
  byId("filters").hidden = false;
  for (const [id, kind] of [["find", "input"], ["which", "change"]]) {
    byId(id).addEventListener(kind, () => { limit = PAGE; show(); });
  }
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { limit += 4 * PAGE; show(); });

  if (current) {
    byId("controls").hidden = false;
    byId("controls").addEventListener("change", () => {
      const chosen = new FormData(byId("controls"));
      current = decisions.find((entry) => String(entry.fdr) === chosen.get("fdr") && entry.method === chosen.get("method"));
      decide();
    });
    decide();
  } else show();

  // which field of the record a number is
  const tell = (event) => {
    const number = event.target.closest?.("data[data-field]");
    if (number) byId("field").textContent = `${number.dataset.field} = ${number.value}`;
  };
  document.addEventListener("click", tell);
  document.addEventListener("pointerover", tell);
  byId("download").hidden = false;
  byId("download").addEventListener("click", () => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(record, null, 1)], { type: "application/json" }));
    link.download = "arht-report-record.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  document.documentElement.dataset.ready = "yes";
})();
