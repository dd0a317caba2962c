// ---- colours of trials: by status, or by the place of a key's value (a part of viridis)
const RAMP = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
function ramp(t) { // light pages stop before yellow, dark pages begin after violet
  const [a, b] = isDark() ? [0.3, 1] : [0, 0.82], x = (a + t * (b - a)) * (RAMP.length - 1);
  const k = Math.min(RAMP.length - 2, Math.floor(x)), f = x - k;
  const mix = (at) => Math.round(parseInt(RAMP[k].slice(at, at + 2), 16) * (1 - f) + parseInt(RAMP[k + 1].slice(at, at + 2), 16) * f);
  return `rgb(${mix(1)},${mix(3)},${mix(5)})`;
}
const colorKey = () => { const v = $("color")?.value; return v ? D.keys[+v] : null; };
function colorOf(i) {
  const k = colorKey();
  return k ? ramp(k.values.length > 1 ? k.at[i] / (k.values.length - 1) : 0) : ink("s-" + statusOf(i));
}

// ---- scatter
const PAD = {left: 74, right: 16, top: 14, bottom: 44};
let spots = []; // trials on the scatter, left to right
function place() {
  const mx = metric[$("x-metric").value], my = metric[$("y-metric").value], wanted = $("log").checked || undefined;
  const sx = scaleOf(mx, wanted), sy = scaleOf(my, wanted);
  return {mx, my, sx, sy};
}
function front(trials, mx, my) { // corners of the staircase that no other beats in both
  const x = (i) => mx.more ? -mx.v[i] : mx.v[i], y = (i) => my.more ? -my.v[i] : my.v[i];
  const found = [];
  for (const i of [...trials].sort((a, b) => x(a) - x(b) || y(a) - y(b) || a - b)) {
    if (!found.length || y(i) < y(found[found.length - 1])) found.push(i);
  }
  return found;
}
function stairs(g, corners, px, py, w, dash) {
  if (corners.length < 2) return;
  g.save(); g.strokeStyle = ink("ink"); g.lineWidth = w; g.setLineDash(dash); g.beginPath();
  corners.forEach((i, k) => {
    if (k) g.lineTo(px(i), py(corners[k - 1]));
    g[k ? "lineTo" : "moveTo"](px(i), py(i));
  });
  g.stroke(); g.restore();
}
function frame(g, w, h, sx, sy, mx, my) {
  const x0 = PAD.left, x1 = w - PAD.right, y0 = PAD.top, y1 = h - PAD.bottom;
  let last = -1e9;
  for (const v of rounded(sx, (x1 - x0) / 95)) {
    const x = Math.round(x0 + sx.at(v) * (x1 - x0)) + 0.5, word = format(mx.unit, v), half = g.measureText(word).width / 2;
    line(g, x, y0, x, y1, ink("line"));
    if (x - half > last + 8 && x + half < w) { label(g, word, x, y1 + 13, "center", ink("soft")); last = x + half; }
  }
  last = 1e9;
  for (const v of rounded(sy, (y1 - y0) / 48)) {
    const y = Math.round(y1 - sy.at(v) * (y1 - y0)) + 0.5;
    line(g, x0, y, x1, y, ink("line"));
    if (y < last - 13) { label(g, format(my.unit, v), x0 - 8, y, "right", ink("soft")); last = y; }
  }
  line(g, x0, y1, x1, y1, ink("soft")); line(g, x0, y0, x0, y1, ink("soft"));
  label(g, `${mx.label}${sx.log ? ", logarithmic" : ""} (${mx.more ? "more" : "less"} is better)`, x1, h - 9, "right", ink("ink"), true);
  g.save(); g.translate(9, y0); g.rotate(-Math.PI / 2);
  label(g, `${my.label}${sy.log ? ", logarithmic" : ""} (${my.more ? "more" : "less"} is better)`, 0, 0, "right", ink("ink"), true);
  g.restore();
}
function drawScatter(g, w, h) {
  const {mx, my, sx, sy} = place();
  frame(g, w, h, sx, sy, mx, my);
  const px = (i) => PAD.left + sx.at(mx.v[i]) * (w - PAD.left - PAD.right), py = (i) => h - PAD.bottom - sy.at(my.v[i]) * (h - PAD.top - PAD.bottom);
  const has = (i) => RUN.has(statusOf(i)) && mx.v[i] !== null && my.v[i] !== null;
  const all = [];
  for (let i = 0; i < N; i++) if (has(i)) all.push(i);
  const meets = front(all.filter((i) => statusOf(i) === "meets"), mx, my), any = front(all.filter((i) => statusOf(i) !== "estimated"), mx, my);
  if (String(meets) !== String(any)) stairs(g, any, px, py, 1.2, [5, 4]);
  stairs(g, meets, px, py, 1.6, []);
  spots = [];
  const r = all.length > 3000 ? 2.6 : all.length > 500 ? 3.5 : 5;
  for (const some of [0, 1]) for (const i of all) { // those kept over the others
    if (pass[i] !== some) continue;
    g.globalAlpha = some ? (all.length > 3000 ? 0.55 : 0.9) : 0.12;
    shape(g, statusOf(i), px(i), py(i), r, some ? colorOf(i) : ink("soft"));
    if (some) spots.push({i, x: px(i), y: py(i)});
  }
  g.globalAlpha = 1;
  spots.sort((a, b) => a.x - b.x || a.y - b.y);
  if (D.choice !== null && has(D.choice)) star(g, px(D.choice), py(D.choice), 9);
  for (const [i, width] of [[pinned, 3], [hovered, 2]]) {
    if (i === null || !has(i)) continue;
    g.strokeStyle = ink("card"); g.lineWidth = width + 3; g.beginPath(); g.arc(px(i), py(i), 10, 0, 7); g.stroke();
    g.strokeStyle = ink("accent"); g.lineWidth = width; g.beginPath(); g.arc(px(i), py(i), 10, 0, 7); g.stroke();
  }
  sayAbsent(mx, my, has);
}
function sayAbsent(mx, my, has) {
  const gone = new Map();
  for (let i = 0; i < N; i++) if (!has(i)) { const s = D.statuses[D.status[i]][1]; gone.set(s, (gone.get(s) || 0) + 1); }
  const said = [...gone].map(([s, n]) => `${grouped(String(n))} ${s}`).join(", ");
  $("absent").textContent = said ? `Not on it, as they have no ${mx.label} and ${my.label}: ${said}.` : "";
}
function legend() {
  const ul = $("scatter-legend"), key = colorKey();
  ul.textContent = "";
  const entry = (text, draw) => {
    const li = make("li"), c = make("canvas", "mark"), g = c.getContext("2d");
    c.width = c.height = 28; g.setTransform(2, 0, 0, 2, 0, 0); draw(g);
    c.setAttribute("aria-hidden", "true");
    li.append(c, text); ul.append(li);
  };
  if (D.choice !== null) entry(D.choice_is, (g) => star(g, 7, 7.5, 6.5));
  for (const [s, text] of D.statuses) {
    if (RUN.has(s) && D.status.some((_, i) => statusOf(i) === s)) entry(text, (g) => shape(g, s, 7, 7, 4.5, key ? ink("soft") : ink("s-" + s)));
  }
  if (key) key.values.slice(0, 12).forEach((v, k) => entry(`${key.label} ${v}`, (g) => { g.fillStyle = ramp(key.values.length > 1 ? k / (key.values.length - 1) : 0); g.fillRect(2, 2, 10, 10); }));
}
if ($("x-metric")) {
  const canvas = $("scatter-canvas");
  $("x-metric").value = D.x; $("y-metric").value = D.y;
  picture(canvas, (w) => Math.max(300, Math.min(430, w * 0.62)), (g, w, h) => { drawScatter(g, w, h); legend(); });
  for (const id of ["x-metric", "y-metric", "color", "log"]) $(id).addEventListener("change", redraw);
  const near = (e) => spots.reduce((best, s) => { const d = (s.x - e.offsetX) ** 2 + (s.y - e.offsetY) ** 2; return d < best[0] ? [d, s] : best; }, [484, null])[1];
  canvas.addEventListener("pointermove", (e) => {
    const s = near(e); hovered = s ? s.i : null; canvas.style.cursor = s ? "pointer" : "";
    tip(s ? brief(s.i) : "", e.clientX, e.clientY); redraw();
  });
  canvas.addEventListener("pointerleave", () => { hovered = null; tip(); redraw(); });
  canvas.addEventListener("click", (e) => { const s = near(e); if (s) pin(s.i); });
  canvas.addEventListener("blur", () => { hovered = null; tip(); redraw(); });
  canvas.addEventListener("keydown", (e) => {
    const way = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1}[e.key];
    if (way && spots.length) {
      let k = spots.findIndex((s) => s.i === (hovered ?? pinned ?? D.choice));
      k = k < 0 ? 0 : Math.min(spots.length - 1, Math.max(0, k + way));
      const r = canvas.getBoundingClientRect();
      hovered = spots[k].i; tip(brief(hovered), r.left + spots[k].x, r.top + spots[k].y); redraw(); e.preventDefault();
    }
    if ((e.key === "Enter" || e.key === " ") && hovered !== null) { pin(hovered); e.preventDefault(); }
    if (e.key === "Escape") { hovered = null; if (pinned !== null) pin(pinned); tip(); redraw(); }
  });
}

