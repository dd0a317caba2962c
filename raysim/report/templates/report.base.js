// Theme, words and numbers, the box beside the pointer.
const root = document.documentElement;
const data = JSON.parse($("data").textContent), T = data.timeline, M = data.memory, H = data.links;

// ---- theme
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
let inks = {}, patterns = {};
function readInks() {
  inks = {}; patterns = {};
  for (const n of ["ink", "soft", "line", "card", "track", "accent", "bad", "raised", "heat-0", "heat-1", "heat-2", "heat-3"]) inks[n] = css("--" + n);
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
  if (before !== null) return;
  before = root.dataset.theme || ""; root.dataset.theme = "light";
  for (const d of document.querySelectorAll("details")) { d.dataset.was = d.open ? "1" : ""; d.open = true; }
  restyle();
});
addEventListener("afterprint", () => {
  if (before === null) return;
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  for (const d of document.querySelectorAll("details")) d.open = d.dataset.was === "1";
  before = null;
  restyle();
});

// ---- patterns: what tells categories apart without their colours
const tile = document.createElement("canvas");
function paint(g, key) { // fill style of a category: its colour, with its pattern over it
  const kind = data.patterns[key], fill = color(key);
  if (!kind) return fill;
  if (patterns[key]) return patterns[key];
  tile.width = tile.height = 6;
  const s = tile.getContext("2d");
  s.fillStyle = fill; s.fillRect(0, 0, 6, 6);
  s.strokeStyle = s.fillStyle = lightOn(fill) ? "rgba(0,0,0,.38)" : "rgba(255,255,255,.5)"; s.lineWidth = 1; s.beginPath();
  if (kind === "diagonal") { s.moveTo(-1, 7); s.lineTo(7, -1); s.moveTo(-1, 1); s.lineTo(1, -1); s.moveTo(5, 7); s.lineTo(7, 5); }
  if (kind === "back") { s.moveTo(-1, -1); s.lineTo(7, 7); s.moveTo(5, -1); s.lineTo(7, 1); s.moveTo(-1, 5); s.lineTo(1, 7); }
  if (kind === "upright") { s.moveTo(2.5, 0); s.lineTo(2.5, 6); }
  if (kind === "level") { s.moveTo(0, 2.5); s.lineTo(6, 2.5); }
  s.stroke();
  if (kind === "dots") s.fillRect(2, 2, 2, 2);
  return patterns[key] = g.createPattern(tile, "repeat");
}
function bright(fill) {
  const n = parseInt(fill.slice(1), 16);
  return 0.299 * (n >> 16) + 0.587 * (n >> 8 & 255) + 0.114 * (n & 255);
}
const lightOn = (fill) => bright(fill) > 125;

// ---- words
const sig = (x) => x === 0 ? "0" : x >= 1000 ? x.toFixed(0) : x.toPrecision(3);
function time(ns) {
  const a = Math.abs(ns);
  for (const [u, s] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) if (a >= s) return (ns < 0 ? "-" : "") + sig(a / s) + " " + u;
  return Math.round(ns) + " ns";
}
function bytes(kib) {
  for (const [u, s] of [["TiB", 2 ** 30], ["GiB", 2 ** 20], ["MiB", 2 ** 10]]) {
    if (kib >= s) return sig(kib / s) + " " + u;
  }
  return Math.round(kib) + " KiB";
}
const rate = (b) => b >= 1e9 ? sig(b / 1e9) + " GB/s" : b >= 1e6 ? sig(b / 1e6) + " MB/s" : sig(b / 1e3) + " kB/s";
const escaped = (s) => String(s).replace(/[&<>"]/g, (c) => "&#" + c.charCodeAt(0) + ";");
const safe = (key) => key.replace(/[^a-z_]/g, "");
const wordOf = (key) => (M && M.names[key]) || key.replaceAll("_", " ");
const say = (text) => { const out = $("said"); if (out) out.textContent = text; };

// ---- tip: beside the pointer, or beside what has the keyboard
const box = document.createElement("div");
box.className = "tip"; box.hidden = true; box.id = "tip"; box.setAttribute("role", "tooltip");
document.body.append(box);
function tip(html, x, y) {
  box.hidden = !html;
  if (!html) return;
  box.innerHTML = html;
  const r = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 8)) + "px";
  box.style.top = Math.max(4, y + 18 + r.height > innerHeight ? y - r.height - 12 : y + 18) + "px";
}
for (const e of document.querySelectorAll(".tile[title],dd[title],tr[data-tip],.said[title]")) {
  const text = e.dataset.tip || e.title, at = () => { const r = e.getBoundingClientRect(); return [r.left + 20, r.bottom - 12]; };
  e.removeAttribute("title"); e.tabIndex = 0; e.classList.add("has-tip");
  e.setAttribute("aria-description", text);
  e.addEventListener("pointermove", (m) => tip(escaped(text), m.clientX, m.clientY));
  e.addEventListener("pointerleave", () => tip());
  e.addEventListener("focus", () => { if (e.matches(":focus-visible")) tip(escaped(text), ...at()); });
  e.addEventListener("blur", () => tip());
}
addEventListener("keydown", (e) => { if (e.key === "Escape") tip(); });
