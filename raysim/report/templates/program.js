"use strict";
(() => {
const root = document.documentElement, button = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const say = () => { button.textContent = isDark() ? "Light page" : "Dark page"; };
button.onclick = () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("raysim-theme", root.dataset.theme); } catch (e) { /* a private window */ }
  say();
};
dark.addEventListener("change", say);
say();
for (const sort of document.querySelectorAll("th .sort")) sort.onclick = () => {
  const th = sort.closest("th"), at = [...th.parentNode.children].indexOf(th);
  const body = th.closest("table").tBodies[0], down = th.getAttribute("aria-sort") !== "descending";
  const value = (row) => {
    const cell = row.children[at], v = cell.dataset.v;
    return v === undefined ? cell.textContent.trim().toLowerCase() : Number(v);
  };
  const rows = [...body.rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  if (down) rows.reverse();
  for (const other of th.parentNode.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
};
addEventListener("beforeprint", () => {
  for (const d of document.querySelectorAll("details")) d.open = true;
});
})();
