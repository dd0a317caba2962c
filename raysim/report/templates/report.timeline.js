// Slices of every stream; rows shown, kinds hidden, names found; all recorded time in little.
let lines = [], ROW = 24, HEAD = 25, GAP = 2, linesHeight = 0;
const hidden = new Set();
let query = "", found = null; // found: whether each name matches
const lineHeight = (l) => l.row ? ROW : HEAD;
function layout(rows) { // "all", "compute", or the number of a GPU
  const shown = /^\d+$/.test(rows) ? [groups[+rows]] : groups;
  lines = [];
  for (const g of shown) {
    const own = rows === "compute" ? g.rows.filter((l) => l.row.label === "compute") : g.rows;
    if (rows !== "compute" && groups.length > 1) lines.push({head: g.label, where: g.where});
    for (const l of own) lines.push(Object.assign(l, {label: rows === "compute" ? g.label : l.row.label}));
  }
  const dense = lines.length > 24;
  ROW = dense ? 16 : 24; HEAD = dense ? 22 : 25; GAP = dense ? 1 : 2;
  linesHeight = lines.reduce((h, l) => h + lineHeight(l), 0);
}
const fits = new Map();
function clip(g, text, room) {
  if (!fits.has(text)) fits.set(text, g.measureText(text).width);
  if (fits.get(text) <= room) return text;
  const short = text.split(/[ .]/).filter((w) => /\d/.test(w)).pop();
  return short && g.measureText(short).width <= room ? short : "";
}
function firstAfter(l, t) { // index of the first slice that ends after t
  let a = 0, b = l.start.length;
  while (a < b) { const m = (a + b) >> 1; if (l.start[m] + l.row.ns[m] > t) b = m; else a = m + 1; }
  return a;
}
const faint = (l, i) => found && !(found[l.row.name[i]] || foundKinds[l.row.category[i]]);
let foundKinds = [];
function drawRow(p, l, y) {
  const g = p.g, scale = p.plot / (view[1] - view[0]), h = ROW - 2 * GAP;
  g.globalAlpha = 0.6; g.fillStyle = inks.track; g.fillRect(LEFT, y + GAP, p.plot, h); g.globalAlpha = 1;
  g.save(); g.beginPath(); g.rect(LEFT, y, p.plot, ROW); g.clip();
  const part = Math.ceil(T.span / T.shades);
  for (const [i, c, share] of l.row.shade) { // slices left out: how busy they kept each part of the time
    const x = px(p, i * part), width = part * scale;
    if (x > LEFT + p.plot || x + width < LEFT || hidden.has(T.categories[c])) continue;
    g.globalAlpha = Math.min(1, 0.15 + 0.85 * share / 1000);
    g.fillStyle = color(T.categories[c]); g.fillRect(x, y + GAP, width, h); g.globalAlpha = 1;
  }
  let x1 = -1; // of slices narrower than a pixel, one a pixel
  for (let i = firstAfter(l, view[0]); i < l.start.length && l.start[i] < view[1]; i++) {
    const x = px(p, l.start[i]), width = l.row.ns[i] * scale, key = T.categories[l.row.category[i]];
    if (hidden.has(key)) continue;
    const dim = faint(l, i);
    if (width < 0.7 && x + width < x1 && (dim || !found)) continue;
    const fill = color(key), shown = Math.max(width, found && !dim ? 1.6 : 0.8);
    g.globalAlpha = dim ? 0.14 : 1;
    g.fillStyle = shown > 4 ? paint(g, key) : fill; g.fillRect(x, y + GAP, shown > 3 ? shown - 0.8 : shown, h);
    x1 = x + shown;
    if (width > 26 && !dim) {
      const a = Math.max(x, LEFT), room = Math.min(x + width, LEFT + p.plot) - a - 9;
      const word = room > 14 && clip(g, T.names[l.row.name[i]], room);
      if (word) {
        if (data.patterns[key]) { g.fillStyle = fill; g.fillRect(a + 2, y + GAP + 2, g.measureText(word).width + 4, h - 4); }
        g.fillStyle = lightOn(fill) ? "#14181d" : "#fff"; g.fillText(word, a + 4, y + ROW / 2 + 0.5);
      }
    }
    g.globalAlpha = 1;
    if (picked && picked.l === l && picked.i === i) {
      g.strokeStyle = inks.ink; g.lineWidth = 2; g.strokeRect(x + 1, y + GAP, Math.max(2, width - 2), h); g.lineWidth = 1;
    }
  }
  g.restore();
}
function drawTimeline(p, w) {
  const g = p.g; let y = 0;
  axis(p, 0, linesHeight + 4);
  for (const l of lines) {
    if (l.row) { rowLabel(g, l.label, y + ROW / 2, inks.soft); g.textAlign = "left"; drawRow(p, l, y); }
    y += lineHeight(l);
  }
  for (const s of T.steps) upright(p, s[1], 0, y, inks.soft, []);
  if (curves[curve]) upright(p, curves[curve].at, 0, y + 4, inks.ink, [4, 3]);
  drawMark(p, 0, y);
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
  return i < l.start.length && l.start[i] <= t + slack && !hidden.has(T.categories[l.row.category[i]]) ? i : -1;
}
function sliceText(l, i) {
  const r = l.row, name = T.names[r.name[i]], info = T.infos[r.info[i]];
  return `<b>${escaped(name)}</b><br>${escaped(T.categories[r.category[i]])}, ${time(r.ns[i])}` +
    (info ? `<br>${escaped(info)}` : "") +
    `<br><span class="note">${escaped(T.groups.length > 1 ? l.group.label + ", " : "")}${escaped(r.label)}, begins at ${time(l.start[i] - origin)} of the step</span>`;
}
function sayTimeline(y, t) {
  for (const l of lines) {
    if (y < lineHeight(l)) { const i = l.row ? sliceAt(l, t) : -1; return i < 0 ? "" : sliceText(l, i); }
    y -= lineHeight(l);
  }
  return "";
}
function pick(way, down) { // along a stream, or to the stream below at the same moment
  const rows = lines.filter((l) => l.row && l.start.length);
  if (!rows.length) return;
  const bound = (l, i) => Math.min(l.start.length - 1, Math.max(0, i));
  if (!picked || !picked.l) { const l = rows.find((r) => r.row.label === "compute") || rows[0]; picked = {l, i: bound(l, firstAfter(l, view[0]))}; }
  else if (down) { const l = rows[Math.min(rows.length - 1, Math.max(0, rows.indexOf(picked.l) + down))]; picked = {l, i: bound(l, firstAfter(l, picked.l.start[picked.i]))}; }
  else picked = {l: picked.l, i: bound(picked.l, picked.i + way)};
  const l = picked.l, skip = (i) => hidden.has(T.categories[l.row.category[i]]) || (way && faint(l, i));
  while (way && skip(picked.i) && picked.i + way >= 0 && picked.i + way < l.start.length) picked.i += way;
  const t = picked.t = l.start[picked.i], w = view[1] - view[0];
  if (t < view[0] || t + l.row.ns[picked.i] > view[1]) show(t - w / 3, t + w * 2 / 3);
  const p = pictureOf("timeline-canvas"); let y = 0;
  for (const m of lines) { if (m === l) break; y += lineHeight(m); }
  const text = sliceText(l, picked.i);
  beside(p, px(p, t), y + ROW - 8, text);
  say(text.replace(/<[^>]*>/g, " ")); draws();
}
function search(text) {
  query = text.trim().toLowerCase();
  const has = (w) => w.toLowerCase().includes(query);
  found = query ? T.names.map(has) : null; foundKinds = query ? T.categories.map(has) : [];
  let count = 0, ns = 0; const by = new Map();
  if (query) for (const g of groups) for (const l of g.rows) for (let i = 0; i < l.start.length; i++) if (!faint(l, i)) {
    count++; ns += l.row.ns[i]; by.set(l.row.label, (by.get(l.row.label) || 0) + l.row.ns[i]);
  }
  const on = [...by].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([k, v]) => k + " " + time(v)).join(", ");
  $("found").textContent = !query ? "" : !count ? "no slice has this in its name or kind"
    : count.toLocaleString("en") + (count === 1 ? " slice, " : " slices, ") + time(ns) + " in all" + (by.size > 1 ? ": " + on : " on " + [...by.keys()][0]) + (T.drawn < T.total ? ", of those drawn" : "");
  picked = null; draws();
}

