// The stretch of time that all pictures show, and what mouse and keyboard do to it.
const RIGHT = 12, AXIS = 22;
let LEFT = 132;
const sum = (steps) => { let t = 0; return steps.map((d) => t += d); };
const groups = T ? T.groups.map((g) => ({...g, rows: g.rows.map((r) => ({row: r, start: sum(r.start), group: g}))})) : [];
const curves = M ? M.curves.map((c) => { // differences back to times, on the timeline's clock
  const t = sum(c.t).map((x) => x - M.t0), total = t.map((_, i) => c.kib.reduce((a, k) => a + k[i], 0));
  return {...c, t, total, at: c.peak.t - M.t0};
}) : [];
let curve = Math.max(0, curves.findIndex((c) => c.fullest));
const ends = [T ? T.span : 0, H ? H.end : 0, ...curves.map((c) => c.t[c.t.length - 1])];
const starts = [T ? 0 : Infinity, H ? H.begin : Infinity, ...curves.map((c) => c.t[0])];
const whole = [Math.min(...starts), Math.max(...ends)];
if (!(whole[1] > whole[0])) whole[1] = whole[0] + 1;
const pad = (a, b) => [a - (b - a) * 0.004, b + (b - a) * 0.004];
let origin = T ? T.view[0] : 0; // where the step shown begins
let first = T && T.view[1] > T.view[0] ? pad(...T.view) : pad(...whole);
let view = [...first], cross = null, picked = null, mark = null, measuring = false;

