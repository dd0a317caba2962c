const D = JSON.parse($("data").textContent), T = D.timeline, M = D.curves;
const LEFT = 104, RIGHT = 10, LANE = 21, GAP = 9, AXIS = 24;
const whole = [0, Math.max(1, ...(T ? T.span : []))];
const room = (whole[1] - whole[0]) * 0.01;
let view = [-room * 0.4, whole[1] + room], cross = null;
const first = [...view];
const runInk = (k) => ink("c-" + D.colors[k % D.colors.length]);
const DASHES = [[], [7, 4], [2, 3]];
const px = (w, t) => LEFT + (t - view[0]) / (view[1] - view[0]) * (w - LEFT - RIGHT);
const timeAt = (p, e) => e.offsetX < LEFT || e.offsetX > p.w - RIGHT ? null : view[0] + (e.offsetX - LEFT) / (p.w - LEFT - RIGHT) * (view[1] - view[0]);

function show(a, b) {
  const width = Math.min(first[1] - first[0], Math.max(20, b - a));
  a = Math.min(Math.max(a, first[0]), first[1] - width);
  view = [a, a + width]; redraw();
}
function zoom(factor, t) {
  const mid = t ?? (view[0] + view[1]) / 2;
  show(mid - (mid - view[0]) * factor, mid + (view[1] - mid) * factor);
}
const MOVES = {
  in: () => zoom(0.5), out: () => zoom(2), all: () => show(...first),
  left: () => show(view[0] - (view[1] - view[0]) * 0.1, view[1] - (view[1] - view[0]) * 0.1),
  right: () => show(view[0] + (view[1] - view[0]) * 0.1, view[1] + (view[1] - view[0]) * 0.1),
};
for (const b of document.querySelectorAll("[data-do]")) b.onclick = () => MOVES[b.dataset.do]();

function axis(g, w, y0, y1) {
  const size = unitSize("seconds", Math.max(Math.abs(view[0]), Math.abs(view[1])) / 1e9) * 1e9;
  for (const t of ticks(view[0], view[1], (w - LEFT) / 110, size)) {
    const x = Math.round(px(w, t)) + 0.5;
    line(g, x, y0, x, y1, ink("line"));
    const word = format("seconds", t / 1e9);
    if (x + g.measureText(word).width / 2 < w) label(g, word, x, y1 + 12, "center", ink("soft"));
  }
}

