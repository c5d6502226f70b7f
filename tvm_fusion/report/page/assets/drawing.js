"use strict";
// The graph: laid out by a worker, drawn as SVG. Near by, only what is on the screen is in the document; from afar,
// each mapping type is one path.

const svg = document.getElementById("graph"), stage = document.getElementById("stage");
const FAR = 0.3, CARD = { w: 236, h: 48 }, CHIP_H = 26, MARGIN = 30, BELOW = 30, HEADER = { w: 164, h: 24 };
const measure = document.createElement("canvas").getContext("2d");
const FONT = getComputedStyle(document.body).fontFamily;

function widthOf(text, font) {
  measure.font = `${font} ${FONT}`;
  return measure.measureText(text).width;
}
function fitted(text, width, font) {
  if (widthOf(text, font) <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (widthOf(`${text.slice(0, middle)}…`, font) <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

const worker = new Worker(URL.createObjectURL(new Blob([document.getElementById("layout").textContent], { type: "text/javascript" })));
const waiting = new Map();
let tickets = 0;
worker.onmessage = ({ data: { ticket, found, failed } }) => {
  const { resolve, reject } = waiting.get(ticket);
  waiting.delete(ticket);
  failed ? reject(new Error(failed)) : resolve(found);
};
function laidOut(nodes, lines, aspect) {
  return new Promise((resolve, reject) => {
    waiting.set(++tickets, { resolve, reject });
    worker.postMessage({ ticket: tickets, nodes, edges: lines, aspect });
  });
}

const layouts = new Map();
function layoutOf(name) {
  if (!layouts.has(name)) layouts.set(name, makeLayout(name));
  return layouts.get(name);
}

// Places of a view: nodes and edges in the order of drawing, each with its box.
async function makeLayout(name) {
  const view = views[name], { w, h } = roomFor(), aspect = Math.max(0.5, w / Math.max(h, 1));
  const outer = name === "modules" ? nestedGraph(view) : view.boxes ? boxed(view) : { nodes: view.nodes.map(sized), edges: view.edges };
  const plain = outer.edges.map(({ id, from, to }) => ({ id, from, to }));
  const found = await laidOut(outer.nodes, plain, aspect);
  const places = [], lines = [];
  const put = (graph, dx, dy) => {
    for (const [id, place] of Object.entries(graph.nodes)) {
      places.push({ item: byId.get(id), ...place, x: place.x + dx, y: place.y + dy, isBox: Boolean(place.inner) });
      if (place.inner) put(place.inner, dx + place.inner.dx, dy + place.inner.dy);
    }
    for (const [id, line] of Object.entries(graph.edges)) {
      const [left, top, right, low] = line.box;
      lines.push({ item: byId.get(id), ...line, dx, dy, box: [left + dx, top + dy, right + dx, low + dy] });
    }
  };
  put(found, 0, 0);
  return { places, lines, at: new Map(places.map((place) => [place.item.id, place])), w: found.w, h: found.h };
}

function sized(node) {
  if (node.kind === "group" || isModule(node)) return { id: node.id, ...CARD };
  return { id: node.id, w: Math.min(Math.ceil(widthOf(node.title, "500 12px")) + 44, 220), h: CHIP_H };
}

// Operators in the boxes of their groups; edges between groups end at the boxes.
function boxed(view) {
  const boxOf = (id) => (byId.get(id).group === null ? id : `g${byId.get(id).group}`);
  const lone = (group) => group.operators.length === 1;
  const ends = (id) => (byId.get(id).group === null || lone(groupOf(byId.get(id))) ? id : boxOf(id));
  const inner = new Map(groups.filter((group) => !lone(group)).map((group) => [group.id, { nodes: [], edges: [] }]));
  const nodes = [];
  for (const node of view.nodes) {
    const box = inner.get(boxOf(node.id));
    if (box && !box.nodes.length) nodes.push({ id: boxOf(node.id), ...HEADER, inner: box });
    (box ? box.nodes : nodes).push(sized(node));
  }
  const outer = new Map();
  for (const edge of view.edges) {
    const [from, to] = [ends(edge.from), ends(edge.to)], plain = { id: edge.id, from: edge.from, to: edge.to };
    if (from === to) inner.get(from).edges.push(plain);
    else if (!outer.has(`${from}-${to}`)) outer.set(`${from}-${to}`, { id: edge.id, from, to });
  }
  return { nodes, edges: [...outer.values()] };
}

// Drawing -----------------------------------------------------------------------------------------------------

const layers = { boxes: s("g", { class: "boxes" }), edges: s("g", { class: "edges" }), nodes: s("g", { class: "nodes" }) };
const world = s("g", {}, Object.values(layers));
const arrow = s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0.8L8 4L0 7.2z" }));
svg.append(s("defs", {}, arrow), world);
let shown = null; // the layout on the screen
const camera = { x: 0, y: 0, k: 1 };
const drawn = new Map(); // elements by key
let pending = 0;

function show(layout) {
  shown = layout;
  clear();
  schedule();
}
function clear() {
  drawn.clear();
  for (const layer of Object.values(layers)) layer.replaceChildren();
}
const schedule = () => (pending ||= requestAnimationFrame(render));

function render() {
  pending = 0;
  if (!shown) return;
  world.setAttribute("transform", `translate(${camera.x} ${camera.y}) scale(${camera.k})`);
  const far = camera.k < FAR;
  svg.classList.toggle("far", far);
  svg.classList.toggle("middle", !far && camera.k < 0.55);
  const wanted = far ? afar() : near();
  for (const [key, element] of drawn) if (!wanted.has(key)) element.remove(), drawn.delete(key);
  for (const [key, { layer, make }] of wanted)
    if (!drawn.has(key)) {
      const element = make();
      drawn.set(key, element), layers[layer].append(element);
    }
}

function near() {
  const left = -camera.x / camera.k - 50, top = -camera.y / camera.k - 50;
  const right = left + stage.clientWidth / camera.k + 100, bottom = top + stage.clientHeight / camera.k + 100;
  const wanted = new Map();
  for (const line of shown.lines) {
    const [a, b, c, d] = line.box;
    if (c < left || a > right || d < top || b > bottom) continue;
    wanted.set(`line ${line.item.id}${state.key(line.item)}`, { layer: "edges", make: () => drawEdge(line) });
  }
  for (const place of shown.places) {
    const { x, y, w, h: height, item } = place;
    if (x + w / 2 < left || x - w / 2 > right || y + height / 2 < top || y - height / 2 > bottom) continue;
    wanted.set(`node ${item.id}${state.key(item)}`, { layer: place.isBox ? "boxes" : "nodes", make: () => drawNode(place) });
  }
  return wanted;
}

function afar() {
  const wanted = new Map(), key = state.searchKey();
  wanted.set("far edges", { layer: "edges", make: () => s("path", { class: "edge", d: shown.lines.filter((l) => !l.isLong).map(moved).join("") }) });
  wanted.set("far long", { layer: "edges", make: () => s("path", { class: "edge long", d: shown.lines.filter((l) => l.isLong).map(moved).join("") }) });
  const parts = new Map();
  for (const place of shown.places) {
    const name = `${place.isBox ? "box" : "block"} t${typeIndex(mappingOf(place.item))}${state.isDimmed(place.item) ? " dimmed" : ""}`;
    if (!parts.has(name)) parts.set(name, []);
    parts.get(name).push(`M${place.x - place.w / 2} ${place.y - place.h / 2}h${place.w}v${place.h}h${-place.w}z`);
  }
  for (const [name, d] of parts) wanted.set(`far ${name} ${key}`, { layer: name.startsWith("box") ? "boxes" : "nodes", make: () => s("path", { class: name, d: d.join("") }) });
  const place = state.selected && shown.at.get(state.selected.id);
  if (place) wanted.set(`far selected ${place.item.id}`, { layer: "nodes", make: () => outline(place) });
  return wanted;
}
const outline = (place) => s("rect", { class: "outline", x: place.x - place.w / 2 - 8, y: place.y - place.h / 2 - 8, width: place.w + 16, height: place.h + 16, rx: 12 });

// A path moved by an offset; paths of inner graphs are relative to their boxes.
function moved({ d, dx, dy }) {
  if (!dx && !dy) return d;
  return d.replace(/([MLCQ])([^MLCQ]*)/g, (_, letter, numbers) => letter + numbers.trim().split(/\s+/).map((n, i) => +n + (i % 2 ? dy : dx)).join(" "));
}

function drawEdge(line) {
  const { item } = line, d = moved(line);
  const verdict = item.verdict ?? (item.kind === "kernel edge" ? "refused" : "");
  const name = `edge ${verdict}${line.isLong ? " long" : ""}${state.isSelected(item) ? " selected" : ""}${state.isNear(item) ? " near" : ""}`;
  return s("g", { class: name, "data-id": item.id }, s("path", { d, "marker-end": "url(#arrow)" }), s("path", { class: "hit", d }));
}

// Members of a group by their types, as small blocks on its card.
const MOST_MEMBERS = 14;
const memberWidth = (group) => 7 * Math.min(group.operators.length, MOST_MEMBERS);

function drawNode(place) {
  const { item, x, y, w, h: height } = place;
  const type = typeIndex(mappingOf(item)), mark = MARKS[mappingOf(item)] ?? "";
  const classes = `node ${item.kind}${place.isBox ? " box" : ""} t${type}${state.isSelected(item) ? " selected" : ""}${state.isDimmed(item) ? " dimmed" : ""}${item.is_view ? " view" : ""}`;
  const made = s("g", { class: classes, "data-id": item.id, transform: `translate(${x - w / 2} ${y - height / 2})` });
  made.append(s("rect", { class: "body", width: w, height, rx: place.isBox ? 10 : 6 }));
  if (isModule(item) && !place.isBox) return closedModule(made, item, w, height);
  if (place.isBox) {
    const text = isModule(item) ? `− ${item.title} · ${microseconds(item.time)}` : `${microseconds(timeOf(item))} · ${item.template}`;
    const [name, font] = isModule(item) ? ["title", "600 12.5px"] : ["sub", "500 11px"];
    made.append(s("text", { class: name, x: 12, y: 19 }, fitted(text, w - 24, font)));
    return made;
  }
  made.append(s("path", { class: "bar", d: `M6 0H5V${height}H6a6 6 0 0 1-6-6V6a6 6 0 0 1 6-6z` }));
  if (item.kind !== "group") {
    made.append(s("text", { class: "title", x: 13, y: 17 }, fitted(item.title, w - 44, "500 12px")));
    made.append(s("text", { class: "mark", x: w - 8, y: 17 }, mark));
    return made;
  }
  const time = microseconds(timeOf(item)), room = w - 30 - widthOf(time, "600 12px");
  made.append(
    s("text", { class: "title", x: 14, y: 20 }, fitted(shortTitle(item), room - 4, "600 12.5px")),
    s("text", { class: "time", x: w - 10, y: 20 }, time),
    s("text", { class: "sub", x: 14, y: 37 }, fitted(nameOf(item), w - 62 - memberWidth(item), "400 11px")),
    s("g", { class: "members" }, item.operators.slice(0, MOST_MEMBERS).map((i, k) => s("rect", {
      class: `block t${typeIndex(operators[i].mapping)}`, x: w - 38 - memberWidth(item) + 7 * k, y: 29, width: 5, height: 9, rx: 1.5 }))),
    s("text", { class: "mark", x: w - 10, y: 37 }, mark),
    s("rect", { class: "share", x: 6, y: height - 3, width: Math.max(1, ((w - 12) * timeOf(item)) / longestTime), height: 2, rx: 1 }),
  );
  return made;
}

function closedModule(made, module, w, height) {
  const time = microseconds(module.time);
  made.prepend(s("rect", { class: "body", x: 5, y: -5, width: w, height, rx: 6 }));
  made.append(
    s("text", { class: "title", x: 14, y: 20 }, fitted(`+ ${module.title}`, w - 34 - widthOf(time, "600 12px"), "600 12.5px")),
    s("text", { class: "time", x: w - 10, y: 20 }, time),
    s("text", { class: "sub", x: 14, y: 37 }, counted(module.members.length, "group")),
    s("rect", { class: "share", x: 6, y: height - 3, width: Math.max(1, ((w - 12) * module.time) / Math.max(totalTime, 1e-9)), height: 2, rx: 1 }),
  );
  return made;
}

// Camera ------------------------------------------------------------------------------------------------------

const roomFor = () => ({ w: stage.clientWidth - 2 * MARGIN, h: stage.clientHeight - 2 * MARGIN - BELOW });
const fitScale = () => Math.min(roomFor().w / Math.max(shown.w, 1), roomFor().h / Math.max(shown.h, 1));
// Show everything, or some places as large as is legible.
function fit(places = []) {
  if (!shown) return;
  const box = places.length ? boundsOf(places) : [0, 0, shown.w, shown.h];
  const [w, h] = [box[2] - box[0], box[3] - box[1]], room = roomFor();
  camera.k = Math.min(room.w / Math.max(w, 1), room.h / Math.max(h, 1), 1.25);
  camera.x = (stage.clientWidth - w * camera.k) / 2 - box[0] * camera.k;
  camera.y = MARGIN + (room.h - h * camera.k) / 2 - box[1] * camera.k;
  schedule();
}
function boundsOf(places) {
  const all = (choose, side, sign) => choose(...places.map((place) => place[side] + (sign * place[side === "x" ? "w" : "h"]) / 2));
  return [all(Math.min, "x", -1), all(Math.min, "y", -1), all(Math.max, "x", 1), all(Math.max, "y", 1)];
}
function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
  const k = Math.min(Math.max(camera.k * factor, Math.min(fitScale() / 2, 0.2)), 3);
  camera.x = x - ((x - camera.x) * k) / camera.k;
  camera.y = y - ((y - camera.y) * k) / camera.k;
  camera.k = k;
  schedule();
}
function isOnScreen(place) {
  const [left, top, right, low] = boundsOf([place]).map((at, i) => at * camera.k + (i % 2 ? camera.y : camera.x));
  return left >= 0 && top >= 0 && right <= stage.clientWidth && low <= stage.clientHeight - BELOW;
}
function reveal(item) {
  const place = shown?.at.get(item?.id);
  if (!place) return;
  const k = Math.max(camera.k, 0.8), x = place.x * camera.k + camera.x, y = place.y * camera.k + camera.y;
  const isVisible = camera.k >= FAR && x > 60 && y > 60 && x < stage.clientWidth - 60 && y < stage.clientHeight - 60;
  if (!isVisible) {
    camera.k = k;
    camera.x = stage.clientWidth / 2 - place.x * k;
    camera.y = stage.clientHeight / 2 - place.y * k;
  }
  schedule();
}
// What is at a point of the stage: a node, and the box of a group around it.
function at(px, py) {
  const x = (px - camera.x) / camera.k, y = (py - camera.y) / camera.k;
  const hits = (shown?.places ?? []).filter((p) => Math.abs(p.x - x) <= p.w / 2 && Math.abs(p.y - y) <= p.h / 2);
  return { node: hits.find((place) => !place.isBox)?.item, box: hits.findLast((place) => place.isBox)?.item };
}
