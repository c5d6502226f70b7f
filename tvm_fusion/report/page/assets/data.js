"use strict";
// The page's content, with what refers to each other joined: operators, groups, edges and the views of them.

const content = JSON.parse(document.getElementById("content").textContent);
const { operators, edges, groups, imported } = content;
// Mapping types in the order of their complexity, each with a mark, so that nothing is told by colour alone.
const MARKS = { "One-to-One": "1:1", Reorganize: "R", Shuffle: "S", "One-to-Many": "1:n", "Many-to-Many": "n:n", Opaque: "?" };
const TYPES = Object.keys(MARKS), typeIndex = (type) => TYPES.indexOf(type);

for (const [i, operator] of operators.entries()) Object.assign(operator, { id: `o${i}`, kind: "operator", reads: [], readers: [] });
for (const [i, group] of groups.entries()) Object.assign(group, { id: `g${i}`, kind: "group" });
for (const [i, node] of imported.nodes.entries()) Object.assign(node, { id: `m${i}`, kind: "imported", reads: [], readers: [] });
for (const [i, edge] of edges.entries()) {
  Object.assign(edge, { id: `e${i}`, kind: "edge" });
  operators[edge.from].readers.push(edge);
  operators[edge.to].reads.push(edge);
}
for (const [from, to] of imported.edges) {
  imported.nodes[from].readers.push(imported.nodes[to]);
  imported.nodes[to].reads.push(imported.nodes[from]);
}

// Times: measured where they were, else by the planner's model.
const timeOf = (group) => group.measured_us ?? group.us ?? 0;
const isMeasured = groups.length > 0 && groups.every((group) => group.measured_us !== null);
const host = Math.max(content.call?.host_us ?? 0, 0); // what of a call lies outside of kernels
const totalTime = groups.reduce((sum, group) => sum + timeOf(group), 0);
const longestTime = Math.max(...groups.map(timeOf), 1e-9);

// Names: the user's where they are known, else variables.
const namesOf = (item) => (item.names?.length ? item.names : [item.variable]).filter(Boolean);
const nameOf = (item) => {
  if (item.kind !== "group") return namesOf(item)[0] ?? "";
  const names = item.names ?? [...new Set(item.operators.flatMap((i) => namesOf(operators[i])))];
  const shared = prefixOf(names);
  if (shared) return shared;
  return names.length > 1 ? `${names[0]} .. ${names.at(-1)}` : names[0] ?? "";
};
// The module that names have in common.
function prefixOf(names) {
  let shared = names.length > 1 ? names[0] : "";
  while (shared && !names.every((name) => isInside(name, shared)))
    shared = shared.slice(0, Math.max(shared.lastIndexOf("/"), shared.lastIndexOf("."), 0));
  return shared;
}
const isInside = (name, path) => name === path || (name.startsWith(path) && "/.".includes(name[path.length]));
const titlesOf = (group) => group.titles ?? group.operators.map((i) => operators[i].title);
const titleOf = (item) => {
  if (item.kind !== "group") return item.title;
  const titles = titlesOf(item);
  return titles.length <= 6 ? titles.join(" + ") : [...titles.slice(0, 4), `${titles.length - 5} more`, titles.at(-1)].join(" + ");
};

// Modules of the model, by the paths that names are: with the time of what lies in them. What computes parts of
// several lies in the one around them.
const outside = operators.filter((operator) => operator.group === null && !operator.is_view);
const launched = [...groups, ...outside];
const namesIn = (item) => item.kind === "group" ? item.names ?? item.operators.flatMap((i) => namesOf(operators[i])) : namesOf(item);
const hasModules = launched.some((item) => namesIn(item).some((name) => /[^/.][/.]/.test(name)));
const joinedName = (name, child) => (name ? `${name}.${child.name}` : child.name);
function modules() {
  const root = { path: "", name: "", time: 0, items: [], children: new Map() };
  for (const item of launched) {
    const names = [...new Set(namesIn(item))], path = names.length === 1 ? names[0] : prefixOf(names);
    let node = root;
    node.time += timeOf(item);
    for (const [part] of path.matchAll(/[/.]?[^/.]+/g)) {
      const name = part.replace(/^[/.]/, "");
      if (!node.children.has(name)) node.children.set(name, { path: node.path + part, name, time: 0, items: [], children: new Map() });
      node = node.children.get(name);
      node.time += timeOf(item);
    }
    node.items.push(item);
  }
  return root;
}

// On a card there is room for a few operators; a template says more than the first of many.
const shortTitle = (group) => (titlesOf(group).length > 6 && group.template ? `${group.template}: ${titlesOf(group).length} operators` : titleOf(group));

// An imported operator is coloured as the operator that it became: the one of its tensors, variable or names; of
// several the one that is called alike.
const spellings = (item) => [...(item.tensors ?? []), item.variable, ...(item.names ?? [])];
const became = new Map();
for (const operator of operators) for (const name of spellings(operator)) became.set(name, [...(became.get(name) ?? []), operator]);
for (const node of imported.nodes) {
  const found = spellings(node).map((name) => became.get(name)).find(Boolean);
  node.became = found?.find((operator) => operator.title === node.title) ?? found?.[0];
}
const mappingOf = (item) => (item.kind === "group" ? item.type : item.kind === "imported" ? item.became?.mapping : item.mapping);

