"use strict";
(() => {
const root = document.documentElement, $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent), T = data.timeline, M = data.memory;
const LEFT = 132, RIGHT = 12, AXIS = 22;

// ---- theme
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
let inks = {};
function readInks() {
  inks = {};
  for (const n of ["ink", "soft", "line", "card", "track", "accent", "bad", "raised"]) inks[n] = css("--" + n);
  $("theme").textContent = isDark() ? "Light page" : "Dark page";
}
const color = (key) => inks["c" + key] ??= css("--c-" + key) || css("--c-other");
$("theme").onclick = () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("raysim-theme", root.dataset.theme); } catch (e) { /* a private window */ }
  restyle();
};
function restyle() { readInks(); drawNow(); }
dark.addEventListener("change", restyle);
let before = null;
addEventListener("beforeprint", () => {
  before = root.dataset.theme || ""; root.dataset.theme = "light";
  for (const d of document.querySelectorAll("details")) d.open = true;
  restyle();
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  restyle();
});

// ---- words
const sig = (x) => x === 0 ? "0" : x >= 1000 ? x.toFixed(0) : x.toPrecision(3);
function time(ns) {
  const a = Math.abs(ns);
  for (const [u, s] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) if (a >= s) return sig(ns / s) + " " + u;
  return Math.round(ns) + " ns";
}
function bytes(kib) {
  for (const [u, s] of [["TiB", 2 ** 30], ["GiB", 2 ** 20], ["MiB", 2 ** 10]]) {
    if (kib >= s) return sig(kib / s) + " " + u;
  }
  return Math.round(kib) + " KiB";
}
const escaped = (s) => String(s).replace(/[&<>"]/g, (c) => "&#" + c.charCodeAt(0) + ";");
const wordOf = (key) => (M && M.names[key]) || key.replaceAll("_", " ");

// ---- data: differences back to times, memory on the timeline's clock
const sum = (steps) => { let t = 0; return steps.map((d) => t += d); };
const lines = [];
if (T) for (const g of T.groups) {
  if (T.groups.length > 1) lines.push({head: g.label, where: g.where});
  for (const r of g.rows) lines.push({row: r, start: sum(r.start), group: g});
}
const curves = M ? M.curves.map((c) => {
  const t = sum(c.t).map((x) => x - M.t0), total = t.map((_, i) => c.kib.reduce((a, k) => a + k[i], 0));
  return {...c, t, total, at: c.peak.t - M.t0};
}) : [];
let curve = Math.max(0, curves.findIndex((c) => c.fullest));
const ends = [T ? T.span : 0, ...curves.map((c) => c.t[c.t.length - 1])];
const starts = [T ? 0 : Infinity, ...curves.map((c) => c.t[0])];
const whole = [Math.min(...starts), Math.max(...ends)];
if (!(whole[1] > whole[0])) whole[1] = whole[0] + 1;
const pad = (a, b) => [a - (b - a) * 0.004, b + (b - a) * 0.004];
const first = T && T.view[1] > T.view[0] ? pad(...T.view) : pad(...whole);
let view = [...first], cross = null, picked = null;

// ---- canvases
const pictures = [];
function picture(id, draw, height) {
  const canvas = $(id);
  if (!canvas) return;
  const p = {canvas, draw, height, g: canvas.getContext("2d")};
  pictures.push(p);
  new ResizeObserver(() => drawNow()).observe(canvas.parentElement);
  canvas.addEventListener("keydown", keys);
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, at(p, e));
  }, {passive: false});
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => { drag = [e.clientX, ...view]; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; canvas.style.cursor = ""; });
  canvas.addEventListener("pointermove", (e) => {
    if (drag) {
      const d = (drag[0] - e.clientX) / p.plot * (drag[2] - drag[1]);
      if (Math.abs(drag[0] - e.clientX) > 2) canvas.style.cursor = "grabbing";
      show(drag[1] + d, drag[2] + d); tip(); return;
    }
    const t = at(p, e); cross = t; picked = null;
    tip(t === null ? "" : p.say(e.offsetY, t), e.clientX, e.clientY); draws();
  });
  canvas.addEventListener("pointerleave", () => { cross = null; tip(); draws(); });
  canvas.addEventListener("dblclick", (e) => zoom(0.25, at(p, e)));
  return p;
}
const at = (p, e) => e.offsetX < LEFT || e.offsetX > LEFT + p.plot ? null
  : view[0] + (e.offsetX - LEFT) / p.plot * (view[1] - view[0]);
