"use strict";
(() => {
/* The cluster's lanes and the heat map of ports: canvases, drawn anew for each part of the run. */
const P = window.raysim, T = P.data.timeline, escaped = P.escaped;
const root = document.documentElement;
const HOW = ["finished", "failed", "runs at the end", "lives"];
const MARKS = {fault: "\u2715", dead: "\u2715", draining: "\u25B2", failed: "\u00D7", asked: "?"};
const STRIPS = [["in", 5, "bytes in"], ["out", 0, "bytes out"], ["spill", 1, "spilled"], ["restore", 2, "restored"]];
const STRIP = 5, LIFE = 3;
let color = {};
const theme = () => {
  const style = getComputedStyle(root), of = (name) => style.getPropertyValue(name).trim();
  color = {p: [0, 1, 2, 3, 4, 5, 6, 7, 8].map((i) => of(`--p${i}`)), hatch: of("--hatch"), track: of("--raised"),
    ink: of("--ink"), soft: of("--soft"), bad: of("--bad"), warn: of("--warn"), card: of("--card"), line: of("--line"), heat: of("--heat")};
};
const brush = (canvas, width, height) => {
  const ratio = Math.min(3, devicePixelRatio || 1), w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.height = `${height}px`; }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0); g.clearRect(0, 0, width, height);
  return g;
};

