// What pages with pictures share: theme, inks, canvases, a tip, words.
const root = document.documentElement;
const make = (tag, name = "", text = "") => {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text) e.textContent = text;
  return e;
};

// ---- theme
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
let inks = {};
const ink = (name) => inks[name] ??= getComputedStyle(root).getPropertyValue("--" + name).trim();
function restyle() {
  inks = {};
  $("theme").textContent = isDark() ? "Light page" : "Dark page";
  drawNow();
}
$("theme").onclick = () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("raysim-theme", root.dataset.theme); } catch (e) { /* a private window */ }
  restyle();
};
dark.addEventListener("change", restyle);
let before = null;
addEventListener("beforeprint", () => {
  before = root.dataset.theme || ""; root.dataset.theme = "light";
  for (const d of document.querySelectorAll("details:not(.still)")) d.open = true; // long files stay shut on paper
  restyle();
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  restyle();
});

// ---- words
const escaped = (s) => String(s).replace(/[&<>"]/g, (c) => "&#" + c.charCodeAt(0) + ";");
const grouped = (x) => x.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
function sig(x) {
  const a = Math.abs(x);
  if (a >= 100 || a === 0) return grouped(x.toFixed(0));
  return a >= 0.001 ? String(+x.toPrecision(3)) : x.toExponential(1);
}
const unitOf = (x, units) => units.find(([, size, from]) => Math.abs(x) >= (from ?? size)) || units[units.length - 1];
const scaled = (x, units) => { const [word, size] = unitOf(x, units); return sig(x / size) + word; };
const LASTS = [[" days", 86400, 172800], [" h", 3600, 7200], [" min", 60, 120], [" s", 1], [" ms", 1e-3], [" us", 1e-6], [" ns", 1e-9]];
const SIZES = [[" TiB", 2 ** 40], [" GiB", 2 ** 30], [" MiB", 2 ** 20], [" KiB", 1024], [" B", 1]];
const FORMS = {
  seconds: (x) => x === 0 ? "0 s" : scaled(x, LASTS),
  bytes: (x) => scaled(x, SIZES),
  usd: (x) => (x < 0 ? "-$" : "$") + (Math.abs(x) >= 1 && Math.abs(x) < 100 ? Math.abs(x).toFixed(2) : sig(Math.abs(x))),
  share: (x) => sig(x * 100) + " %",
  flops: (x) => sig(x / 1e12) + " TFLOP/s",
  bytes_per_s: (x) => scaled(x, [[" TB/s", 1e12], [" GB/s", 1e9], [" MB/s", 1e6], [" kB/s", 1e3], [" B/s", 1]]),
  count: (x) => sig(x),
};
const format = (unit, x) => x === null || x === undefined ? "-" : (FORMS[unit] || FORMS.count)(x);
const UNITS = {seconds: LASTS, bytes: SIZES};
const unitSize = (unit, high) => UNITS[unit] ? unitOf(high, UNITS[unit])[1] : 1; // in what marks are round
function ticks(low, high, most, size = 1) { // round values between two
  if (size !== 1) return ticks(low / size, high / size, most).map((v) => v * size);
  const rough = (high - low) / Math.max(1, most), pow = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((m) => m * pow).find((s) => s >= rough) || rough;
  const found = [];
  for (let k = Math.ceil(low / by - 1e-9); k * by <= high + by * 1e-9; k++) found.push(k * by);
  return found;
}

// ---- canvases: drawn anew when the page changes its size or theme
const pictures = [];
function picture(canvas, height, draw) {
  const p = {canvas, height, draw, g: canvas.getContext("2d"), w: 0, h: 0};
  pictures.push(p);
  new ResizeObserver(redraw).observe(canvas.parentElement);
  return p;
}
let waiting = false;
function redraw() {
  if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; drawNow(); }); }
}
function drawNow() {
  for (const p of pictures) {
    const w = p.canvas.parentElement.clientWidth, h = p.height(w), dpr = devicePixelRatio || 1;
    if (!w) continue;
    if (p.canvas.width !== Math.round(w * dpr) || p.canvas.height !== Math.round(h * dpr)) {
      p.canvas.width = Math.round(w * dpr); p.canvas.height = Math.round(h * dpr);
      p.canvas.style.height = h + "px";
    }
    p.w = w; p.h = h;
    p.g.setTransform(dpr, 0, 0, dpr, 0, 0);
    p.g.clearRect(0, 0, w, h);
    p.g.font = "12px system-ui, sans-serif";
    p.draw(p.g, w, h);
  }
}
function label(g, text, x, y, align = "left", color = ink("ink"), bold = false) {
  g.font = (bold ? "600 " : "") + "12px system-ui, sans-serif";
  g.textAlign = align; g.textBaseline = "middle"; g.fillStyle = color;
  g.fillText(text, x, y);
}
function shortened(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  let n = text.length;
  while (n > 1 && g.measureText(text.slice(0, n) + "...").width > room) n--;
  return text.slice(0, n) + "...";
}
function line(g, x0, y0, x1, y1, color, width = 1, dash = []) {
  g.save(); g.strokeStyle = color; g.lineWidth = width; g.setLineDash(dash);
  g.beginPath(); g.moveTo(x0, y0); g.lineTo(x1, y1); g.stroke(); g.restore();
}

// ---- tip
const box = make("div", "tip");
box.hidden = true; box.setAttribute("role", "status");
document.body.append(box);
function tip(html, x, y) {
  box.hidden = !html;
  if (!html) return;
  box.innerHTML = html;
  const r = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 8)) + "px";
  box.style.top = Math.max(4, y + 18 + r.height > innerHeight ? y - r.height - 12 : y + 18) + "px";
}