let waiting = false;
function draws() { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; drawNow(); }); } }
function drawNow() {
  for (const p of pictures) {
    const w = p.canvas.parentElement.clientWidth, h = p.height(), dpr = devicePixelRatio || 1;
    if (!w) continue;
    p.plot = Math.max(50, w - LEFT - RIGHT);
    if (p.canvas.width !== Math.round(w * dpr) || p.canvas.height !== Math.round(h * dpr)) {
      p.canvas.width = Math.round(w * dpr); p.canvas.height = Math.round(h * dpr);
      p.canvas.style.height = h + "px";
    }
    p.g.setTransform(dpr, 0, 0, dpr, 0, 0);
    p.g.clearRect(0, 0, w, h);
    p.g.font = "12px system-ui, sans-serif";
    p.draw(p, w, h);
  }
}
const px = (p, t) => LEFT + (t - view[0]) / (view[1] - view[0]) * p.plot;
function show(a, b) {
  const room = pad(...whole), least = 20, most = room[1] - room[0];
  let width = Math.min(most, Math.max(least, b - a));
  a = Math.min(Math.max(a, room[0]), room[1] - width);
  view = [a, a + width]; draws();
}
function zoom(factor, t) {
  const mid = t ?? (view[0] + view[1]) / 2;
  show(mid - (mid - view[0]) * factor, mid + (view[1] - mid) * factor);
}
function go(what) {
  const w = view[1] - view[0];
  if (what === "in") zoom(0.5); else if (what === "out") zoom(2);
  else if (what === "step") show(...first); else if (what === "all") show(...pad(...whole));
  else if (what === "peak") { const half = (first[1] - first[0]) / 20, t = curves[curve].at; show(t - half, t + half); }
  else if (what === "left") show(view[0] - w * 0.1, view[1] - w * 0.1);
  else if (what === "right") show(view[0] + w * 0.1, view[1] + w * 0.1);
}
for (const b of document.querySelectorAll("[data-do]")) b.onclick = () => go(b.dataset.do);
function keys(e) {
  const k = {"+": "in", "=": "in", "-": "out", "0": "step", ArrowLeft: "left", ArrowRight: "right"}[e.key];
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (k) { go(k); e.preventDefault(); }
  if (T && (e.key === "n" || e.key === "p") && e.target.id === "timeline-canvas") pick(e.key === "n" ? 1 : -1);
  if (e.key === "Escape") { picked = null; cross = null; tip(); draws(); }
}

// ---- tip
const box = document.createElement("div");
box.className = "tip"; box.hidden = true; box.setAttribute("role", "status");
document.body.append(box);
function tip(html, x, y) {
  box.hidden = !html;
  if (!html) return;
  box.innerHTML = html;
  const r = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 8)) + "px";
  box.style.top = Math.max(4, y + 18 + r.height > innerHeight ? y - r.height - 12 : y + 18) + "px";
}

// ---- axis, crosshair
function axis(p, y0, y1) {
  const g = p.g, rough = (view[1] - view[0]) / (p.plot / 110), pow = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((m) => m * pow).find((s) => s >= rough);
  const origin = T && view[1] - view[0] <= (first[1] - first[0]) * 1.01 ? T.view[0] : 0;
  const span = view[1] - view[0], [u, s] = span > 1e9 ? ["s", 1e9] : span > 1e6 ? ["ms", 1e6] : span > 1e3 ? ["us", 1e3] : ["ns", 1];
  g.textAlign = "center"; g.textBaseline = "top"; g.lineWidth = 1;
  for (let k = Math.ceil((view[0] - origin) / by); k * by + origin <= view[1]; k++) {
    const x = Math.round(px(p, k * by + origin)) + 0.5;
    g.strokeStyle = inks.line; g.beginPath(); g.moveTo(x, y0); g.lineTo(x, y1); g.stroke();
    const digits = Math.max(0, -Math.floor(Math.log10(by / s) + 1e-9));
    const word = (k ? (k * by / s).toFixed(digits) : "0") + " " + u, half = g.measureText(word).width / 2;
    g.fillStyle = inks.soft;
    if (x + half < LEFT + p.plot + RIGHT) g.fillText(word, x, y1 + 5);
  }
}
function upright(p, t, y0, y1, ink, dash) {
  if (t === null || t < view[0] || t > view[1]) return;
  const g = p.g, x = Math.round(px(p, t)) + 0.5;
  g.save(); g.strokeStyle = ink; g.setLineDash(dash); g.beginPath(); g.moveTo(x, y0); g.lineTo(x, y1); g.stroke(); g.restore();
}