if (T) {
  const lanes = [], hidden = new Set(), many = T.lanes.length;
  const usual = many <= 6 ? 64 : many <= 16 ? 40 : many <= 32 ? 26 : 18;
  const moved = {};
  for (const [kind] of STRIPS) moved[kind] = Math.max(0, ...T.lanes.flatMap((l) => l[kind].filter((_, i) => i % 2)));
  for (const [k, el] of [...document.querySelectorAll(".lane")].entries()) {
    const node = T.lanes[k], canvas = el.querySelector("canvas"), slices = [];
    for (let i = 0; i < node.s.length; i += 5) {
      const [t, d, slot, name, code] = node.s.slice(i, i + 5);
      slices.push({t, d, slot, name: T.names[name][0], c: T.names[name][1], how: code % 4, attempt: code >> 2});
    }
    lanes.push({node, el, canvas, slices, open: false, label: el.querySelector(".name")});
  }
  const strips = STRIPS.filter(([kind]) => moved[kind] > 0);
  const sizes = (lane) => {
    const slots = Math.max(1, lane.node.slots, lane.node.a ? lane.node.most : 0);
    const body = lane.open ? Math.max(usual, Math.min(360, slots * 15)) : Math.min(usual, Math.max(18, slots * 15));
    return {body, each: body / slots, height: body + LIFE + 2 + strips.length * (STRIP + 1)};
  };
  const singly = (lane) => sizes(lane).each >= 3.2 && !(lane.node.a && (!lane.open || !lane.slices.length));

  const hatch = (g, x, y, w, h) => {
    g.save(); g.beginPath(); g.rect(x, y, w, h); g.clip(); g.strokeStyle = color.hatch; g.lineWidth = 1; g.beginPath();
    for (let i = Math.floor((x - h) / 7) * 7; i < x + w; i += 7) { g.moveTo(i, y + h); g.lineTo(i + h, y); }
    g.stroke(); g.restore();
  };
  const drawSlices = (g, lane, x, {each, body}) => {
    const back = (s) => (s.how === 3 ? 0 : 1);
    for (const pass of [0, 1]) for (const s of lane.slices) {
      if (back(s) !== pass || hidden.has(s.c)) continue;
      const a = x(s.t), b = x(s.t + s.d);
      if (b < 0 || a > lane.width) continue;
      const left = Math.max(0, a), w = Math.max(0.8, Math.min(lane.width, b) - left);
      const y = body - (s.slot + 1) * each, h = Math.max(1, each - (each > 5 ? 1 : 0.2));
      g.globalAlpha = s.how === 3 ? 0.22 : 1;
      g.fillStyle = color.p[s.c]; g.fillRect(left, y, w, h);
      g.globalAlpha = 1;
      if (s.how === 3) { if (w > 3) { g.strokeStyle = color.p[s.c]; g.lineWidth = 1; g.strokeRect(left + 0.5, y + 0.5, w - 1, h - 1); } continue; }
      if (s.c % 2 && w > 6 && h > 4) hatch(g, left, y, w, h);
      if (s.how === 1) { g.fillStyle = color.bad; g.fillRect(left + w - 2.5, y, 2.5, h); }
      if (s.attempt) { g.strokeStyle = color.ink; g.lineWidth = 1.2; g.strokeRect(left + 0.5, y + 0.5, Math.max(0.5, w - 1), h - 1); }
      if (w > 48 && h >= 12.5) {
        const text = s.attempt ? `${s.name} (attempt ${s.attempt + 1})` : s.name;
        g.font = `${Math.min(11.5, h - 1)}px system-ui,sans-serif`; g.textBaseline = "middle";
        const room = Math.floor((w - 8) / 6.4), shown = text.length > room ? `${text.slice(0, Math.max(1, room - 1))}\u2026` : text;
        if (room > 3) {
          const wide = g.measureText(shown).width + 6;
          g.fillStyle = color.card; g.globalAlpha = 0.82; g.fillRect(left + 2, y + 1, wide, h - 2); g.globalAlpha = 1;
          g.fillStyle = color.ink; g.fillText(shown, left + 5, y + h / 2);
        }
      }
    }
  };
  /* How many tasks of each colour run in each pixel column; of actors, those between calls apart. */
  const counted = (lane, x) => {
    const n = Math.ceil(lane.width), found = [];
    const of = (key) => found[key] || (found[key] = new Float64Array(n + 2));
    if (lane.node.a) {
      for (const [c, bins] of lane.node.a) for (let i = 0; i <= n; i++) {
        const f = P.view()[0] + (i + 0.5) / n * (P.view()[1] - P.view()[0]);
        of(c)[i] = bins[Math.max(0, Math.min(T.bins - 1, Math.floor(f * T.bins)))];
      }
      return found;
    }
    for (const s of lane.slices) {
      const a = Math.max(0, x(s.t)), b = Math.min(n, x(s.t + s.d)), bins = of(s.how === 3 ? s.c + 9 : s.c);
      if (b <= a) continue;
      const i = Math.floor(a), j = Math.floor(b);
      if (i === j) { bins[i] += b - a; continue; }
      bins[i] += i + 1 - a; bins[j] += b - j;
      for (let k = i + 1; k < j; k++) bins[k] += 1;
    }
    return found;
  };
  const drawAreas = (g, lane, x, {body}) => {
    const found = counted(lane, x), n = Math.ceil(lane.width), base = new Float64Array(n + 2);
    let most = Math.max(1, lane.node.slots, lane.node.most);
    if (lane.node.a) for (const [, bins] of lane.node.a) most = Math.max(most, ...bins);
    for (let key = 0; key < 9; key++) {
      const lives = found[key + 9], runs = found[key];
      if (lives && runs) for (let i = 0; i <= n; i++) lives[i] = Math.max(0, lives[i] - runs[i]);
    }
    for (const key of [...Array(18).keys()]) {
      const bins = found[key];
      if (!bins || hidden.has(key % 9)) continue;
      g.beginPath(); g.moveTo(0, body - base[0] / most * body);
      for (let i = 0; i <= n; i++) g.lineTo(i, body - base[i] / most * body);
      for (let i = n; i >= 0; i--) { base[i] += bins[i]; g.lineTo(i, body - base[i] / most * body); }
      g.closePath(); g.globalAlpha = key >= 9 ? 0.25 : 1; g.fillStyle = color.p[key % 9]; g.fill(); g.globalAlpha = 1;
      if (key % 2 && key < 9) { g.save(); g.clip(); hatch(g, 0, 0, n, body); g.restore(); }
    }
  };
  const drawLife = (g, lane, x, {body, height}) => {
    const {node, width} = lane;
    g.fillStyle = color.track; g.fillRect(0, 0, width, body);
    for (const [a, b, phase] of node.wait) {
      const left = Math.max(0, x(a)), w = Math.min(width, x(b)) - left;
      if (w <= 0) continue;
      g.fillStyle = color.warn; g.globalAlpha = 0.16; g.fillRect(left, 0, w, body); g.globalAlpha = 1;
      hatch(g, left, 0, w, body);
      if (w > 60) { g.fillStyle = color.soft; g.font = "11px system-ui,sans-serif"; g.textBaseline = "middle"; g.fillText(phase, left + 4, body / 2, w - 6); }
    }
    for (const [a, b, state] of node.up) {
      const left = Math.max(0, x(a)), w = Math.min(width, x(b)) - left;
      if (w <= 0) continue;
      g.fillStyle = state === "draining" ? color.warn : state === "silent" ? color.bad : color.soft;
      g.fillRect(left, body + 1, w, LIFE);
      if (state !== "up") { g.globalAlpha = state === "silent" ? 0.12 : 0.18; g.fillRect(left, 0, w, body); g.globalAlpha = 1; }
    }
    let y = body + LIFE + 2;
    for (const [kind, c] of strips) {
      const flat = node[kind], top = Math.log1p(moved[kind] / 1e3) || 1;
      for (let i = 0; i < flat.length; i += 2) {
        const a = x(flat[i] / T.bins * 1e6), b = x((flat[i] + 1) / T.bins * 1e6);
        if (b < 0 || a > width) continue;
        g.globalAlpha = 0.25 + 0.75 * Math.log1p(flat[i + 1] / 1e3) / top; g.fillStyle = color.p[c];
        g.fillRect(a, y, Math.max(1, b - a), STRIP);
      }
      g.globalAlpha = 1; y += STRIP + 1;
    }
    return height;
  };
  const drawMarks = (g, lane, x, {body}) => {
    for (const [t, kind] of [...lane.node.m, ...T.all]) {
      const at = x(t);
      if (at < -6 || at > lane.width + 6) continue;
      if (kind === "failed") { g.fillStyle = color.bad; g.font = "bold 12px system-ui,sans-serif"; g.textAlign = "center"; g.textBaseline = "middle"; g.fillText(MARKS.failed, at, 5); continue; }
      g.strokeStyle = kind === "draining" ? color.warn : color.bad; g.lineWidth = 1.5;
      g.setLineDash([4, 3]); g.beginPath(); g.moveTo(at, 0); g.lineTo(at, body); g.stroke(); g.setLineDash([]);
      g.fillStyle = g.strokeStyle; g.font = "bold 12px system-ui,sans-serif"; g.textAlign = "center"; g.textBaseline = "bottom";
      g.fillText(MARKS[kind] || "!", Math.max(6, Math.min(lane.width - 6, at)), body);
    }
    g.textAlign = "start";
  };
  let cross = null;
  const draw = (lane) => {
    lane.width = lane.canvas.clientWidth;
    if (!lane.width) return;
    const size = sizes(lane), g = brush(lane.canvas, lane.width, size.height), [a, b] = P.view();
    const x = (ppm) => (ppm / 1e6 - a) / (b - a) * lane.width;
    lane.size = size;
    drawLife(g, lane, x, size);
    if (singly(lane)) drawSlices(g, lane, x, size); else drawAreas(g, lane, x, size);
    drawMarks(g, lane, x, size);
    if (cross !== null) { const at = x(cross * 1e6); g.fillStyle = color.ink; g.fillRect(at, 0, 1, size.height); }
    if (lane.chosen && singly(lane)) {
      const s = lane.chosen; g.strokeStyle = color.ink; g.lineWidth = 2;
      g.strokeRect(x(s.t), size.body - (s.slot + 1) * size.each, Math.max(3, x(s.t + s.d) - x(s.t)), Math.max(3, size.each - 1));
    }
  };
  const drawAll = () => { theme(); lanes.forEach(draw); };
  P.draws.push(drawAll);
  let due = false;
  const soon = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; lanes.forEach(draw); }); } };

  const about = (s, lane) => {
    const rows = [["state", HOW[s.how]], ["from", P.instant(s.t / 1e6)], [s.how === 3 ? "lives" : "takes", P.seconds(s.d / 1e6 * T.end)]];
    if (s.attempt) rows.push(["attempt", `${s.attempt + 1}`]);
    return `<b>${escaped(s.name)}</b>${s.how === 3 ? " (actor)" : ""}${P.table([...rows, ["node", lane.node.n]])}`;
  };
  const summed = (f, lane) => {
    const ppm = f * 1e6, runs = new Map(), bin = Math.max(0, Math.min(T.bins - 1, Math.floor(f * T.bins)));
    if (lane.node.a) {
      for (const [c, bins] of lane.node.a) if (bins[bin] && !hidden.has(c)) runs.set(`${T.colors[c]}, mean`, bins[bin]);
    } else for (const s of lane.slices) if (s.t <= ppm && ppm < s.t + s.d && !hidden.has(s.c)) {
      const key = s.how === 3 ? `${s.name} (actors)` : s.name; runs.set(key, (runs.get(key) || 0) + 1);
    }
    const rows = [...runs].sort((p, q) => q[1] - p[1]).slice(0, 8).map(([n, k]) => [n, P.three(k).replace(".00", "")]);
    const up = lane.node.up.find(([a, b]) => a <= ppm && ppm < b), waits = lane.node.wait.find(([a, b]) => a <= ppm && ppm < b);
    const state = up ? (up[2] === "silent" ? "silent, and nobody knows yet" : up[2]) : waits ? `on its way: ${waits[2]}` : "not there";
    const near = 6e3 * (P.view()[1] - P.view()[0]);
    const marks = [...lane.node.m, ...T.all].filter((m) => Math.abs(m[0] - ppm) < near).slice(0, 4).map((m) => `<div class="bad">${escaped(m[2])}</div>`);
    for (const [kind, , text] of strips) for (let i = 0; i < lane.node[kind].length; i += 2) if (lane.node[kind][i] === bin) rows.push([text, P.bytes(lane.node[kind][i + 1])]);
    return `<b>${escaped(lane.node.n)}</b>, ${P.instant(f)}: ${escaped(state)}${P.table(rows)}${marks.join("")}`;
  };
  const under = (lane, f, y) => {
    if (!singly(lane) || y > lane.size.body) return null;
    const ppm = f * 1e6, slot = Math.floor((lane.size.body - y) / lane.size.each), near = 1.5 / lane.width * 1e6 * (P.view()[1] - P.view()[0]);
    const hits = lane.slices.filter((s) => s.slot === slot && !hidden.has(s.c) && s.t - near <= ppm && ppm <= s.t + s.d + near);
    return hits.sort((p, q) => (p.how === 3) - (q.how === 3))[0] || null;
  };
  for (const lane of lanes) {
    const {canvas} = lane;
    P.bind(canvas, {
      leave: () => { cross = null; lane.chosen = null; soon(); },
      point: (f, x, y, loud) => {
        cross = f;
        if (!loud) lane.chosen = under(lane, f, y - canvas.getBoundingClientRect().top);
        else if (lane.chosen && !(lane.chosen.t <= f * 1e6 + 1 && f * 1e6 <= lane.chosen.t + lane.chosen.d + 1)) lane.chosen = null;
        P.tip(lane.chosen ? about(lane.chosen, lane) : summed(f, lane), x, y, loud);
        soon();
      },
      step: (way, at) => {
        const all = lane.slices.filter((s) => s.how !== 3 && !hidden.has(s.c)), k = all.indexOf(lane.chosen);
        if (!all.length) return null;
        let next = k + way;
        if (k < 0) next = Math.max(0, all.findIndex((s) => s.t >= at * 1e6));
        lane.chosen = all[Math.max(0, Math.min(all.length - 1, next))];
        return (lane.chosen.t + Math.min(lane.chosen.d / 2, 1)) / 1e6;
      },
    });
    lane.label.onclick = () => {
      lane.open = !lane.open; lane.label.setAttribute("aria-expanded", lane.open); draw(lane);
    };
  }
  for (const key of document.querySelectorAll("#functions-legend button")) key.onclick = () => {
    const on = key.getAttribute("aria-pressed") !== "true", c = Number(key.dataset.i);
    key.setAttribute("aria-pressed", on);
    if (on) hidden.delete(c); else hidden.add(c);
    lanes.forEach(draw);
  };
  document.getElementById("zoom-in").onclick = () => P.zoom(0.5);
  document.getElementById("zoom-out").onclick = () => P.zoom(2);
  document.getElementById("zoom-all").onclick = () => P.show(0, 1);
  for (const go of document.querySelectorAll("[data-go]")) go.onclick = () => {
    const at = Number(go.dataset.go) / T.end, wide = Math.min(0.12, P.view()[1] - P.view()[0]);
    P.show(at - wide / 2, at + wide / 2);
    document.getElementById("timeline").scrollIntoView();
  };
}

