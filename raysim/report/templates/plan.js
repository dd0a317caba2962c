// ---- trials: one state of what is kept, one trial pinned; pictures and table follow
const D = JSON.parse($("data").textContent), N = D.number.length;
const metric = Object.fromEntries(D.metrics.map((m, k) => [m.name, {...m, v: D.values[k]}]));
for (const k of D.keys) { // long round numbers as people write them; commands have them whole
  k.raw = k.values;
  k.values = k.raw.map((v) => /^\d{6,}$/.test(v) && +(+v).toPrecision(3) === +v ? (+v).toExponential().replace("e+", "e") : v);
}
const RUN = new Set(["meets", "misses", "estimated"]);
const statusOf = (i) => D.statuses[D.status[i]][0];
const isShort = (i) => D.words[D.why[i]];
const axes = [
  ...D.keys.filter((k) => k.values.length > 1).map((k) => ({key: k, label: k.label})),
  ...D.along.map((name) => ({m: metric[name], label: metric[name].label})),
];
for (const a of axes) { // every trial's place on the axis, 0 at the bottom to 1
  a.brush = null;
  if (a.key) { const n = a.key.values.length - 1; a.at = a.key.at.map((c) => c / n); continue; }
  a.scale = scaleOf(a.m);
  a.at = a.m.v.map((v) => v === null ? null : a.scale.at(v));
}
function scaleOf(m, wanted) { // a metric to 0..1, in logarithms where it spans much
  let low = Infinity, high = -Infinity;
  for (const v of m.v) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
  if (!(high >= low)) { low = 0; high = 1; }
  const log = low > 0 && (wanted ?? high / low > 20);
  let [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const room = (b - a || Math.abs(a) || 1) * 0.04;
  a -= room; b += room;
  return {log, low, unit: m.unit, high, at: (v) => ((log ? Math.log10(v) : v) - a) / (b - a), back: (t) => log ? 10 ** (a + t * (b - a)) : a + t * (b - a)};
}
const rounded = (s, most) => { // marks of a scale
  if (!s.log) return ticks(s.back(0), s.back(1), most, unitSize(s.unit, s.high));
  const a = Math.floor(Math.log10(s.back(0))), b = Math.ceil(Math.log10(s.back(1)));
  const found = [];
  for (let k = a; k <= b; k++) for (const m of b - a > 3 ? [1] : b - a > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) found.push(m * 10 ** k);
  return found.filter((v) => s.at(v) >= 0 && s.at(v) <= 1);
};

const hidden = new Set();
let words = "", pinned = null, hovered = null, shown = [], order = {by: null, up: true}, page = 0;
const pass = new Uint8Array(N).fill(1);
const textOf = (i) => [D.number[i], D.statuses[D.status[i]][1], ...D.keys.map((k) => k.label + " " + k.values[k.at[i]]), D.words[D.strategy[i]], D.words[D.why[i]], D.words[D.bound[i]]].join(" ").toLowerCase();
const texts = [];
function matches(i) {
  texts[i] ??= textOf(i);
  return words.split(/\s+/).every((w) => texts[i].includes(w));
}
function within(a, i) {
  return !a.brush || (a.at[i] !== null && a.at[i] >= a.brush[0] - 1e-9 && a.at[i] <= a.brush[1] + 1e-9);
}
function update() {
  const brushed = axes.filter((a) => a.brush);
  for (let i = 0; i < N; i++) {
    pass[i] = !hidden.has(statusOf(i)) && brushed.every((a) => within(a, i)) && (!words || matches(i)) ? 1 : 0;
  }
  page = 0;
  arrange();
  $("count").textContent = shown.length === N ? `All ${grouped(String(N))} trials` : `${grouped(String(shown.length))} of ${grouped(String(N))} trials`;
  $("clear").hidden = !brushed.length && !hidden.size && !words;
  const list = $("brushes");
  list.textContent = "";
  for (const a of brushed) {
    const b = make("button", "brush", `${a.label} ${stretch(a)}`);
    b.type = "button"; b.title = "take this filter away";
    b.onclick = () => { a.brush = null; sayAxes(); update(); };
    list.append(b, " ");
  }
  redraw();
}
function stretch(a) { // a brush in words
  const [lo, hi] = a.brush;
  if (a.key) {
    const n = a.key.values.length - 1, inside = a.key.values.filter((_, k) => k / n >= lo - 1e-9 && k / n <= hi + 1e-9);
    return inside.length > 3 ? `${inside[0]} to ${inside[inside.length - 1]}` : inside.join(", ") || "nothing";
  }
  const clamp = (t) => Math.min(a.scale.high, Math.max(a.scale.low, a.scale.back(t)));
  return `${format(a.m.unit, clamp(lo))} to ${format(a.m.unit, clamp(hi))}`;
}

// ---- marks: a shape and a colour for each status
function shape(g, status, x, y, r, fill) {
  g.fillStyle = g.strokeStyle = fill; g.lineWidth = 1.6; g.beginPath();
  if (status === "meets") { g.arc(x, y, r, 0, 7); g.fill(); }
  else if (status === "misses") { g.moveTo(x, y - r * 1.2); g.lineTo(x + r * 1.15, y + r * 0.9); g.lineTo(x - r * 1.15, y + r * 0.9); g.closePath(); g.fill(); }
  else if (status === "estimated") { g.arc(x, y, r * 0.8, 0, 7); g.stroke(); }
  else if (status === "out_of_memory") { g.fillRect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7); }
  else { g.moveTo(x - r, y - r); g.lineTo(x + r, y + r); g.moveTo(x + r, y - r); g.lineTo(x - r, y + r); g.stroke(); }
}
function star(g, x, y, r) { // the choice
  g.beginPath();
  for (let k = 0; k < 10; k++) {
    const a = Math.PI * (k / 5 - 0.5), q = k % 2 ? r * 0.46 : r;
    g[k ? "lineTo" : "moveTo"](x + q * Math.cos(a), y + q * Math.sin(a));
  }
  g.closePath(); g.fillStyle = ink("ink"); g.strokeStyle = ink("card"); g.lineWidth = 3; g.stroke(); g.fill();
}
const marks = [...document.querySelectorAll("[data-mark]")];
function drawMarks() {
  for (const c of marks) {
    const g = c.getContext("2d");
    g.setTransform(2, 0, 0, 2, 0, 0); g.clearRect(0, 0, 14, 14);
    if (c.dataset.mark === "choice") star(g, 7, 7.5, 6.5);
    else shape(g, c.dataset.mark, 7, 7, 4.5, ink("s-" + c.dataset.mark));
  }
}
pictures.push({canvas: $("rows"), height: () => 0, g: {setTransform() {}, clearRect() {}}, draw: drawMarks});