// ---- all recorded time in little, with the stretch that is shown
let little = null, littleFor = "";
function drawOverview(p, w, h) {
  const g = p.g, own = groups.map((s) => s.rows.find((l) => l.row.label === "compute") || s.rows[0]);
  const look = [w, isDark(), devicePixelRatio].join();
  if (littleFor !== look) {
    little = document.createElement("canvas"); little.width = p.canvas.width; little.height = p.canvas.height;
    const s = little.getContext("2d"), dpr = devicePixelRatio || 1, each = (h - 2) / own.length;
    s.setTransform(dpr, 0, 0, dpr, 0, 0);
    own.forEach((l, k) => {
      s.fillStyle = inks.track; s.fillRect(LEFT, k * each, p.plot, each - (each > 3 ? 1 : 0));
      let x1 = -1;
      for (let i = 0; i < l.start.length; i++) {
        const x = LEFT + (l.start[i] - whole[0]) / (whole[1] - whole[0]) * p.plot, width = l.row.ns[i] / (whole[1] - whole[0]) * p.plot;
        if (x + width < x1) continue;
        s.fillStyle = color(T.categories[l.row.category[i]]); s.fillRect(x, k * each, Math.max(width, 0.8), each - (each > 3 ? 1 : 0));
        x1 = x + Math.max(width, 0.8);
      }
    });
    littleFor = look;
  }
  g.drawImage(little, 0, 0, w, h);
  rowLabel(g, "all recorded", h / 2 - 1, inks.soft);
  const on = (t) => LEFT + (t - whole[0]) / (whole[1] - whole[0]) * p.plot;
  const a = Math.max(LEFT, on(view[0])), b = Math.min(LEFT + p.plot, on(view[1]));
  g.globalAlpha = 0.72; g.fillStyle = inks.card;
  g.fillRect(LEFT, 0, a - LEFT, h); g.fillRect(b, 0, LEFT + p.plot - b, h); g.globalAlpha = 1;
  g.strokeStyle = inks.ink; g.lineWidth = 2; g.strokeRect(a + 1, 1, Math.max(3, b - a - 2), h - 2); g.lineWidth = 1;
}

