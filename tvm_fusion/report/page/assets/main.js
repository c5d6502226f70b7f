"use strict";
// State, search, keys and pointer; what is selected stands in the address, so that it can be linked.

const state = {
  view: "after", tab: "overview", selected: null, found: null,
  isSelected: (item) => state.selected === item || state.edgeIds.has(item.id) || state.shown === item,
  isNear: (item) => Boolean(state.shown) && (item.from === state.shown.id || item.to === state.shown.id),
  isDimmed: (item) => state.found !== null && !state.found.has(item.id),
  key: (item) => `${state.isSelected(item) ? "s" : ""}${state.isNear(item) ? "n" : ""}${state.isDimmed(item) ? "d" : ""}`,
  searchKey: () => (state.found === null ? "" : state.query),
  shown: null, // the node that stands for what is selected
  edgeIds: new Set(),
  query: "", isPath: false,
};
const MANY = 150; // kernels that are shown by modules at first
const byName = (name) => document.getElementById(name);
const footer = byName("times"), searchBox = byName("search"), foundList = byName("found");

// Selection ---------------------------------------------------------------------------------------------------

function select(item, { reveals = true } = {}) {
  state.selected = item;
  state.edgeIds = new Set(item?.kind === "edge" ? [item.id, kernelEdgeOf(item)?.id] : []);
  showPanel(state.tab, item);
  const group = item && (item.kind === "group" ? item : item.kind === "operator" ? groupOf(item) : item.became && groupOf(item.became));
  markTime(footer, group);
  const node = item && shownIn(state.view, isEdge(item) ? byId.get(endsOf(item)[0]) : item);
  state.shown = item && !isEdge(item) ? node : null;
  if (node && reveals) reveal(node);
  remember();
  schedule();
}
const isEdge = (item) => item.kind.endsWith("edge");
const endsOf = (edge) => (edge.kind === "edge" ? [`o${edge.from}`, `o${edge.to}`] : [edge.from, edge.to]);
function kernelEdgeOf(edge) {
  const [from, to] = [kernelOf(operators[edge.from]), kernelOf(operators[edge.to])];
  return from && to ? kernelEdges.get(`${from.id}-${to.id}`) : undefined;
}
// Open or close a module; it stays where it is on the screen.
async function toggle(module) {
  module.isOpen = !module.isOpen;
  select(module, { reveals: false });
  await relaid(module);
}
async function relaid(anchor) {
  const corner = (place) => place && { x: place.x - place.w / 2, y: place.y - place.h / 2 };
  const before = corner(shown?.at.get(anchor?.id));
  layouts.delete("modules");
  const layout = await layoutOf("modules");
  if (state.view !== "modules") return;
  show(layout);
  const after = corner(layout.at.get(anchor?.id));
  if (before && after) (camera.x += (before.x - after.x) * camera.k), (camera.y += (before.y - after.y) * camera.k);
  const place = layout.at.get(anchor?.id);
  if (place && !isOnScreen(place)) fit([place]);
  if (state.query) search(state.query, state.isPath);
}
function openTab(name) {
  state.tab = name;
  select(null);
}
async function openView(name) {
  state.view = name;
  for (const button of document.querySelectorAll(".views button")) button.setAttribute("aria-selected", String(button.dataset.view === name));
  const busy = byName("busy");
  busy.hidden = false;
  try {
    const layout = await layoutOf(name);
    if (state.view !== name) return;
    show(layout);
    fit();
    if (state.query) search(state.query, state.isPath);
    if (state.selected) select(state.selected);
    busy.hidden = true;
    document.body.dataset.ready = name;
  } catch (error) {
    busy.textContent = `The graph cannot be laid out: ${error.message}`;
  }
  remember();
}