// ---- the trial pinned, else the choice
function command(i) {
  const sets = [...D.keys.map((k) => k.key + "=" + k.raw[k.at[i]]), ...D.goes_with].map((s) => `--set ${quoted(s)}`);
  return `raysim run ${quoted(D.scenario)} ${sets.join(" ")}`;
}
const quoted = (s) => /^[\w@%+=:,./-]+$/.test(s) ? s : "'" + s.replaceAll("'", "'\\''") + "'";
function pin(i) {
  pinned = pinned === i ? null : i;
  sayPinned(); fillRows(); redraw();
}
function fact(name, value) {
  const d = make("div");
  d.append(make("dt", "", name), make("dd", "", value));
  return d;
}
function sayPinned() {
  const i = pinned ?? D.choice ?? D.nearest, at = $("pinned");
  at.textContent = "";
  if (i === null || i === undefined) { at.append(make("p", "none", "Nothing is pinned.")); return; }
  at.append(make("h3", "", (i === D.choice ? D.choice_is.replace("t", "T") : pinned === null ? "The nearest" : "Pinned") + ", trial " + D.number[i]));
  at.append(make("div", "note", [D.statuses[D.status[i]][1], isShort(i), D.words[D.bound[i]] && "bound by " + D.words[D.bound[i]]].filter(Boolean).join("; ")));
  const list = make("dl");
  for (const k of D.keys) list.append(fact(k.label, k.values[k.at[i]]));
  at.append(list);
  const more = make("details"), rest = make("dl");
  for (const m of Object.values(metric)) {
    if (m.v[i] === null) continue;
    const first = D.along.includes(m.name) || ["usd", "seconds", "gpus"].includes(m.name);
    (first ? list : rest).append(fact(m.label, format(m.unit, m.v[i])));
  }
  more.append(make("summary", "", "All its metrics"), rest);
  if (rest.children.length) at.append(more);
  const row = make("div", "row"), copy = make("button", "", "Copy its command"), off = make("button", "", "Unpin");
  copy.type = off.type = "button"; copy.id = "copy-trial";
  copy.title = command(i);
  copy.onclick = () => copyText(command(i), copy);
  off.onclick = () => pin(pinned);
  row.append(copy); if (pinned !== null) row.append(off);
  at.append(row);
}
const brief = (i) => `<b>${escaped(D.statuses[D.status[i]][1])}</b>, trial ${D.number[i]}<table>` +
  D.keys.map((k) => `<tr><td>${escaped(k.label)}</td><td class="n">${escaped(k.values[k.at[i]])}</td></tr>`).join("") +
  [...new Set([$("x-metric")?.value, $("y-metric")?.value, ...D.along])].filter((n) => metric[n] && metric[n].v[i] !== null)
    .map((n) => `<tr><td>${escaped(metric[n].label)}</td><td class="n">${escaped(format(metric[n].unit, metric[n].v[i]))}</td></tr>`).join("") +
  `</table>${isShort(i) ? `<span class="note">${escaped(isShort(i))}</span>` : ""}`;