// ---- timeline: for every stream a lane per run
const lanes = [];
if (T) for (const s of T.streams) s.runs.forEach((row, run) => lanes.push({stream: s.name, run, row, last: run === s.runs.length - 1}));
const laneTop = lanes.map((_, k) => k * LANE + Math.floor(k / D.letters.length) * GAP);
const height = lanes.length ? laneTop[lanes.length - 1] + LANE + AXIS : 0;
const changeOf = (row, i) => {
  const d = row.delta[i];
  if (d === null) return "new";
  const was = Math.max(1, row.ns[i]);
  return Math.abs(d) <= Math.max(1000, was * 0.005) ? "same" : d > 0 ? "grew" : "shrank";
};
const CHANGE = {grew: "c-activation", shrank: "c-gradient", same: "c-slack", new: "c-temporary"};
function fillOf(row, i) {
  if ($("mode").value === "kind") {
    const name = T.categories[row.category[i]];
    return ink("c-" + name) || ink("c-other");
  }
  return ink(CHANGE[changeOf(row, i)]);
}
function drawTimeline(g, w, h) {
  axis(g, w, 0, h - AXIS);
  lanes.forEach((lane, k) => {
    const y = laneTop[k], row = lane.row;
    if (!lane.run) label(g, shortened(g, lane.stream, LEFT - 34), 0, y + LANE * D.letters.length / 2, "left", ink("ink"));
    label(g, D.letters[lane.run], LEFT - 16, y + LANE / 2, "center", ink("ink"), true);
    g.fillStyle = runInk(lane.run); g.fillRect(LEFT - 7, y + 1, 5, LANE - 2);
    g.globalAlpha = 0.6; g.fillStyle = ink("track"); g.fillRect(LEFT, y + 1, w - LEFT - RIGHT, LANE - 2); g.globalAlpha = 1;
    g.save(); g.beginPath(); g.rect(LEFT, y, w - LEFT - RIGHT, LANE); g.clip();
    let x1 = -1, last = "";
    for (let i = 0; i < row.start.length; i++) {
      if (row.start[i] + row.ns[i] < view[0] || row.start[i] > view[1]) continue;
      const x = px(w, row.start[i]), width = row.ns[i] / (view[1] - view[0]) * (w - LEFT - RIGHT), fill = fillOf(row, i);
      if (width < 0.7 && x + width < x1 && fill === last) continue;
      const shown = Math.max(width, 0.8);
      g.fillStyle = fill; g.fillRect(x, y + 1, shown > 3 ? shown - 0.8 : shown, LANE - 2);
      if (width > 5 && $("mode").value === "change" && row.delta[i] === null) hatch(g, x, y + 1, shown - 0.8, LANE - 2);
      x1 = x + shown; last = fill;
    }
    g.restore();
    const end = px(w, T.span[lane.run]);
    line(g, end, y - 1, end, y + LANE + 1, runInk(lane.run), 2);
  });
  if (cross !== null) line(g, px(w, cross), 0, px(w, cross), h - AXIS, ink("ink"));
}
function hatch(g, x, y, w, h) { // what is only here is striped, not only coloured
  g.save(); g.beginPath(); g.rect(x, y, w, h); g.clip();
  g.strokeStyle = ink("card"); g.lineWidth = 1.4; g.beginPath();
  for (let k = x - h; k < x + w; k += 6) { g.moveTo(k, y + h); g.lineTo(k + h, y); }
  g.stroke(); g.restore();
}
function sliceAt(y, t, w) {
  const k = laneTop.findIndex((top) => y >= top && y < top + LANE);
  if (k < 0 || t === null) return null;
  const row = lanes[k].row, slack = (view[1] - view[0]) / (w - LEFT) * 2;
  let best = null;
  for (let i = 0; i < row.start.length; i++) {
    const off = Math.max(row.start[i] - t, t - row.start[i] - row.ns[i], 0);
    if (off <= slack && (best === null || off < best[0])) best = [off, i];
  }
  return best ? {lane: lanes[k], i: best[1]} : null;
}
function sliceText({lane, i}) {
  const row = lane.row, d = row.delta[i], own = row.ns[i] / 1e9;
  const other = lane.run ? "A" : D.letters[1];
  const like = d === null ? null : lane.run ? row.ns[i] - d : row.ns[i] + d;
  const from = lane.run ? like : row.ns[i];
  const says = d === null ? `not in ${other}` : d === 0 ? `the same in ${other}` : `${format("seconds", like / 1e9)} in ${other} (${d > 0 ? "+" : ""}${sig(100 * d / Math.max(1, from))} % from A on)`;
  return `<b>${escaped(T.names[row.name[i]])}</b><br>${escaped(T.categories[row.category[i]])}, ${escaped(lane.stream)}, run ${D.letters[lane.run]}` +
    `<br>${format("seconds", own)}; ${says}<br><span class="note">begins at ${format("seconds", row.start[i] / 1e9)} of the step</span>`;
}
if (T) {
  const canvas = $("timeline-canvas"), p = picture(canvas, () => height, drawTimeline);
  let drag = null;
  $("mode").onchange = () => {
    const kind = $("mode").value === "kind";
    $("legend-change").hidden = kind; $("legend-kind").hidden = !kind; redraw();
  };
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, timeAt(p, e));
  }, {passive: false});
  canvas.addEventListener("pointerdown", (e) => { drag = [e.clientX, ...view]; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", (e) => {
    if (drag) {
      const d = (drag[0] - e.clientX) / (p.w - LEFT - RIGHT) * (drag[2] - drag[1]);
      show(drag[1] + d, drag[2] + d); tip(); return;
    }
    cross = timeAt(p, e);
    const found = sliceAt(e.offsetY, cross, p.w);
    tip(found ? sliceText(found) : "", e.clientX, e.clientY); redraw();
  });
  canvas.addEventListener("pointerleave", () => { cross = null; tip(); redraw(); });
  canvas.addEventListener("dblclick", (e) => zoom(0.25, timeAt(p, e)));
  canvas.addEventListener("keydown", (e) => {
    const move = {"+": "in", "=": "in", "-": "out", "0": "all", ArrowLeft: "left", ArrowRight: "right"}[e.key];
    if (e.ctrlKey || e.metaKey || e.altKey || !move) return;
    MOVES[move](); e.preventDefault();
  });
}

// ---- memory curves on the same time scale
function drawMemory(g, w, h) {
  const top = Math.max(1, ...M.filter(Boolean).map((c) => c.kib.reduce((a, b) => Math.max(a, b), 0))) * 1.06, y0 = 8, y1 = h - AXIS;
  const y = (kib) => y1 - kib / top * (y1 - y0);
  axis(g, w, y0, y1);
  const size = unitSize("bytes", top * 1024) / 1024;
  for (const v of ticks(0, top, 5, size)) {
    line(g, LEFT, y(v), w - RIGHT, y(v), ink("line"));
    label(g, format("bytes", v * 1024), LEFT - 8, y(v), "right", ink("soft"));
  }
  g.save(); g.beginPath(); g.rect(LEFT, 0, w - LEFT - RIGHT, y1); g.clip();
  M.forEach((c, k) => {
    if (!c) return;
    g.strokeStyle = runInk(k); g.lineWidth = 1.8; g.setLineDash(DASHES[k % 3]); g.beginPath();
    c.t.forEach((t, i) => {
      const x = px(w, t);
      if (i) g.lineTo(x, y(c.kib[i - 1]));
      g[i ? "lineTo" : "moveTo"](x, y(c.kib[i]));
    });
    g.stroke();
  });
  g.restore();
  if (cross !== null) line(g, px(w, cross), y0, px(w, cross), y1, ink("ink"));
}
if (M) {
  const canvas = $("memory-canvas"), p = picture(canvas, () => 240, drawMemory);
  canvas.addEventListener("pointermove", (e) => {
    cross = timeAt(p, e);
    const said = cross === null ? "" : M.map((c, k) => {
      if (!c) return "";
      let i = c.t.findIndex((t) => t > cross);
      i = (i < 0 ? c.t.length : i) - 1;
      return i < 0 ? "" : `<tr><td><b>${D.letters[k]}</b></td><td class="n">${format("bytes", c.kib[i] * 1024)}</td></tr>`;
    }).join("");
    tip(said && `<table>${said}</table>`, e.clientX, e.clientY); redraw();
  });
  canvas.addEventListener("pointerleave", () => { cross = null; tip(); redraw(); });
}
restyle();
