// Memory over time by category, its peak marked, its capacity as a line.
function indexAt(c, t) {
  let a = 0, b = c.t.length;
  while (a < b) { const m = (a + b) >> 1; if (c.t[m] <= t) a = m + 1; else b = m; }
  return a - 1;
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
    g.fillStyle = paint(g, key);
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
  drawMark(p, y0 - 8, y1);
  upright(p, cross, y0 - 8, y1, inks.ink, []);
}
function sayMemory(_, t) {
  const c = curves[curve], i = indexAt(c, t);
  if (i < 0) return "";
  const own = groups.find((s) => s.where === c.where), line = own && own.rows.find((l) => l.row.label === "compute");
  const s = line ? sliceAt(line, t) : -1;
  const rows = c.categories.map((key, k) => [key, c.kib[k][i]]).filter((r) => r[1] > 0).reverse();
  return `<b>${bytes(c.total[i])}</b>${c.capacity ? " (" + (c.total[i] * 102400 / c.capacity).toFixed(1) + " % of capacity)" : ""}` +
    (s >= 0 ? `<br>${escaped(T.names[line.row.name[s]])}` : "") + "<table>" +
    rows.map(([k, v]) => `<tr><td><span class="swatch${data.patterns[k] ? " pt-" + data.patterns[k] : ""}" style="--c:var(--c-${safe(k)},var(--c-other))"></span>${escaped(wordOf(k))}</td><td class="n">${bytes(v)}</td></tr>`).join("") + "</table>";
}
function memoryLegend() {
  const ul = $("memory-legend");
  ul.textContent = "";
  for (const key of [...curves[curve].categories].reverse()) {
    const k = curves[curve].categories.indexOf(key);
    if (!curves[curve].kib[k].some((v) => v > 0)) continue;
    const li = document.createElement("li"), sw = document.createElement("span");
    sw.className = "swatch" + (data.patterns[key] ? " pt-" + data.patterns[key] : "");
    sw.style.setProperty("--c", `var(--c-${safe(key)},var(--c-other))`);
    li.append(sw, wordOf(key)); ul.append(li);
  }
}

function pickMoment(way) { // to the next moment that looks different, or the peak
  const c = curves[curve], p = pictureOf("memory-canvas"), by = (view[1] - view[0]) / 60;
  const t = !picked || !picked.memory ? c.at : picked.t + way * by;
  picked = {memory: true, t}; cross = t;
  if (t < view[0] || t > view[1]) show(t - by * 20, t + by * 40);
  const text = sayMemory(0, t);
  beside(p, px(p, t), 60, text); say(text.replace(/<[^>]*>/g, " ")); draws();
}
if (curves.length) {
  picture("memory-canvas", drawMemory, () => 320, sayMemory).pick = pickMoment;
  memoryLegend();
  $("memory-scale").onclick = () => { toCapacity = !toCapacity; draws(); };
  $("memory-gpu").onchange = (e) => { curve = +e.target.value; memoryLegend(); draws(); };
}