// ---- parallel coordinates
const SIDE = 46, TOP = 46, FOOT = 16, FAINT = 1500, MOST_LINES = 4000;
const axisX = (k, w) => axes.length < 2 ? w / 2 : SIDE + k * (w - 2 * SIDE - 34) / (axes.length - 1);
const axisY = (t, h) => h - FOOT - t * (h - TOP - FOOT);
function trace(g, i, w, h) {
  let open = false;
  axes.forEach((a, k) => {
    if (a.at[i] === null) { open = false; return; }
    g[open ? "lineTo" : "moveTo"](axisX(k, w), axisY(a.at[i], h)); open = true;
  });
}
function bundle(g, trials, w, h, color, width, alpha) {
  g.strokeStyle = color; g.lineWidth = width; g.globalAlpha = alpha;
  for (const i of trials) { g.beginPath(); trace(g, i, w, h); g.stroke(); }
  g.globalAlpha = 1;
}
const every = (list, most) => list.length <= most ? list : Array.from({length: most}, (_, k) => list[Math.floor(k * list.length / most)]);
function drawParallel(g, w, h) {
  const others = [], kept = [];
  for (let i = 0; i < N; i++) (pass[i] ? kept : others).push(i);
  bundle(g, every(others, FAINT), w, h, ink("line"), 1, 0.5);
  const lines = every(kept, MOST_LINES), alpha = Math.max(0.12, Math.min(0.7, 30 / Math.sqrt(lines.length + 1) / 4));
  const rank = (i) => ["refused", "failed", "out_of_memory", "estimated", "misses", "meets"].indexOf(statusOf(i));
  for (const i of [...lines].sort((a, b) => rank(a) - rank(b))) bundle(g, [i], w, h, colorOf(i), rank(i) > 3 ? 1.8 : 1, rank(i) > 3 ? Math.min(0.9, alpha * 2) : alpha);
  if (D.choice !== null && pass[D.choice]) { bundle(g, [D.choice], w, h, ink("card"), 6, 1); bundle(g, [D.choice], w, h, ink("ink"), 3, 1); }
  for (const i of [pinned, hovered]) if (i !== null) { bundle(g, [i], w, h, ink("card"), 6, 1); bundle(g, [i], w, h, ink("accent"), 3, 1); }
  axes.forEach((a, k) => {
    const x = Math.round(axisX(k, w)) + 0.5, y0 = axisY(1, h), y1 = axisY(0, h);
    line(g, x, y0, x, y1, ink("soft"), 1.2);
    g.font = "600 12px system-ui, sans-serif";
    const room = axes.length > 1 ? axisX(1, w) - axisX(0, w) - 8 : w, high = axes.length > 7 && k % 2 ? 26 : 9; // long names take turns
    const name = shortened(g, a.label, axes.length > 7 ? 2 * room : room), half = g.measureText(name).width / 2;
    label(g, name, Math.min(Math.max(half, x), w - half), high, "center", ink("ink"), true);
    if (a.brush) {
      g.globalAlpha = 0.28; g.fillStyle = ink("accent");
      const top = axisY(a.brush[1], h) - (a.key ? 6 : 0), bottom = axisY(a.brush[0], h) + (a.key ? 6 : 0);
      g.fillRect(x - 9, top, 18, Math.max(3, bottom - top)); g.globalAlpha = 1;
      g.strokeStyle = ink("accent"); g.lineWidth = 1.5; g.strokeRect(x - 9, top, 18, Math.max(3, bottom - top));
    }
    const n = a.key ? a.key.values.length : 0, step = Math.ceil(n / 14);
    const found = a.key ? a.key.values.map((v, c) => [c / (n - 1), v]).filter((_, c) => c % step === 0 || c === n - 1) : rounded(a.scale, 6).map((v) => [a.scale.at(v), format(a.m.unit, v)]);
    g.font = "12px system-ui, sans-serif";
    for (const [t, word] of found) {
      const text = shortened(g, word, Math.max(38, room - 12)), y = axisY(t, h), wide = g.measureText(text).width;
      line(g, x - 3, y, x + 3, y, ink("soft"));
      g.globalAlpha = 0.8; g.fillStyle = ink("card"); g.fillRect(x + 5, y - 8, wide + 4, 16); g.globalAlpha = 1;
      label(g, text, x + 7, y, "left", ink("ink"));
    }
  });
  $("lines").textContent = (kept.length > MOST_LINES ? `${grouped(String(MOST_LINES))} of the ${grouped(String(kept.length))} lines kept are drawn. ` : "") +
    "Lines end where a configuration has no value, as one that does not fit has no time." + (D.choice === null ? "" : ` Bold: ${D.choice_is}.`);
  for (const a of axes) a.node.style.left = axisX(axes.indexOf(a), w) + "px";
}
const snap = (a, t) => a.key ? Math.round(t * (a.key.values.length - 1)) / (a.key.values.length - 1) : t;
function sayAxes() {
  for (const a of axes) {
    a.node.setAttribute("aria-valuetext", a.brush ? stretch(a) : "all");
    a.node.setAttribute("aria-valuenow", (a.brush ? a.brush[1] : 1).toFixed(2));
  }
}
function brushWithKeys(a, e) {
  const way = {ArrowUp: 1, ArrowDown: -1}[e.key], step = a.key ? 1 / (a.key.values.length - 1) : 0.05;
  if (e.key === "Delete" || e.key === "Backspace" || e.key === "Escape") a.brush = null;
  else if (!way) return;
  else if (!a.brush) a.brush = e.shiftKey ? (way > 0 ? [step, 1] : [0, 1 - step]) : way > 0 ? [0, a.key ? 0 : 0.25] : [a.key ? 1 : 0.75, 1];
  else {
    const [lo, hi] = a.brush;
    a.brush = e.shiftKey ? [lo, Math.min(1, Math.max(lo, hi + way * step))] : lo + way * step < -1e-9 || hi + way * step > 1 + 1e-9 ? a.brush : [lo + way * step, hi + way * step];
  }
  e.preventDefault(); sayAxes(); update();
}
function brushWithMouse(a) {
  let from = null, moved = null;
  const at = (e) => { const h = a.node.clientHeight; return Math.min(1, Math.max(0, (h - FOOT - e.offsetY) / (h - TOP - FOOT))); };
  a.node.onpointerdown = (e) => {
    from = at(e); moved = a.brush && from > a.brush[0] && from < a.brush[1] ? [...a.brush] : null;
    a.node.setPointerCapture(e.pointerId);
  };
  a.node.onpointermove = (e) => {
    if (from === null) return;
    const t = at(e);
    if (moved) { const d = Math.max(-moved[0], Math.min(1 - moved[1], t - from)); a.brush = [moved[0] + d, moved[1] + d]; }
    else if (Math.abs(t - from) > 0.015) a.brush = [Math.min(t, from), Math.max(t, from)];
    sayAxes(); update();
  };
  a.node.onpointerup = (e) => {
    const t = at(e);
    if (Math.abs(t - from) <= 0.015) { // a click: one value of a key, or nothing
      const same = a.brush && a.key && a.brush[0] === snap(a, t) && a.brush[1] === snap(a, t);
      a.brush = a.key && !same ? [snap(a, t), snap(a, t)] : null;
    } else if (a.key && !moved) {
      const n = a.key.values.length - 1, lo = Math.ceil(a.brush[0] * n - 0.2) / n, hi = Math.floor(a.brush[1] * n + 0.2) / n;
      a.brush = lo <= hi ? [lo, hi] : [snap(a, t), snap(a, t)];
    } else if (a.key) a.brush = a.brush.map((b) => snap(a, b));
    from = null; sayAxes(); update();
  };
}
axes.forEach((a) => {
  a.node = make("div", "axis");
  a.node.tabIndex = 0; a.node.setAttribute("role", "slider"); a.node.setAttribute("aria-label", a.label);
  a.node.setAttribute("aria-valuemin", "0"); a.node.setAttribute("aria-valuemax", "1"); a.node.setAttribute("aria-valuenow", "1");
  a.node.onkeydown = (e) => brushWithKeys(a, e);
  brushWithMouse(a);
  $("parallel").append(a.node);
});
picture($("parallel-canvas"), () => 360, drawParallel);

