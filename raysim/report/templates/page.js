// What every page has: texts to copy and files to keep, tables that sort, where on the page we are.
"use strict";
const $ = (id) => document.getElementById(id);

async function copyText(text, button, node) {
  const was = button.dataset.was ??= button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch (e) {
    if (node) getSelection().selectAllChildren(node);
    button.textContent = node ? "Selected: press Ctrl + C" : "Not allowed";
  }
  setTimeout(() => { button.textContent = was; }, 2500);
}
for (const b of document.querySelectorAll("[data-copy]")) {
  b.onclick = () => copyText($(b.dataset.copy).textContent, b, $(b.dataset.copy));
}
for (const b of document.querySelectorAll("[data-keep]")) b.onclick = () => {
  const a = document.createElement("a"), url = URL.createObjectURL(new Blob([$(b.dataset.keep).textContent], {type: "text/plain"}));
  a.href = url; a.download = b.dataset.name; a.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

// ---- tables whose rows are all in the page
for (const button of document.querySelectorAll("table.sortable .sort")) button.onclick = () => {
  const th = button.closest("th"), tr = th.parentElement, body = th.closest("table").tBodies[0], i = [...tr.children].indexOf(th);
  const up = th.getAttribute("aria-sort") === "descending";
  for (const other of tr.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (r) => r.children[i].dataset.v ?? r.children[i].textContent.trim();
  const compare = (a, b) => th.classList.contains("n") ? (parseFloat(value(a)) || 0) - (parseFloat(value(b)) || 0) : value(a).localeCompare(value(b));
  body.append(...[...body.rows].sort((a, b) => up ? compare(a, b) : compare(b, a)));
};

// ---- where we are
const entries = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const here = () => {
  let now = null;
  for (const s of document.querySelectorAll("main section")) if (s.getBoundingClientRect().top < innerHeight * 0.35 && entries.has(s.id)) now = s.id;
  if (innerHeight + scrollY >= document.body.scrollHeight - 4) now = [...entries.keys()].pop();
  if (scrollY < 4) now = entries.keys().next().value;
  for (const [id, a] of entries) if (id === now) a.setAttribute("aria-current", "true"); else a.removeAttribute("aria-current");
};
addEventListener("scroll", here, {passive: true});
addEventListener("load", here);