// ---- timeline
const dense = lines.length > 24, ROW = dense ? 15 : 24, HEAD = dense ? 22 : 25, GAP = dense ? 1 : 2;
const lineHeight = (l) => l.row ? ROW : HEAD;
const linesHeight = lines.reduce((h, l) => h + lineHeight(l), 0);
const fits = new Map();
function clip(g, text, room) {
  if (!fits.has(text)) fits.set(text, g.measureText(text).width);
  if (fits.get(text) <= room) return text;
  const short = text.split(/[ .]/).filter((w) => /\d/.test(w)).pop();
  return short && g.measureText(short).width <= room ? short : "";
}
const onLight = new Map();
function inkOn(fill) {
  if (!onLight.has(fill)) {
    const n = parseInt(fill.slice(1), 16), y = 0.299 * (n >> 16) + 0.587 * (n >> 8 & 255) + 0.114 * (n & 255);
    onLight.set(fill, y > 125 ? "#14181d" : "#fff");
  }
  return onLight.get(fill);
}
function firstAfter(l, t) { // index of the first slice that ends after t
  let a = 0, b = l.start.length;
  while (a < b) { const m = (a + b) >> 1; if (l.start[m] + l.row.ns[m] > t) b = m; else a = m + 1; }
  return a;
}
function drawTimeline(p, w) {
  const g = p.g; let y = 0;
  axis(p, 0, linesHeight + 4);
  for (const l of lines) {
    g.textAlign = "left"; g.textBaseline = "middle";
    if (!l.row) { y += HEAD; continue; }
    g.fillStyle = inks.soft; g.fillText(l.row.label, 0, y + ROW / 2);
    g.globalAlpha = 0.6; g.fillStyle = inks.track; g.fillRect(LEFT, y + GAP, p.plot, ROW - 2 * GAP); g.globalAlpha = 1;
    g.save(); g.beginPath(); g.rect(LEFT, y, p.plot, ROW); g.clip();
    const part = Math.ceil(T.span / T.shades);
    for (const [i, c, share] of l.row.shade) { // slices left out: how busy they kept each part of the time
      const x = px(p, i * part), width = part / (view[1] - view[0]) * p.plot;
      if (x > LEFT + p.plot || x + width < LEFT) continue;
      g.globalAlpha = Math.min(1, 0.15 + 0.85 * share / 1000);
      g.fillStyle = color(T.categories[c]); g.fillRect(x, y + GAP, width, ROW - 2 * GAP); g.globalAlpha = 1;
    }
    let x1 = -1, last = -1; // slices narrower than a pixel merge with a neighbour of the same kind
    for (let i = firstAfter(l, view[0]); i < l.start.length && l.start[i] < view[1]; i++) {
      const x = px(p, l.start[i]), width = l.row.ns[i] / (view[1] - view[0]) * p.plot, c = l.row.category[i];
      if (width < 0.7 && x + width < x1 && c === last) continue;
      const fill = color(T.categories[c]), shown = Math.max(width, 0.8);
      g.fillStyle = fill; g.fillRect(x, y + GAP, shown > 3 ? shown - 0.8 : shown, ROW - 2 * GAP);
      x1 = x + shown; last = c;
      if (width > 26) {
        const a = Math.max(x, LEFT), room = Math.min(x + width, LEFT + p.plot) - a - 9;
        const word = room > 14 && clip(g, T.names[l.row.name[i]], room);
        if (word) { g.fillStyle = inkOn(fill); g.fillText(word, a + 4, y + ROW / 2 + 0.5); }
      }
      if (picked && picked.l === l && picked.i === i) {
        g.strokeStyle = inks.ink; g.lineWidth = 2; g.strokeRect(x + 1, y + GAP, Math.max(2, width - 2), ROW - 2 * GAP); g.lineWidth = 1;
      }
    }
    g.restore();
    y += ROW;
  }
  for (const s of T.steps) upright(p, s[1], 0, y, inks.soft, []);
  if (curves[curve]) upright(p, curves[curve].at, 0, y + 4, inks.ink, [4, 3]);
  upright(p, cross, 0, y + 4, inks.ink, []);
  y = 0;
  for (const l of lines) { // the names of the GPUs last, over the upright lines
    if (l.head) {
      g.fillStyle = inks.card; g.fillRect(0, y, w, HEAD);
      g.textAlign = "left"; g.textBaseline = "middle";
      g.fillStyle = inks.ink; g.font = "600 12.5px system-ui, sans-serif";
      g.fillText(l.head, 0, y + HEAD / 2 + 3);
      const x = g.measureText(l.head).width + 10;
      g.font = "12px system-ui, sans-serif"; g.fillStyle = inks.soft; g.fillText(l.where, x, y + HEAD / 2 + 3);
    }
    y += lineHeight(l);
  }
}
function sliceAt(l, t) {
  const slack = (view[1] - view[0]) / 600;
  const i = firstAfter(l, t - slack);
  return i < l.start.length && l.start[i] <= t + slack ? i : -1;
}
function sliceText(l, i) {
  const r = l.row, name = T.names[r.name[i]], info = T.infos[r.info[i]];
  return `<b>${escaped(name)}</b><br>${escaped(T.categories[r.category[i]])}, ${time(r.ns[i])}` +
    (info ? `<br>${escaped(info)}` : "") +
    `<br><span class="note">${escaped(T.groups.length > 1 ? l.group.label + ", " : "")}${escaped(r.label)}, begins at ${time(l.start[i] - T.view[0])} of the step</span>`;
}
function sayTimeline(y, t) {
  for (const l of lines) {
    if (y < lineHeight(l)) { const i = l.row ? sliceAt(l, t) : -1; return i < 0 ? "" : sliceText(l, i); }
    y -= lineHeight(l);
  }
  return "";
}
function pick(way) {
  const rows = lines.filter((l) => l.row && l.start.length);
  if (!rows.length) return;
  if (!picked) { const l = rows.find((r) => r.row.label === "compute") || rows[0]; picked = {l, i: Math.min(firstAfter(l, view[0]), l.start.length - 1)}; }
  else picked.i = Math.min(picked.l.start.length - 1, Math.max(0, picked.i + way));
  const {l, i} = picked, t = l.start[i], w = view[1] - view[0];
  if (t < view[0] || t + l.row.ns[i] > view[1]) show(t - w / 3, t + w * 2 / 3);
  const p = pictures.find((q) => q.canvas.id === "timeline-canvas"), r = p.canvas.getBoundingClientRect();
  let y = 0; for (const m of lines) { if (m === l) break; y += lineHeight(m); }
  tip(sliceText(l, i), r.left + Math.max(LEFT, px(p, t)), r.top + y + ROW - 8); draws();
}

