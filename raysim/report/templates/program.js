"use strict";
(() => {
const root = document.documentElement, button = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const themed = () => { button.textContent = isDark() ? "Light page" : "Dark page"; for (const draw of P.draws) draw(); };
const P = window.raysim = {draws: [], data: JSON.parse(document.getElementById("data").textContent)};
button.onclick = () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("raysim-theme", root.dataset.theme); } catch (e) { /* a private window */ }
  themed();
};
dark.addEventListener("change", themed);
matchMedia("print").addEventListener("change", () => { for (const draw of P.draws) draw(); });

/* ---- numbers as words: the same as units.py ---- */
const three = (v) => {
  const a = Math.abs(v);
  return a >= 100 ? Math.round(v).toLocaleString("en") : a >= 10 ? v.toFixed(1) : a >= 1 ? v.toFixed(2) : String(Number(v.toPrecision(3)));
};
const scaled = (v, units) => { for (const [u, s] of units) if (Math.abs(v) >= s) return `${three(v / s)} ${u}`; return null; };
const seconds = (v) => {
  const a = Math.abs(v);
  if (v === 0) return "0 s";
  if (a >= 172800) return `${three(v / 86400)} days`;
  if (a >= 7200) return `${three(v / 3600)} h`;
  if (a >= 120) return `${three(v / 60)} min`;
  return scaled(v, [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) || `${Math.round(v * 1e9)} ns`;
};
const bytes = (v) => scaled(v, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) || `${Math.round(v)} B`;
const words = {
  count: three, seconds, bytes, share: (v) => `${three(100 * v)} %`, usd: (v) => `$${three(v)}`, per_s: (v) => `${three(v)}/s`,
  bytes_per_s: (v) => scaled(v, [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]]) || `${Math.round(v)} B/s`,
};
Object.assign(P, {seconds, bytes, words, three});
/* an instant, fine enough for the part of the run that is shown */
P.instant = (f, digits = null) => {
  const t = f * P.data.end, step = (view[1] - view[0]) * P.data.end / 200;
  const [unit, s] = P.data.end >= 172800 ? ["days", 86400] : P.data.end >= 7200 ? ["h", 3600] : P.data.end >= 120 ? ["min", 60] : ["s", 1];
  if (digits === null) digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / s))));
  return t === 0 ? `0 ${unit}` : `${(t / s).toFixed(digits)} ${unit}`;
};

