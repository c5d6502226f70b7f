"use strict";
// The graph by modules of the model: a closed module is one card, an open one a box around its parts.

const UNREADABLE = 22; // cards that are shown at first, at most
const byModules = (() => {
  const made = (node, parent, name = node.name) => {
    const kept = [...node.children.values()];
    if (parent && kept.length === 1 && !node.items.length) return made(kept[0], parent, joinedName(name, kept[0]));
    if (parent && !kept.length && node.items.length === 1) return node.items[0];
    const module = { id: `u${byId.size}`, kind: "module", title: name, path: node.path, time: node.time, parent, isOpen: !parent };
    byId.set(module.id, module);
    module.parts = [...kept.map((child) => made(child, module)), ...node.items];
    for (const part of module.parts) part.module = module;
    module.members = module.parts.flatMap((part) => part.members ?? [part]);
    return module;
  };
  return made(modules(), null);
})();
const isModule = (item) => item.kind === "module";
const partsIn = (module) => partsOf(module).reduce((sum, one) => sum + 1 + partsIn(one), 0);
const partsOf = (module) => module.parts.filter(isModule);

// Open what has most parts, from the outside to the inside, as long as everything can be read.
function openAtFirst() {
  let cards = byModules.parts.length;
  for (let level = partsOf(byModules); level.length; level = level.flatMap((module) => (module.isOpen ? partsOf(module) : [])))
    for (const module of [...level].sort((a, b) => b.members.length - a.members.length))
      if (cards + module.parts.length - 1 <= UNREADABLE) (module.isOpen = true), (cards += module.parts.length - 1);
}
openAtFirst();

// From the outermost module to the item, as far as modules are open.
function visiblePath(item) {
  const path = [];
  for (let one = item; one; one = one.module) path.unshift(one);
  const closed = path.findIndex((one) => isModule(one) && !one.isOpen);
  return closed < 0 ? path : path.slice(0, closed + 1);
}
function openAround(item) {
  let isNew = false;
  for (let one = item.module; one; one = one.module) (isNew ||= !one.isOpen), (one.isOpen = true);
  return isNew;
}

// What is laid out: nested nodes, each edge in the innermost module that holds both of its ends.
function nestedGraph(view) {
  const lines = new Map();
  for (const edge of view.edges) {
    const [from, to] = [edge.from, edge.to].map((id) => visiblePath(byId.get(id)));
    const fork = from.findIndex((one, i) => one !== to[i]);
    if (fork < 0 || !from[fork] || !to[fork]) continue; // inside of a closed module
    const ends = [from[fork].id, to[fork].id], id = ends.join("-"), around = from[fork - 1].id;
    if (!lines.has(around)) lines.set(around, new Map());
    const known = lines.get(around);
    if (!known.has(id)) known.set(id, { id, kind: "module edge", from: ends[0], to: ends[1], edges: [] });
    known.get(id).edges.push(edge);
  }
  const edgesIn = (module) => [...(lines.get(module.id)?.values() ?? [])].map((edge) => {
    const [only] = edge.edges, isOne = edge.edges.length === 1 && only.from === edge.from && only.to === edge.to;
    byId.set(edge.id, isOne ? only : edge);
    view.neighbours.get(edge.from)?.after.push(edge.to), view.neighbours.get(edge.to)?.before.push(edge.from);
    return { id: edge.id, from: edge.from, to: edge.to };
  });
  view.neighbours = new Map();
  view.shown = [];
  const nodesIn = (module) => module.parts.map((part) => {
    view.neighbours.set(part.id, { before: [], after: [] });
    view.shown.push(part);
    if (!isModule(part) || !part.isOpen) return sized(part);
    const nodes = nodesIn(part);
    return { id: part.id, ...HEADER, inner: { nodes, edges: edgesIn(part), aspect: 1.6 } };
  });
  const nodes = nodesIn(byModules);
  return { nodes, edges: edgesIn(byModules) };
}