// ---- memory
function indexAt(c, t) {
  let a = 0, b = c.t.length;
  while (a < b) { const m = (a + b) >> 1; if (c.t[m] <= t) a = m + 1; else b = m; }
  return a - 1;
}
const stripes = document.createElement("canvas");
function hatch(g, fill) {
  stripes.width = stripes.height = 6;
  const s = stripes.getContext("2d");
  s.fillStyle = fill; s.fillRect(0, 0, 6, 6); s.strokeStyle = inks.soft; s.lineWidth = 1;
  s.beginPath(); s.moveTo(-1, 7); s.lineTo(7, -1); s.stroke();
  return g.createPattern(stripes, "repeat");
}
function columns(p, c) { // for each pixel the state with the most memory in it, so that no peak is lost
  const found = new Int32Array(Math.ceil(p.plot)), step = (view[1] - view[0]) / p.plot;
  let i = indexAt(c, view[0]);
  for (let x = 0; x < found.length; x++) {
    let best = i;
    while (i + 1 < c.t.length && c.t[i + 1] < view[0] + (x + 1) * step) { i++; if (best < 0 || c.total[i] > c.total[best]) best = i; }
    found[x] = best;
  }
  return found;
}
let toCapacity = null; // null: until asked, as large as the curve needs
function drawMemory(p, w, h) {
  const c = curves[curve], g = p.g, y1 = h - AXIS - 4, y0 = 24, most = c.peak.bytes / 1024, room = c.capacity ? c.capacity / 1024 : 0;
  const small = room > 2.5 * most, cap = small && !toCapacity ? 0 : room;
  $("memory-scale").hidden = !small; $("memory-scale").textContent = cap ? "Scale to the peak" : "Scale to the capacity";
  const top = Math.max(most, cap) * (cap ? 1.04 : 1.12) || 1, y = (v) => y1 - v / top * (y1 - y0);
  axis(p, y0 - 8, y1);
  g.textAlign = "right"; g.textBaseline = "middle";
  const gib = 2 ** 20, unit = top > 2 * gib ? gib : 1024, rough = top / unit / 5, pow = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((m) => m * pow).find((s) => s >= rough);
  for (let v = 0; v * unit <= top; v += by) {
    const yy = Math.round(y(v * unit)) + 0.5;
    g.strokeStyle = inks.line; g.beginPath(); g.moveTo(LEFT, yy); g.lineTo(LEFT + p.plot, yy); g.stroke();
    g.fillStyle = inks.soft; g.fillText(+v.toPrecision(6) + (unit === gib ? " GiB" : " MiB"), LEFT - 8, yy);
  }
  const state = columns(p, c), base = new Float64Array(state.length);
  c.categories.forEach((key, k) => {
    g.fillStyle = key === "slack" ? hatch(g, color(key)) : color(key);
    g.beginPath();
    for (let x = 0, from = 0; x < state.length; x = from) { // runs of pixels that look the same
      const i = state[x], low = base[x], high = i < 0 ? 0 : low + c.kib[k][i];
      for (from = x; from < state.length && state[from] === i; from++) base[from] = high;
      if (high > low) g.rect(LEFT + x, y(high), Math.min(from, p.plot) - x, y(low) - y(high));
    }
    g.fill();
  });
  if (cap) {
    g.strokeStyle = inks.ink; g.lineWidth = 2; g.beginPath(); g.moveTo(LEFT, y(cap)); g.lineTo(LEFT + p.plot, y(cap)); g.stroke(); g.lineWidth = 1;
    label(g, "capacity " + bytes(cap), LEFT + 6, y(cap) - 10, "left");
  }
  else if (room) {
    const left = px(p, c.at) > LEFT + p.plot * 0.6; // away from the peak's label
    label(g, "capacity " + bytes(room) + ", beyond the top", left ? LEFT + 6 : LEFT + p.plot - 6, y0 + 2, left ? "left" : "right");
  }
  if (c.at >= view[0] && c.at <= view[1]) {
    upright(p, c.at, y(c.peak.bytes / 1024), y1, inks.ink, [4, 3]);
    const x = px(p, c.at), right = x > LEFT + p.plot * 0.6, yy = y(c.peak.bytes / 1024);
    g.fillStyle = inks.bad; g.beginPath(); g.arc(x, yy, 4, 0, 7); g.fill();
    g.strokeStyle = inks.card; g.lineWidth = 1.5; g.stroke(); g.lineWidth = 1;
    const crowded = cap && yy > y(cap) - 6 && yy < y(cap) + 30;
    label(g, "peak " + bytes(c.peak.bytes / 1024), x + (right ? -9 : 9), crowded ? yy + 12 : yy - 10, right ? "right" : "left");
  }
  upright(p, cross, y0 - 8, y1, inks.ink, []);
}
function label(g, text, x, y, align) {
  g.textAlign = align; g.textBaseline = "middle"; g.font = "600 12px system-ui, sans-serif";
  const w = g.measureText(text).width, a = align === "right" ? x - w : x;
  g.globalAlpha = 0.86; g.fillStyle = inks.card; g.fillRect(a - 4, y - 9, w + 8, 18); g.globalAlpha = 1;
  g.fillStyle = inks.ink; g.fillText(text, x, y); g.font = "12px system-ui, sans-serif";
}
function sayMemory(_, t) {
  const c = curves[curve], i = indexAt(c, t);
  if (i < 0) return "";
  const line = lines.find((l) => l.row && l.group.where === c.where && l.row.label === "compute");
  const s = line ? sliceAt(line, t) : -1;
  const rows = c.categories.map((key, k) => [key, c.kib[k][i]]).filter((r) => r[1] > 0).reverse();
  return `<b>${bytes(c.total[i])}</b>${c.capacity ? " (" + (c.total[i] * 102400 / c.capacity).toFixed(1) + " % of capacity)" : ""}` +
    (s >= 0 ? `<br>${escaped(T.names[line.row.name[s]])}` : "") + "<table>" +
    rows.map(([k, v]) => `<tr><td><span class="swatch" style="--c:var(--c-${k.replace(/[^a-z_]/g, "")},var(--c-other))"></span>${escaped(wordOf(k))}</td><td class="n">${bytes(v)}</td></tr>`).join("") + "</table>";
}
function memoryLegend() {
  const ul = $("memory-legend");
  ul.textContent = "";
  for (const key of [...curves[curve].categories].reverse()) {
    const k = curves[curve].categories.indexOf(key);
    if (!curves[curve].kib[k].some((v) => v > 0)) continue;
    const li = document.createElement("li"), sw = document.createElement("span");
    sw.className = "swatch" + (key === "slack" ? " slack" : "");
    sw.style.setProperty("--c", `var(--c-${key.replace(/[^a-z_]/g, "")},var(--c-other))`);
    li.append(sw, wordOf(key)); ul.append(li);
  }
}