/* ---- what is pointed at ---- */
const tipBox = document.getElementById("tip"), said = document.getElementById("said");
const escaped = (text) => text.replace(/[&<>]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c]);
P.escaped = escaped;
P.tip = (html = "", x = 0, y = 0, loud = false) => {
  tipBox.hidden = !html;
  if (!html) return;
  tipBox.innerHTML = html;
  const {offsetWidth: w, offsetHeight: h} = tipBox;
  tipBox.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - w - 8))}px`;
  tipBox.style.top = `${Math.max(6, y + 18 + h > innerHeight ? y - h - 12 : y + 18)}px`;
  if (loud) said.textContent = tipBox.innerText;
};

/* ---- the part of the run that all figures show ---- */
let view = [0, 1];
const bar = document.getElementById("zoombar");
P.view = () => view;
P.at = (clientX, box) => view[0] + (clientX - box.left) / box.width * (view[1] - view[0]);
P.show = (a, b) => {
  const wide = Math.min(1, Math.max(1e-5, b - a));
  a = Math.max(0, Math.min(1 - wide, a)); view = [a, a + wide];
  root.style.setProperty("--a", a); root.style.setProperty("--s", 1 / wide);
  bar.hidden = wide > 0.9999;
  bar.firstElementChild.textContent = `${P.instant(view[0])} to ${P.instant(view[1])}`;
  for (const svg of document.querySelectorAll(".lines .area>svg")) svg.setAttribute("viewBox", `${1000 * a} 0 ${1000 * wide} 200`);
  for (const axis of document.querySelectorAll(".xlab.time")) ticks(axis);
  for (const draw of P.draws) draw();
};
P.zoom = (by, f = (view[0] + view[1]) / 2) => P.show(f - (f - view[0]) * by, f + (view[1] - f) * by);
const ticks = (axis) => {
  const room = Math.max(2, Math.floor(axis.clientWidth / 80)), span = (view[1] - view[0]) * P.data.end;
  const base = P.data.end >= 172800 ? 86400 : P.data.end >= 7200 ? 3600 : P.data.end >= 120 ? 60 : 1;
  const rough = span / base / room, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999) * base;
  const found = [], exact = (d) => Math.abs(step / base * 10 ** d - Math.round(step / base * 10 ** d)) < 1e-6;
  const digits = [0, 1, 2, 3, 4, 5, 6].find(exact);
  for (let k = Math.ceil(view[0] * P.data.end / step - 1e-9); k * step <= view[1] * P.data.end * (1 + 1e-9); k++) {
    const f = k * step / P.data.end, at = (f - view[0]) / (view[1] - view[0]);
    const edge = at < 0.03 ? "edge0" : at > 0.95 ? "edge1" : "";
    found.push(`<span class="${edge}" style="--f:${f}">${P.instant(f, digits)}</span>`);
  }
  axis.innerHTML = found.join("");
};
document.getElementById("whole").onclick = () => P.show(0, 1);

/* Zoom and move by mouse and keys; `point(f, x, y, loud)` tells what is there, `step(way)` what is next. */
P.bind = (area, {point, step, leave}) => {
  let at = null, drag = null;
  const box = () => area.getBoundingClientRect();
  area.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault(); P.zoom(e.deltaY > 0 ? 1.25 : 0.8, P.at(e.clientX, box()));
  }, {passive: false});
  area.addEventListener("pointerdown", (e) => { if (e.pointerType === "mouse") { drag = [e.clientX, ...view]; area.setPointerCapture(e.pointerId); } });
  area.addEventListener("pointerup", () => { drag = null; area.style.cursor = ""; });
  area.addEventListener("pointermove", (e) => {
    if (drag && Math.abs(drag[0] - e.clientX) > 2) {
      const d = (drag[0] - e.clientX) / box().width * (drag[2] - drag[1]);
      area.style.cursor = "grabbing"; P.tip(); P.show(drag[1] + d, drag[2] + d); return;
    }
    at = P.at(e.clientX, box()); point(at, e.clientX, e.clientY, false);
  });
  const gone = () => { P.tip(); leave(); };
  area.addEventListener("pointerleave", gone);
  area.addEventListener("blur", () => { at = null; gone(); });
  area.addEventListener("dblclick", (e) => P.zoom(0.4, P.at(e.clientX, box())));
  const loudly = () => { const b = box(); point(at, b.left + (at - view[0]) / (view[1] - view[0]) * b.width, b.top + 12, true); };
  area.addEventListener("focus", () => { if (area.matches(":focus-visible")) { at = (view[0] + view[1]) / 2; loudly(); } });
  area.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const wide = view[1] - view[0], key = e.key;
    if (at === null) at = (view[0] + view[1]) / 2;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      at = Math.max(0, Math.min(1, at + (key === "ArrowLeft" ? -1 : 1) * wide / (e.shiftKey ? 10 : 80)));
      if (at < view[0]) P.show(at - wide / 4, at + wide * 3 / 4); else if (at > view[1]) P.show(at - wide * 3 / 4, at + wide / 4);
      loudly();
    } else if (key === "+" || key === "=") { P.zoom(0.6, at); loudly();
    } else if (key === "-" || key === "_") { P.zoom(1 / 0.6, at); loudly();
    } else if (key === "0") { P.show(0, 1); loudly();
    } else if ((key === "n" || key === "p") && step) {
      const next = step(key === "n" ? 1 : -1, at);
      if (next !== null) { at = next; if (at < view[0] || at > view[1]) P.show(at - wide / 2, at + wide / 2); loudly(); }
    } else if (key === "Escape") gone(); else return;
    e.preventDefault();
  });
};

/* ---- figures ---- */
const nearest = (x, ppm) => {
  let a = 0, b = x.length - 1;
  while (b - a > 1) { const m = (a + b) >> 1; if (x[m] <= ppm) a = m; else b = m; }
  return [a, b];
};
const value = (line, ppm) => {
  const x = line.x;
  if (!x.length || ppm < x[0] - 1e-9 || ppm > x[x.length - 1] + 1) return null;
  const [a, b] = nearest(x, ppm);
  if (line.s) return line.y[x[b] <= ppm ? b : a];
  return x[b] === x[a] ? line.y[a] : line.y[a] + (line.y[b] - line.y[a]) * Math.max(0, Math.min(1, (ppm - x[a]) / (x[b] - x[a])));
};
const cursorOf = (area) => {
  const line = document.createElement("div");
  line.className = "cursor"; line.hidden = true; area.append(line);
  return (f) => { line.hidden = f === null; if (f !== null) line.style.left = `${100 * (f - view[0]) / (view[1] - view[0])}%`; };
};
const table = (rows) => `<table>${rows.map(([a, b]) => `<tr><td>${escaped(a)}</td><td class="n">${escaped(b)}</td></tr>`).join("")}</table>`;
P.table = table;
const MOST = 10;

for (const fig of document.querySelectorAll("figure.lines")) {
  const area = fig.querySelector(".area"), data = P.data.figures[fig.dataset.key], cursor = cursorOf(area);
  const off = new Set(); fig.off = off;
  P.bind(area, {
    leave: () => cursor(null),
    point: (f, x, y, loud) => {
      cursor(f);
      const ppm = f * 1e6, near = 8e3 * (view[1] - view[0]);
      const rows = data.l.map((l, i) => [l.n, off.has(i) ? null : value(l, ppm)]).filter((r) => r[1] !== null);
      const more = rows.length > MOST ? [["and more", `${rows.length - MOST} lines`]] : [];
      const marks = data.m.filter((m) => Math.abs(m[0] - ppm) < near).map((m) => `<div class="bad">${escaped(m[1])}</div>`);
      P.tip(`<b>${P.instant(f)}</b>${table([...rows.slice(0, MOST).map(([n, v]) => [n, words[data.u](v)]), ...more])}${marks.join("")}`, x, y, loud);
    },
    step: (way, at) => {
      const all = data.m.map((m) => m[0] / 1e6).sort((a, b) => a - b);
      const next = way > 0 ? all.find((t) => t > at + 1e-6) : all.reverse().find((t) => t < at - 1e-6);
      return next === undefined ? null : next;
    },
  });
}
for (const fig of document.querySelectorAll("figure.cloud")) {
  const area = fig.querySelector(".area"), data = P.data.figures[fig.dataset.key];
  let at = -1;
  const points = data.l[0].x.map((x, i) => [x, i]).sort((a, b) => a[0] - b[0]);
  const tell = (k, x, y, loud) => {
    at = Math.max(0, Math.min(points.length - 1, k));
    const i = points[at][1];
    P.tip(`<b>${escaped(data.xn)} ${words[data.xu](data.l[0].v[i])}</b>${table(data.l.map((l) => [l.n, words[data.u](l.y[i])]))}`, x, y, loud);
  };
  area.addEventListener("pointermove", (e) => {
    const b = area.getBoundingClientRect(), ppm = (e.clientX - b.left) / b.width * 1e6;
    let best = 0;
    points.forEach((p, k) => { if (Math.abs(p[0] - ppm) < Math.abs(points[best][0] - ppm)) best = k; });
    tell(best, e.clientX, e.clientY, false);
  });
  area.addEventListener("pointerleave", () => P.tip());
  area.addEventListener("blur", () => P.tip());
  area.addEventListener("keydown", (e) => {
    if (e.key === "Escape") { P.tip(); return; }
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    e.preventDefault();
    const b = area.getBoundingClientRect(), k = at + (e.key === "ArrowLeft" ? -1 : 1);
    tell(k, b.left + points[Math.max(0, Math.min(points.length - 1, k))][0] / 1e6 * b.width, b.top + 10, true);
  });
}
for (const fig of document.querySelectorAll("figure.bars")) {
  const area = fig.querySelector(".area"), cursor = cursorOf(area);
  const bars = [...area.querySelectorAll("[data-t]")].map((el) => ({el, f: Number(el.style.getPropertyValue("--f"))}));
  bars.sort((a, b) => a.f - b.f);
  let chosen = null;
  const choose = (bar, x, y, loud) => {
    if (chosen) chosen.el.classList.remove("at");
    chosen = bar;
    if (!bar) { P.tip(); return; }
    bar.el.classList.add("at");
    const [head, text] = bar.el.dataset.t.split("|");
    P.tip(`<b>${escaped(head)}</b><div>${escaped(text)}</div><div class="note">from ${P.instant(bar.f)}</div>`, x, y, loud);
  };
  P.bind(area, {
    leave: () => { cursor(null); choose(null); },
    point: (f, x, y, loud) => {
      cursor(f);
      if (loud) { if (chosen) choose(chosen, x, y, true); else P.tip(`<b>${P.instant(f)}</b><div>n, p: next and previous bar</div>`, x, y, true); return; }
      const el = document.elementsFromPoint(x, y).find((e) => e.dataset && e.dataset.t && area.contains(e));
      choose(el ? bars.find((b) => b.el === el) : null, x, y, false);
    },
    step: (way) => {
      const shown = bars.filter((b) => !b.el.classList.contains("off"));
      const k = shown.indexOf(chosen);
      const next = shown[k < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, k + way))];
      if (!next) return null;
      choose(next, 0, 0, false);
      return next.f;
    },
  });
}
for (const key of document.querySelectorAll("figure .keys button")) key.onclick = () => {
  const on = key.getAttribute("aria-pressed") !== "true", fig = key.closest("figure"), i = Number(key.dataset.i);
  key.setAttribute("aria-pressed", on);
  const faint = key.dataset.faint === "1";
  for (const el of fig.querySelectorAll(faint ? ".area .faint" : `.area [data-i="${i}"]`)) el.classList.toggle("off", !on);
  const each = faint ? P.data.figures[fig.dataset.key].l.map((_, k) => k).slice(1) : [i];
  if (fig.off) for (const k of each) if (on) fig.off.delete(k); else fig.off.add(k);
};

/* ---- printing ---- */
addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
P.start = () => { P.show(0, 1); themed(); };
let wide = innerWidth;
addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; P.show(...view); } });
})();