/* ---- ports ---- */
const fig = document.querySelector("figure.heat");
if (fig) {
  const rows = P.data.heat, area = fig.querySelector(".area"), canvas = area.querySelector("canvas");
  const LEVELS = "0123456789abcdefghijk", high = 14, bins = rows[0][1].length;
  let row = 0, at = null;
  const draw = () => {
    theme();
    const width = area.clientWidth, g = brush(canvas, width, rows.length * high), [a, b] = P.view();
    rows.forEach(([, levels], r) => {
      for (let i = 0; i < bins; i++) {
        const share = LEVELS.indexOf(levels[i]) / 20;
        if (share <= 0) continue;
        const left = (i / bins - a) / (b - a) * width, right = ((i + 1) / bins - a) / (b - a) * width;
        if (right < 0 || left > width) continue;
        g.fillStyle = color.p[0]; g.globalAlpha = Math.min(1, 0.12 + share * 1.5); g.fillRect(left, r * high, right - left + 0.4, high - 1);
        if (share > 0.58) { g.fillStyle = color.heat; g.globalAlpha = (share - 0.58) / 0.42; g.fillRect(left, r * high, right - left + 0.4, high - 1); }
      }
    });
    g.globalAlpha = 1;
    if (at !== null) { g.strokeStyle = color.ink; g.lineWidth = 1.5; g.strokeRect((at - a) / (b - a) * width - 3, row * high + 0.5, 6, high - 2); }
  };
  P.draws.push(draw);
  P.bind(area, {
    leave: () => { at = null; draw(); },
    point: (f, x, y, loud) => {
      at = f;
      if (!loud) row = Math.max(0, Math.min(rows.length - 1, Math.floor((y - area.getBoundingClientRect().top) / high)));
      const [name, levels, text, rate] = rows[row], level = LEVELS.indexOf(levels[Math.max(0, Math.min(bins - 1, Math.floor(f * bins)))]);
      const share = level <= 0 ? "nothing" : `${5 * (level - 1)} to ${5 * level} % of ${rate}`;
      P.tip(`<b>${escaped(name)}</b>, ${P.instant(f)}<div>${share}</div><div class="note">in all ${escaped(text)}</div>`, x, loud ? y + row * high : y, loud);
      draw();
    },
  });
  area.addEventListener("keydown", (e) => {
    if (e.key !== "ArrowUp" && e.key !== "ArrowDown") return;
    e.preventDefault();
    row = Math.max(0, Math.min(rows.length - 1, row + (e.key === "ArrowUp" ? -1 : 1)));
    area.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft", shiftKey: false}));
    area.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", shiftKey: false}));
  });
}
P.start();
})();