// ---- the table: only the rows of one leaf are in the page
const columns = [
  {label: "trial", n: true, v: (i) => D.number[i], t: (i) => String(D.number[i])},
  {label: "status", v: (i) => D.status[i], t: (i) => D.statuses[D.status[i]][1]},
  ...D.keys.map((k) => ({label: k.label, n: true, v: (i) => k.at[i], t: (i) => k.values[k.at[i]]})),
  ...D.metrics.filter((m) => D.along.includes(m.name) || ["gpus", "usd", "seconds"].includes(m.name))
    .map((m) => ({label: m.label, n: true, better: m.more, v: (i) => metric[m.name].v[i], t: (i) => format(m.unit, metric[m.name].v[i])})),
  {label: "misses, or why not", why: true, v: (i) => isShort(i), t: (i) => isShort(i)},
];
function arrange() {
  shown = [];
  for (let i = 0; i < N; i++) if (pass[i]) shown.push(i);
  const c = columns[order.by], goal = metric[D.objective], way = order.up ? 1 : -1;
  const by = c ? (a, b) => compare(c.v(a), c.v(b), way)
    : (a, b) => D.status[a] - D.status[b] || (goal ? compare(goal.v[a], goal.v[b], goal.more ? -1 : 1) : 0);
  shown.sort((a, b) => by(a, b) || a - b);
  fillRows();
}
function compare(x, y, way) { // what has no value stands last, whichever way
  if (x === y) return 0;
  if (x === null || x === "") return 1;
  if (y === null || y === "") return -1;
  return (x < y ? -1 : 1) * way;
}
function headRow() {
  const tr = make("tr");
  columns.forEach((c, k) => {
    const th = make("th", c.n ? "n" : ""), b = make("button", "sort", c.label);
    th.scope = "col"; b.type = "button";
    b.onclick = () => {
      order = {by: k, up: order.by === k ? !order.up : !c.better};
      for (const other of tr.children) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", order.up ? "ascending" : "descending");
      page = 0; arrange();
    };
    th.append(b); tr.append(th);
  });
  $("rows").tHead.append(tr);
}
function fillRows() {
  const size = +$("size").value, leaves = Math.max(1, Math.ceil(shown.length / size));
  page = Math.min(page, leaves - 1);
  const body = $("rows").tBodies[0];
  const focused = document.activeElement?.dataset?.trial;
  body.textContent = "";
  for (const i of shown.slice(page * size, page * size + size)) {
    const tr = make("tr", (i === D.choice ? "choice " : "") + (i === pinned ? "pin" : ""));
    columns.forEach((c, k) => {
      const td = make("td", c.why ? "why" : c.n ? "n" : "", k ? c.t(i) : "");
      if (c.why) td.title = c.t(i);
      if (!k) {
        const b = make("button", "number", c.t(i));
        b.type = "button"; b.dataset.trial = i; b.setAttribute("aria-pressed", String(i === pinned)); b.title = "pin this trial";
        td.append(b);
      }
      tr.append(td);
    });
    tr.onclick = () => pin(i);
    tr.onpointerenter = () => { hovered = i; redraw(); };
    tr.onpointerleave = () => { hovered = null; redraw(); };
    body.append(tr);
  }
  if (focused !== undefined) body.querySelector(`[data-trial="${focused}"]`)?.focus({preventScroll: true});
  $("where").textContent = shown.length ? `${grouped(String(page * size + 1))} to ${grouped(String(Math.min(shown.length, page * size + size)))} of ${grouped(String(shown.length))}` : "no trial passes the filters";
  $("previous").disabled = !page; $("next").disabled = page >= leaves - 1;
}
$("previous").onclick = () => { page--; fillRows(); };
$("next").onclick = () => { page++; fillRows(); };
$("size").onchange = () => { page = 0; fillRows(); };
$("find").oninput = () => { words = $("find").value.trim().toLowerCase(); update(); };
$("csv").onclick = () => {
  const cell = (s) => /[",\n]/.test(s) ? '"' + s.replaceAll('"', '""') + '"' : s;
  const heads = ["trial", "status", ...D.keys.map((k) => k.key), ...D.metrics.map((m) => m.name), "why"];
  const lines = shown.map((i) => [D.number[i], statusOf(i), ...D.keys.map((k) => k.raw[k.at[i]]), ...D.metrics.map((m) => metric[m.name].v[i] ?? ""), isShort(i)].map((v) => cell(String(v))).join(","));
  const a = make("a"), url = URL.createObjectURL(new Blob([[heads.map(cell).join(","), ...lines].join("\n") + "\n"], {type: "text/csv"}));
  a.href = url; a.download = "trials.csv"; a.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};
for (const b of document.querySelectorAll("[data-status]")) b.onclick = () => {
  const off = !hidden.has(b.dataset.status);
  hidden[off ? "add" : "delete"](b.dataset.status);
  b.setAttribute("aria-pressed", String(!off));
  update();
};
$("clear").onclick = () => {
  hidden.clear(); words = $("find").value = "";
  for (const b of document.querySelectorAll("[data-status]")) b.setAttribute("aria-pressed", "true");
  for (const a of axes) a.brush = null;
  sayAxes(); update();
};