readInks();
if (T) {
  layout($("timeline-rows") ? $("timeline-rows").value : "all");
  const o = $("overview-canvas"), overview = {canvas: o, draw: drawOverview, height: () => 38, g: o.getContext("2d")};
  pictures.push(overview);
  const there = (e) => { const w = view[1] - view[0], t = whole[0] + (e.offsetX - LEFT) / overview.plot * (whole[1] - whole[0]); show(t - w / 2, t + w / 2); };
  o.addEventListener("pointerdown", (e) => { o.setPointerCapture(e.pointerId); there(e); });
  o.addEventListener("pointermove", (e) => { if (e.buttons) there(e); });
  o.addEventListener("keydown", keys);
  const p = picture("timeline-canvas", drawTimeline, () => linesHeight + 4 + AXIS, sayTimeline);
  p.pick = pick;
  if ($("timeline-rows")) $("timeline-rows").onchange = (e) => { layout(e.target.value); picked = null; drawNow(); };
  if ($("timeline-step")) $("timeline-step").onchange = (e) => {
    const s = T.steps[+e.target.value]; origin = s[1]; first = pad(s[1], s[2]); show(...first);
  };
  $("find").oninput = (e) => search(e.target.value);
  $("find").onkeydown = (e) => {
    if (e.key === "Enter") { pick(picked ? (e.shiftKey ? -1 : 1) : 0, 0); if (picked && faint(picked.l, picked.i)) pick(1, 0); e.preventDefault(); }
    if (e.key === "Escape") { e.target.value = ""; search(""); tip(); }
  };
  for (const b of document.querySelectorAll("#timeline-legend button")) b.onclick = () => {
    const key = T.categories[+b.dataset.kind];
    if (hidden.has(key)) hidden.delete(key); else hidden.add(key);
    b.setAttribute("aria-pressed", !hidden.has(key)); picked = null; tip(); drawNow();
  };
}