readInks();
if (T) { const p = picture("timeline-canvas", drawTimeline, () => linesHeight + 4 + AXIS); if (p) p.say = sayTimeline; }
if (curves.length) {
  const p = picture("memory-canvas", drawMemory, () => 320);
  if (p) p.say = sayMemory;
  memoryLegend();
  $("memory-scale").onclick = () => { toCapacity = !toCapacity; draws(); };
  $("memory-gpu").onchange = (e) => { curve = +e.target.value; memoryLegend(); draws(); };
}
drawNow();

// ---- tables that sort, copy, where we are
for (const button of document.querySelectorAll(".sort")) button.onclick = () => {
  const th = button.closest("th"), tr = th.parentElement, body = th.closest("table").tBodies[0], i = [...tr.children].indexOf(th);
  const up = th.getAttribute("aria-sort") === "descending";
  for (const other of tr.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (r) => r.children[i].dataset.v ?? r.children[i].textContent;
  const compare = (a, b) => th.classList.contains("n") ? (parseFloat(value(a)) || 0) - (parseFloat(value(b)) || 0) : value(a).localeCompare(value(b));
  body.append(...[...body.rows].sort((a, b) => up ? compare(a, b) : compare(b, a)));
};
if ($("copy")) $("copy").onclick = async () => {
  try { await navigator.clipboard.writeText($("yaml").textContent); $("copy").textContent = "Copied"; } catch (e) {
    getSelection().selectAllChildren($("yaml")); $("copy").textContent = "Selected: press Ctrl + C";
  }
};
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const here = () => {
  let now = null;
  for (const s of document.querySelectorAll("main > section")) if (s.getBoundingClientRect().top < innerHeight * 0.35) now = s.id;
  if (innerHeight + scrollY >= document.body.scrollHeight - 4) now = [...links.keys()].pop();
  for (const [id, a] of links) if (id === now) a.setAttribute("aria-current", "true"); else a.removeAttribute("aria-current");
};
addEventListener("scroll", here, {passive: true});
here();
})();