function remember() {
  const hash = `#${state.view}${state.selected ? `/${state.selected.id}` : state.tab === "overview" ? "" : `/${state.tab}`}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
}
function recall() {
  const [view, rest] = location.hash.slice(1).split("/");
  if (rest in TABS) state.tab = rest;
  select(byId.get(rest) ?? null, { reveals: false });
  openView(view in views ? view : launched.length > MANY && views.modules ? "modules" : "after");
}

// Search: words, or a pattern with *; the user's names, variables, operators and kernels ------------------------

function search(query, isPath = false) {
  state.query = query.trim(), state.isPath = isPath;
  const items = views[state.view].nodes;
  const hits = state.query ? items.filter(isPath ? (item) => namesIn(item).some((name) => isInside(name, query)) : matcher(state.query)) : [];
  const around = state.view === "modules" ? hits.flatMap(visiblePath) : hits;
  state.found = state.query ? new Set([...hits, ...around].map((item) => item.id)) : null;
  foundList.replaceChildren(...hits.slice(0, 12).map((item) =>
    h("li", { role: "option", onpointerdown: (event) => (event.preventDefault(), choose(item)) }, h("b", {}, titleOf(item)), h("small", {}, nameOf(item)))));
  if (state.query) foundList.append(h("li", { class: "note" }, hits.length ? `${hits.length.toLocaleString("en")} found` : "No match in this view."));
  foundList.hidden = !state.query;
  searchBox.setAttribute("aria-expanded", String(Boolean(state.query)));
  schedule();
  return hits;
}
function matcher(query) {
  const parts = query.toLowerCase().split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  const pattern = new RegExp(parts.length > 1 ? `^${parts.join(".*")}$` : parts[0], "i");
  const words = (item) => item.kind === "group"
    ? [item.title, item.template, ...item.kernels, ...(item.names ?? []), ...item.operators.flatMap((i) => words(operators[i]))]
    : [item.title, ...spellings(item)];
  return (item) => words(item).some((word) => pattern.test(word));
}
// Show all that belongs to a module of the model, and dim the rest.
function openModule(path) {
  searchBox.value = path;
  const hits = search(path, true);
  foundList.hidden = true;
  fit(hits.map((item) => shown?.at.get(item.id)).filter(Boolean));
}
async function choose(item) {
  foundList.hidden = true;
  if (state.view === "modules" && openAround(item)) await relaid();
  select(item);
}

searchBox.addEventListener("input", () => search(searchBox.value));
searchBox.addEventListener("focus", () => state.query && (foundList.hidden = false));
searchBox.addEventListener("blur", () => (foundList.hidden = true));
searchBox.addEventListener("keydown", (event) => {
  const hits = state.query ? views[state.view].nodes.filter((item) => state.found.has(item.id)) : [];
  if (event.key === "Enter" && hits.length) {
    const next = hits.indexOf(state.selected) + (event.shiftKey ? -1 : 1);
    choose(hits.at(next % hits.length));
  } else if (event.key === "Escape") {
    searchBox.value = "";
    search("");
    stage.focus();
  } else return;
  event.preventDefault(), event.stopPropagation();
});

// Keys --------------------------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  if (event.target === searchBox || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") return event.preventDefault(), searchBox.focus(), searchBox.select();
  if (event.key === "Escape") return select(null);
  if (event.target.closest("#panel")) return;
  const step = { ArrowUp: ["before"], ArrowDown: ["after"], ArrowLeft: [-1], ArrowRight: [1] }[event.key];
  if (event.key === "Enter" && state.shown && isModule(state.shown) && event.target === stage) toggle(state.shown);
  else if (event.key === "+" || event.key === "=") zoom(1.3);
  else if (event.key === "-") zoom(1 / 1.3);
  else if (event.key === "0") fit();
  else if (step) move(step[0]);
  else return;
  event.preventDefault();
});
function move(step) {
  const view = views[state.view], node = state.selected && shownIn(state.view, state.selected);
  const nodes = view.shown ?? view.nodes;
  if (!node || isEdge(node)) return select(nodes[0] ?? null);
  const next = typeof step === "number" ? nodes[nodes.indexOf(node) + step] : byId.get(view.neighbours.get(node.id)?.[step][0]);
  if (next) select(next);
}

// Pointer -----------------------------------------------------------------------------------------------------

let drag = null;
stage.addEventListener("pointerdown", (event) => {
  if (event.target.closest("button, .legend") || event.button) return;
  drag = { x: event.clientX, y: event.clientY, from: { ...camera }, isMoved: false };
});
addEventListener("pointermove", (event) => {
  if (!drag) return void (svg.contains(event.target) && hover(event));
  const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
  drag.isMoved ||= Math.hypot(dx, dy) > 4;
  if (!drag.isMoved) return;
  silence();
  camera.x = drag.from.x + dx, camera.y = drag.from.y + dy;
  schedule();
});
addEventListener("pointerup", (event) => {
  const isClick = drag && !drag.isMoved;
  drag = null;
  if (isClick) pick(event);
});
stage.addEventListener("dblclick", (event) => {
  const item = under(event);
  if (item && isModule(item)) toggle(item);
});
stage.addEventListener("pointerleave", silence);
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const { left, top } = stage.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX - left, event.clientY - top);
}, { passive: false });

function under(event) {
  const { left, top } = stage.getBoundingClientRect();
  const { node, box } = at(event.clientX - left, event.clientY - top);
  return node ?? byId.get(event.target.closest?.(".edge[data-id]")?.dataset.id) ?? box ?? null;
}
function pick(event) {
  stage.focus({ preventScroll: true });
  const item = under(event);
  if (item || camera.k >= FAR) return select(item, { reveals: false });
  select(null);
}
function hover(event) {
  const item = under(event);
  if (!item) return silence();
  if (item.kind === "group") return tellOf(item)(event);
  if (isModule(item)) return tell(event, item.path, `${microseconds(item.time)}, ${percent(item.time / totalTime)}`, item.isOpen ? "double click closes" : "double click opens");
  if (!isEdge(item)) return tell(event, titleOf(item), nameOf(item), item.type ?? "");
  const [from, to] = endsOf(item).map((id) => titleOf(byId.get(id)));
  const verdict = ["imported edge", "order edge", "read edge", "module edge"].includes(item.kind) ? "" : (item.verdict ?? "refused") === "accepted" ? "fused" : "not fused: click for the reason";
  tell(event, `${from} → ${to}`, verdict);
}

// Start -------------------------------------------------------------------------------------------------------

byName("model").textContent = content.model;
byName("subtitle").title = byName("subtitle").textContent = `for ${content.target}${content.device ? `, ${content.device}` : ""}`;
document.querySelector(".views").append(...Object.entries(views).map(([name, view]) =>
  h("button", { type: "button", role: "tab", "data-view": name, title: view.note, onclick: () => openView(name) }, view.title, h("small", {}, (view === views.modules ? partsIn(byModules) : view.nodes.length).toLocaleString("en")))));
const used = new Set(groups.map((group) => group.type));
byName("legend").append(...TYPES.filter((type) => used.has(type) || operators.some((operator) => operator.mapping === type)).map((type) => h("li", {}, chip(type))));
for (const button of document.querySelectorAll("[data-zoom]"))
  button.addEventListener("click", () => ({ in: () => zoom(1.4), out: () => zoom(1 / 1.4), fit })[button.dataset.zoom]());
new ResizeObserver(() => schedule()).observe(stage);
addEventListener("hashchange", recall);
timeBar(footer);
recall();