const pictures = [];
const pictureOf = (id) => pictures.find((p) => p.canvas.id === id);
function picture(id, draw, height, speak) {
  const canvas = $(id);
  if (!canvas) return;
  const p = {canvas, draw, height, say: speak, g: canvas.getContext("2d")};
  pictures.push(p);
  new ResizeObserver(() => drawNow()).observe(canvas.parentElement);
  canvas.addEventListener("keydown", keys);
  canvas.addEventListener("blur", () => { picked = null; cross = null; tip(); draws(); });
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, at(p, e));
  }, {passive: false});
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => {
    drag = {x: e.clientX, view: [...view], from: measuring || e.shiftKey ? at(p, e) : null};
    canvas.setPointerCapture(e.pointerId);
    if (drag.from !== null) mark = null;
  });
  canvas.addEventListener("pointerup", () => { drag = null; canvas.style.cursor = ""; });
  canvas.addEventListener("pointermove", (e) => {
    if (drag && drag.from !== null) {
      const t = at(p, e); if (t !== null) setMark(drag.from, t);
      tip(); return;
    }
    if (drag) {
      const d = (drag.x - e.clientX) / p.plot * (drag.view[1] - drag.view[0]);
      if (Math.abs(drag.x - e.clientX) > 2) canvas.style.cursor = "grabbing";
      show(drag.view[0] + d, drag.view[1] + d); tip(); return;
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
function draws() { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; drawNow(true); }); } }
const inSight = (p) => { const r = p.canvas.getBoundingClientRect(); return r.bottom > -100 && r.top < innerHeight + 100; };
addEventListener("scroll", () => { if (pictures.some((p) => p.stale && inSight(p))) draws(); }, {passive: true});
function drawNow(seen) { // of what moves, only what is in sight; the rest when it comes into sight
  for (const p of pictures) {
    p.stale = seen && (p.stale || view !== p.view) && !inSight(p);
    if (seen && p.stale) continue;
    p.view = view;
    const w = p.canvas.parentElement.clientWidth, h = p.height(), dpr = devicePixelRatio || 1;
    if (!w) continue;
    LEFT = w < 560 ? 84 : 132;
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
  const width = Math.min(most, Math.max(least, b - a));
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
  else if (what === "home") show(first[0], first[0] + w); else if (what === "end") show(first[1] - w, first[1]);
  else if (what === "mark" && mark) show(...pad(...mark));
}
for (const b of document.querySelectorAll("[data-do]")) b.onclick = () => go(b.dataset.do);
function keys(e) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const k = {"+": "in", "=": "in", "-": "out", "0": "step", a: "all", ArrowLeft: "left", ArrowRight: "right", Home: "home", End: "end"}[e.key];
  const step = {n: [1, 0], p: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[e.key];
  const p = pictureOf(e.target.id);
  if (k) go(k);
  else if (step && p && p.pick) p.pick(...step);
  else if (e.key === "m") { const t = picked ? picked.t : cross ?? (view[0] + view[1]) / 2; if (mark && mark[0] === mark[1]) setMark(mark[0], t); else setMark(t, t); }
  else if (e.key === "Escape") { picked = null; cross = null; setMark(); tip(); draws(); }
  else return;
  e.preventDefault();
}

// ---- measuring between two moments
function setMark(a, b) {
  mark = a === undefined ? null : a < b ? [a, b] : [b, a];
  const out = $("measured");
  if (out) out.textContent = !mark ? "" : mark[0] === mark[1] ? "from " + time(mark[0] - origin) + " of the step; M again at the other end"
    : time(mark[1] - mark[0]) + ", from " + time(mark[0] - origin) + " to " + time(mark[1] - origin) + " of the step";
  if ($("to-mark")) $("to-mark").hidden = !mark || mark[0] === mark[1];
  draws();
}
if ($("measure")) $("measure").onclick = () => {
  measuring = !measuring;
  $("measure").setAttribute("aria-pressed", measuring);
  if (!measuring) setMark();
};
function drawMark(p, y0, y1) {
  if (!mark) return;
  const g = p.g, a = Math.max(LEFT, px(p, mark[0])), b = Math.min(LEFT + p.plot, px(p, mark[1]));
  if (b < LEFT || a > LEFT + p.plot) return;
  g.globalAlpha = 0.18; g.fillStyle = inks.accent; g.fillRect(a, y0, Math.max(1, b - a), y1 - y0); g.globalAlpha = 1;
  for (const t of mark) upright(p, t, y0, y1, inks.accent, []);
  if (b - a > 60) label(g, time(mark[1] - mark[0]), (a + b) / 2, y0 + 12, "center");
}

// ---- axis, crosshair, labels
function axis(p, y0, y1) {
  const g = p.g, rough = (view[1] - view[0]) / (p.plot / 110), pow = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((m) => m * pow).find((s) => s >= rough);
  const zero = T && view[1] - view[0] <= (first[1] - first[0]) * 1.01 ? origin : 0;
  const span = view[1] - view[0], [u, s] = span > 1e9 ? ["s", 1e9] : span > 1e6 ? ["ms", 1e6] : span > 1e3 ? ["us", 1e3] : ["ns", 1];
  g.textAlign = "center"; g.textBaseline = "top"; g.lineWidth = 1;
  for (let k = Math.ceil((view[0] - zero) / by); k * by + zero <= view[1]; k++) {
    const x = Math.round(px(p, k * by + zero)) + 0.5;
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
function label(g, text, x, y, align) {
  g.textAlign = align; g.textBaseline = "middle"; g.font = "600 12px system-ui, sans-serif";
  const w = g.measureText(text).width, a = align === "right" ? x - w : align === "center" ? x - w / 2 : x;
  g.globalAlpha = 0.86; g.fillStyle = inks.card; g.fillRect(a - 4, y - 9, w + 8, 18); g.globalAlpha = 1;
  g.fillStyle = inks.ink; g.fillText(text, x, y); g.font = "12px system-ui, sans-serif";
}
function rowLabel(g, text, y, ink) { // at the left of a row, made narrower where it does not fit
  g.textAlign = "left"; g.textBaseline = "middle"; g.fillStyle = ink; g.fillText(text, 0, y, LEFT - 8);
}
function beside(p, x, y, html) {
  const r = p.canvas.getBoundingClientRect();
  tip(html, r.left + Math.min(Math.max(LEFT, x), LEFT + p.plot), r.top + y);
}