const byId = new Map([...operators, ...groups, ...imported.nodes, ...edges].map((item) => [item.id, item]));
const groupOf = (operator) => (operator.group === null ? null : groups[operator.group]);
// What stands for an operator among kernels; views have no kernel.
const kernelOf = (operator) => groupOf(operator) ?? (operator.is_view ? null : operator);

const kernelEdges = new Map();
for (const edge of edges) {
  const [from, to] = [kernelOf(operators[edge.from]), kernelOf(operators[edge.to])];
  if (!from || !to || from === to) continue;
  const id = `${from.id}-${to.id}`;
  if (!kernelEdges.has(id)) kernelEdges.set(id, { id, kind: "kernel edge", from: from.id, to: to.id, edges: [] });
  kernelEdges.get(id).edges.push(edge);
}
for (const [id, edge] of kernelEdges) byId.set(id, edge);

const views = {
  before: {
    title: "Before",
    note: "the model as it was imported",
    nodes: imported.nodes,
    edges: imported.edges.map(([from, to]) => ({ id: `m${from}-m${to}`, kind: "imported edge", from: `m${from}`, to: `m${to}` })),
  },
  operators: {
    title: "Operators",
    note: "rewritten, with the kernels that they share",
    nodes: operators,
    edges: edges.filter((edge) => !edge.through.length).map((edge) => ({ ...edge, from: `o${edge.from}`, to: `o${edge.to}` })),
    boxes: groups,
  },
  after: { title: "After", note: "what is launched", nodes: launched, edges: [...kernelEdges.values()] },
};
if (!imported.nodes.length) delete views.before;
if (!operators.length) {
  // A profile knows calls, and what they read unless the artifact is old: then kernels in the order of their calls.
  delete views.operators;
  const pairs = content.reads?.length ? content.reads : groups.slice(1).map((_, i) => [i, i + 1]);
  const kind = content.reads?.length ? "read edge" : "order edge";
  const lines = pairs.map(([from, to]) => ({ id: `g${from}-g${to}`, kind, from: `g${from}`, to: `g${to}` }));
  Object.assign(views.after, { title: "Kernels", note: kind === "read edge" ? "with what each reads" : "in the order of their calls", edges: lines });
}
if (hasModules) views.modules = { title: "Modules", note: "what is launched, by modules of the model", nodes: launched, edges: views.after.edges };
for (const view of Object.values(views)) {
  for (const edge of view.edges) if (!byId.has(edge.id)) byId.set(edge.id, edge);
  view.neighbours = new Map(view.nodes.map((node) => [node.id, { before: [], after: [] }]));
  for (const { from, to } of view.edges) view.neighbours.get(from).after.push(to), view.neighbours.get(to).before.push(from);
}
// The node of a view that shows an item, if any does.
function shownIn(name, item) {
  if (item.kind === "group" && name === "operators") return item;
  if (item.kind === "module") return name === "modules" ? visiblePath(item).at(-1) : null;
  if (name === "modules") {
    const kernel = item.kind === "operator" ? kernelOf(item) : item.kind === "imported" ? item.became && kernelOf(item.became) : item;
    return kernel ? visiblePath(kernel).at(-1) : null;
  }
  if (views[name].neighbours.has(item.id)) return item;
  if (item.kind === "operator" && name === "after") return kernelOf(item);
  if (item.kind === "imported" && item.became) return shownIn(name, item.became);
  if (name === "before" && item.kind !== "imported") {
    const members = item.kind === "group" ? item.operators.map((i) => operators[i]) : [item];
    return imported.nodes.find((node) => members.includes(node.became)) ?? null;
  }
  return null;
}

// Numbers for readers.
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
function scaled(number, units, base = 1000) {
  let i = 0;
  while (Math.abs(number) >= base && i < units.length - 1) (number /= base), i++;
  return `${number >= 100 || (i === 0 && Number.isInteger(number)) ? number.toFixed(0) : number.toPrecision(3)} ${units[i]}`;
}
const microseconds = (us) => (us < 1000 ? `${us < 10 ? us.toPrecision(2) : us.toFixed(us < 100 ? 1 : 0)} µs` : us < 1e6 ? `${(us / 1e3).toPrecision(3)} ms` : `${(us / 1e6).toPrecision(3)} s`);
const bytes = (number) => scaled(number, ["B", "kB", "MB", "GB", "TB"]);
const flops = (number) => scaled(number, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]);
const percent = (share) => share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

// The kernels' text, decompressed when it is first asked for.
let kernelTexts = null;
function textsOf(name) {
  kernelTexts ??= (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("kernels").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Map(Object.entries(JSON.parse(await new Response(stream).text())));
  })();
  return kernelTexts.then((texts) => Object.entries(texts.get(name) ?? {}));
}

// Elements ----------------------------------------------------------------------------------------------------
// Text is always set as text, never as markup: names come from files.
function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  return filled(made, properties, children);
}
function s(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}
function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