// ---- a metric by the values of each key
function median(list) { const s = [...list].sort((a, b) => a - b), n = s.length; return n % 2 ? s[(n - 1) / 2] : (s[n / 2 - 1] + s[n / 2]) / 2; }
function drawMini(g, w, h, k) {
  const m = metric[$("mini-metric").value], s = scaleOf(m), n = k.values.length, x0 = 62, x1 = w - 6, y0 = 8, y1 = h - 22;
  const groups = k.values.map(() => []);
  for (let i = 0; i < N; i++) if (pass[i] && m.v[i] !== null) groups[k.at[i]].push(i);
  const y = (v) => y1 - s.at(v) * (y1 - y0), slot = (x1 - x0) / n;
  let last = 1e9;
  for (const v of rounded(s, 5)) {
    line(g, x0, y(v), x1, y(v), ink("line"));
    if (y(v) < last - 13) { label(g, format(m.unit, v), x0 - 6, y(v), "right", ink("soft")); last = y(v); }
  }
  groups.forEach((trials, c) => {
    const mid = x0 + (c + 0.5) * slot, half = Math.min(18, slot * 0.36);
    every(trials, 250).forEach((i, j) => {
      g.globalAlpha = Math.max(0.3, Math.min(0.9, 40 / trials.length)); // spread evenly, without chance
      shape(g, statusOf(i), mid + ((j * 0.618) % 1 - 0.5) * 1.4 * half, y(m.v[i]), 2.8, ink("s-" + statusOf(i)));
      g.globalAlpha = 1;
    });
    if (trials.length) line(g, mid - half, y(median(trials.map((i) => m.v[i]))), mid + half, y(median(trials.map((i) => m.v[i]))), ink("ink"), 2.5);
    if (n <= 10 || c % Math.ceil(n / 10) === 0) label(g, shortened(g, k.values[c], n <= 10 ? slot - 2 : slot * 2), mid, h - 9, "center", ink("soft"));
  });
}
$("mini-metric").value = D.metrics.some((m) => m.name === D.objective) ? D.objective : D.y;
$("mini-metric").addEventListener("change", redraw);
for (const k of D.keys) {
  const figure = make("div"), head = make("h4", "", k.label), hold = make("div", "picture"), canvas = make("canvas");
  canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", `The metric by value of ${k.label}`);
  hold.append(canvas); figure.append(head, hold); $("minis").append(figure);
  picture(canvas, () => 150, (g, w, h) => drawMini(g, w, h, k));
}

headRow(); sayAxes(); sayPinned(); update(); restyle();
