// Links over time: the deeper a cell, the larger the share of what the link can carry.
let LINK = 17;
const KIND = 22;
let linkLines = [], linksHeight = 0;
const linkHeight = (l) => l.levels ? LINK : KIND;
function layoutLinks(kind) {
  linkLines = everyLine.filter((l) => !kind || l.kind === kind);
  LINK = linkLines.length > 48 ? 12 : 17;
  linksHeight = linkLines.reduce((h, l) => h + linkHeight(l), 0);
}
const everyLine = [];
if (H) for (const r of H.rows) {
  if (!everyLine.length || everyLine[everyLine.length - 1].kind !== r.kind) everyLine.push({kind: r.kind, head: r.kind + (r.capacity ? ", " + rate(r.capacity) : "")});
  everyLine.push({...r, levels: Uint8Array.from({length: H.cells}, (_, i) => parseInt(r.cells.slice(2 * i, 2 * i + 2), 16))});
}
let heats = null, heatsFor = null;
function heat(level) { // from nothing over three stops to full, lighter to deeper on either page
  if (heatsFor !== inks) {
    const stops = [0, 1, 2, 3].map((k) => parseInt(inks["heat-" + k].slice(1), 16));
    heats = Array.from({length: 256}, (_, i) => {
      const share = i / 255, k = share < 0.08 ? 0 : share < 0.5 ? 1 : 2, f = (share - [0, 0.08, 0.5][k]) / [0.08, 0.42, 0.5][k];
      const mix = (s) => Math.round((stops[k] >> s & 255) * (1 - f) + (stops[k + 1] >> s & 255) * f);
      return `rgb(${mix(16)},${mix(8)},${mix(0)})`;
    });
    heatsFor = inks;
  }
  return heats[level];
}
const cellAt = (t) => Math.floor((t - H.begin) / (H.end - H.begin) * H.cells);
const cellStart = (i) => H.begin + i / H.cells * (H.end - H.begin);
function drawLinks(p, w) {
  const g = p.g; let y = 0;
  axis(p, 0, linksHeight + 2);
  for (const l of linkLines) {
    if (!l.levels) {
      g.fillStyle = inks.card; g.fillRect(0, y, w, KIND); g.textAlign = "left"; g.textBaseline = "middle";
      g.font = "600 12.5px system-ui, sans-serif"; g.fillStyle = inks.ink; g.fillText(l.head, 0, y + KIND / 2 + 2); g.font = "12px system-ui, sans-serif";
      y += KIND; continue;
    }
    g.font = (LINK < 14 ? 10.5 : 12) + "px system-ui, sans-serif";
    rowLabel(g, l.short, y + LINK / 2, inks.soft);
    g.save(); g.beginPath(); g.rect(LEFT, y, p.plot, LINK); g.clip();
    for (let i = Math.max(0, cellAt(view[0])), from = i; i < H.cells && cellStart(i) < view[1]; i = from) {
      for (from = i + 1; from < H.cells && l.levels[from] === l.levels[i]; from++);
      g.fillStyle = heat(l.levels[i]);
      const a = px(p, cellStart(i)), b = px(p, cellStart(from));
      g.fillRect(a, y + 1, b - a + 0.4, LINK - 2);
    }
    g.restore();
    if (picked && picked.link === l) { g.strokeStyle = inks.ink; g.lineWidth = 2; g.strokeRect(px(p, cellStart(picked.i)), y + 1, Math.max(3, px(p, cellStart(picked.i + 1)) - px(p, cellStart(picked.i))), LINK - 2); g.lineWidth = 1; }
    y += LINK;
  }
  g.font = "12px system-ui, sans-serif";
  drawMark(p, 0, y);
  upright(p, cross, 0, y, inks.ink, []);
}
function linkText(l, i) {
  const share = l.levels[i] / H.levels, least = l.levels[i] === 1 ? "at most " : "";
  return `<b>${escaped(l.links.join(", "))}</b><br>${least}${(share * 100).toFixed(1)} %` + (l.capacity ? ` of ${rate(l.capacity)}: ${least}${rate(share * l.capacity)}` : " of the time busy") +
    `<br><span class="note">${time(cellStart(i) - origin)} to ${time(cellStart(i + 1) - origin)} of the step; over all of it mean ${(l.mean * 100).toFixed(1)} %, peak ${(l.peak * 100).toFixed(0)} %</span>`;
}
function sayLinks(y, t) {
  for (const l of linkLines) {
    if (y < linkHeight(l)) { const i = cellAt(t); return l.levels && i >= 0 && i < H.cells ? linkText(l, i) : ""; }
    y -= linkHeight(l);
  }
  return "";
}
function pickLink(way, down) {
  const rows = linkLines.filter((l) => l.levels), by = Math.max(1, Math.round((view[1] - view[0]) / (H.end - H.begin) * H.cells / 100));
  const start = Math.max(0, cellAt(view[0]));
  if (!picked || !picked.link) picked = {link: rows[0], i: start};
  else picked = {link: rows[Math.min(rows.length - 1, Math.max(0, rows.indexOf(picked.link) + down))], i: Math.min(H.cells - 1, Math.max(0, picked.i + way * by))};
  picked.t = cellStart(picked.i);
  const w = view[1] - view[0]; if (picked.t < view[0] || picked.t >= view[1]) show(picked.t - w / 3, picked.t + w * 2 / 3);
  const p = pictureOf("links-canvas"); let y = 0;
  for (const l of linkLines) { y += linkHeight(l); if (l === picked.link) break; }
  const text = linkText(picked.link, picked.i);
  beside(p, px(p, picked.t), y - 6, text); say(text.replace(/<[^>]*>/g, " ")); draws();
}
if (H) {
  layoutLinks("");
  if ($("links-kind")) $("links-kind").onchange = (e) => { layoutLinks(e.target.value); picked = null; drawNow(); };
  const p = picture("links-canvas", drawLinks, () => linksHeight + 2 + AXIS, sayLinks);
  p.pick = pickLink;
}
drawNow();
