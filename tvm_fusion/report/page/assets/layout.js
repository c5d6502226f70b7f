"use strict";
// A layered layout of a graph, in columns like a newspaper's. Runs in a worker, behind dagre.
//
// 1. Operators get ranks, as late as their readers allow. An edge over more than `span` ranks, or fewer where many
//    layers read one tensor, is long: it is drawn in a lane next to its column and shapes nothing.
// 2. The order is cut wherever all that goes on comes from one operator. dagre lays out each piece between two
//    cuts; equal pieces, such as a model's layers, once.
// 3. A piece is sheared so that its entry and its exit are above each other, and stacked below the one before;
//    a full column is followed by another, so that everything has the proportions of the screen.

const GAP_X = 18, GAP_Y = 22, COLUMN_GAP = 46, LANE = 7, LONGEST = 24, LARGEST = 250;
const INSIDE = { x: 10, top: 30, bottom: 10 };

function arrange(nodes, edges, aspect) {
  for (const node of nodes) {
    if (!node.inner) continue;
    node.inner = arrange(node.inner.nodes, node.inner.edges, node.inner.aspect ?? 0);
    node.w = Math.max(node.w, node.inner.w + 2 * INSIDE.x);
    node.h = node.inner.h + INSIDE.top + INSIDE.bottom;
  }
  const found = inColumns(nodes, edges, aspect);
  for (const node of nodes) {
    if (!node.inner) continue;
    const { x, y } = found.nodes[node.id];
    node.inner.dx = x - node.inner.w / 2;
    node.inner.dy = y - node.h / 2 + INSIDE.top;
    found.nodes[node.id].inner = node.inner;
  }
  return found;
}

// Order --------------------------------------------------------------------------------------------------------

function ranked(nodes, edges) {
  const count = nodes.length;
  const after = nodes.map(() => []), waiting = new Array(count).fill(0), rank = new Array(count).fill(0);
  for (const [from, to] of edges) after[from].push(to), waiting[to]++;
  const ready = [], order = [];
  for (let i = 0; i < count; i++) if (!waiting[i]) ready.push(i);
  for (let next = 0; next < ready.length; next++) {
    const node = ready[next];
    order.push(node);
    for (const reader of after[node]) {
      rank[reader] = Math.max(rank[reader], rank[node] + 1);
      if (!--waiting[reader]) ready.push(reader);
    }
  }
  const isOrdered = new Set(order);
  for (let i = 0; i < count; i++) if (!isOrdered.has(i)) order.push(i); // on a cycle
  for (const node of [...order].reverse()) {
    const first = Math.min(...after[node].map((reader) => rank[reader]));
    if (first !== Infinity && first > rank[node]) rank[node] = first - 1;
  }
  return { rank, order: order.sort((a, b) => rank[a] - rank[b] || a - b) };
}

function pieces(order, rank, edges, span) {
  const rungs = new Map();
  for (const [from, to] of edges) rungs.set(from, (rungs.get(from) ?? new Set()).add(rank[to]));
  const reach = (from) => Math.min(span, (2 * span) / rungs.get(from).size);
  const short = edges.filter(([from, to]) => rank[to] > rank[from] && rank[to] - rank[from] <= reach(from));
  const readers = new Map(), reads = new Map();
  for (const [from, to] of short) {
    readers.set(from, (readers.get(from) ?? 0) + 1);
    reads.set(to, [...(reads.get(to) ?? []), from]);
  }
  const found = [], open = new Map();
  let piece = { entry: null, nodes: [] };
  for (const node of order) {
    piece.nodes.push(node);
    for (const from of reads.get(node) ?? []) {
      const left = open.get(from) - 1;
      if (left) open.set(from, left);
      else open.delete(from);
    }
    if (readers.has(node)) open.set(node, readers.get(node));
    if (open.size > 1) continue;
    const [exit = null] = open.keys();
    found.push({ ...piece, exit });
    piece = { entry: exit, nodes: [] };
  }
  if (span <= 1) return { found, short };
  const shorter = new Set(short);
  const smaller = found.flatMap((one) => {
    if (one.nodes.length <= LARGEST) return [one];
    const inside = new Set([...one.nodes, one.entry]);
    const own = short.filter(([from, to]) => inside.has(from) && inside.has(to));
    const parts = pieces(one.nodes, rank, own.filter(([from]) => from !== one.entry), span >> 1);
    parts.found[0].entry = one.entry;
    const kept = new Set(parts.short);
    for (const edge of own) if (edge[0] !== one.entry && !kept.has(edge)) shorter.delete(edge);
    return parts.found;
  });
  return { found: smaller, short: [...shorter] };
}

// One piece ----------------------------------------------------------------------------------------------------

const known = new Map();

// Positions around the entry's x = 0, the topmost node's upper edge at y = 0.
function laidOut(piece, nodes, edges) {
  const inside = piece.entry === null ? piece.nodes : [piece.entry, ...piece.nodes];
  const place = new Map(inside.map((node, i) => [node, i]));
  const own = edges.map(([from, to]) => [place.get(from), place.get(to)]);
  const exit = piece.exit !== null && place.has(piece.exit) ? place.get(piece.exit) : -1;
  const entry = piece.entry === null ? -1 : 0;
  const key = JSON.stringify([inside.map((i) => [nodes[i].w, nodes[i].h]), own, entry, exit]);
  if (!known.has(key)) known.set(key, byDagre(inside.map((i) => nodes[i]), own, entry, exit));
  return known.get(key);
}

function byDagre(boxes, edges, entry, exit) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: GAP_X, ranksep: GAP_Y, ranker: boxes.length > 120 ? "longest-path" : "network-simplex" });
  boxes.forEach(({ w, h }, i) => graph.setNode(i, { width: w, height: h }));
  for (const [from, to] of edges) graph.setEdge(from, to, {});
  dagre.layout(graph);
  const at = boxes.map((_, i) => graph.node(i));
  const start = entry >= 0 ? at[entry] : exit >= 0 ? { x: at[exit].x, y: 0 } : { x: graph.graph().width / 2, y: 0 };
  const end = exit >= 0 && at[exit].y > start.y ? at[exit] : null;
  const slope = end ? (end.x - start.x) / (end.y - start.y) : 0;
  const own = at.map((node, i) => (i === entry ? Infinity : node.y - node.height / 2));
  const top = Math.min(...own);
  const moved = ({ x, y }) => ({ x: x - start.x - Math.max(y - start.y, 0) * slope, y: y - top });
  const places = at.map(moved);
  const lines = edges.map(([from, to]) => graph.edge(from, to).points.map(moved));
  const xs = [...lines.flat().map((p) => p.x), ...places.flatMap((p, i) => [p.x - boxes[i].w / 2, p.x + boxes[i].w / 2])];
  const height = Math.max(...places.map((p, i) => (i === entry ? 0 : p.y + boxes[i].h / 2)));
  return { places, lines, left: Math.min(...xs), right: Math.max(...xs), height };
}

// Columns ------------------------------------------------------------------------------------------------------

function inColumns(nodes, edges, aspect) {
  const number = new Map(nodes.map((node, i) => [node.id, i]));
  const pairs = edges.map((edge) => Object.assign([number.get(edge.from), number.get(edge.to)], { id: edge.id }));
  const { rank, order } = ranked(nodes, pairs);
  const { found, short } = pieces(order, rank, pairs, LONGEST);
  const owner = new Map(found.flatMap((piece, i) => piece.nodes.map((node) => [node, i])));
  const inPiece = found.map(() => []), long = new Set(pairs);
  for (const edge of short) {
    const i = owner.get(edge[1]);
    if (owner.get(edge[0]) === i || found[i].entry === edge[0]) inPiece[i].push(edge), long.delete(edge);
  }
  const laid = found.map((piece, i) => laidOut(piece, nodes, inPiece[i]));
  const made = columnsOf(laid, aspect).map((column) => {
    const own = column.map(({ i, y }) => ({ piece: found[i], one: laid[i], edges: inPiece[i], y }));
    const low = own.at(-1);
    return {
      pieces: own, y: low.y + low.one.height,
      left: Math.min(...own.map(({ one }) => one.left)), right: Math.max(...own.map(({ one }) => one.right)),
    };
  });

  const at = new Array(nodes.length), columnOf = new Array(nodes.length);
  let x = 0, bottom = 0;
  made.forEach((one, i) => {
    one.x = x - one.left;
    for (const { piece, one: own, y } of one.pieces) {
      const offset = piece.entry === null ? 0 : 1;
      piece.nodes.forEach((node, k) => {
        const place = own.places[k + offset];
        at[node] = { x: one.x + place.x, y: y + place.y, w: nodes[node].w, h: nodes[node].h };
        columnOf[node] = i;
      });
    }
    one.lanes = lanes([...long].filter(([from, to]) => columnOf[from] === i && columnOf[to] === i), at);
    one.width = one.right - one.left + (one.lanes.count ? 10 + LANE * one.lanes.count : 0);
    x += one.width + COLUMN_GAP, bottom = Math.max(bottom, one.y);
  });

  const lines = {};
  made.forEach((one, i) => {
    for (const { piece, one: own, edges: inside, y } of one.pieces)
      inside.forEach((edge, k) => {
        const points = own.lines[k].map((p) => ({ x: one.x + p.x, y: y + p.y }));
        if (edge[0] !== piece.entry) return (lines[edge.id] = { d: curve(points), box: boxOf(points) });
        const from = at[edge[0]], start = { x: from.x, y: from.y + from.h / 2 };
        const trunk = columnOf[edge[0]] === i ? [] : gutter(start, one.x + one.left - COLUMN_GAP / 2, y);
        const rest = [trunk.length ? { x: one.x, y: y - 14 } : start, ...points.slice(1)];
        lines[edge.id] = { d: polyline(trunk) + curve(rest, trunk.length > 0), box: boxOf([start, ...trunk, ...points]) };
      });
  });
  for (const edge of long) {
    const [from, to] = [at[edge[0]], at[edge[1]]], i = columnOf[edge[0]];
    const lane = columnOf[edge[1]] === i ? made[i].lanes.of.get(edge[0]) : undefined;
    lines[edge.id] = lane === undefined ? across(from, to) : aside(from, to, made[i].x + made[i].right + 10 + LANE * lane);
    lines[edge.id].isLong = true;
  }
  const places = Object.fromEntries(nodes.map((node, i) => [node.id, at[i]]));
  return { nodes: places, edges: lines, w: Math.max(x - COLUMN_GAP, 0), h: bottom };
}

// Pieces in columns: as many as make the whole largest on a screen of these proportions.
function columnsOf(laid, aspect) {
  let best = null;
  for (let count = 1; count <= (aspect ? 40 : 1) && count <= laid.length; count++) {
    let low = Math.max(...laid.map((one) => one.height)), high = laid.reduce((sum, one) => sum + one.height + GAP_Y, 0);
    if (count === 1) low = high;
    while (high - low > 8) {
      const middle = (low + high) / 2;
      if (filled(laid, middle).length <= count) high = middle;
      else low = middle;
    }
    const columns = filled(laid, high);
    const width = columns.reduce((sum, one) => sum + widthOf(one.map(({ i }) => laid[i])) + COLUMN_GAP, 0);
    const height = Math.max(...columns.map((one) => one.at(-1).y + laid[one.at(-1).i].height));
    const scale = Math.min(aspect / width, 1 / height);
    if (!best || scale > best.scale) best = { scale, columns };
  }
  return best?.columns ?? [];
}
function filled(laid, height) {
  const columns = [];
  let y = Infinity;
  laid.forEach((one, i) => {
    if (y + one.height > height) columns.push([]), y = 0;
    columns.at(-1).push({ i, y });
    y += one.height + GAP_Y;
  });
  return columns;
}
const widthOf = (ones) => Math.max(...ones.map((one) => one.right)) - Math.min(...ones.map((one) => one.left));

// A lane for all long edges of one operator, short ones nearest to the column.
function lanes(edges, at) {
  const spans = new Map();
  for (const [from, to] of edges) {
    const span = spans.get(from) ?? [at[from].y, at[from].y];
    spans.set(from, [Math.min(span[0], at[to].y), Math.max(span[1], at[to].y)]);
  }
  const taken = [], of = new Map();
  for (const [from, [top, low]] of [...spans].sort(([, a], [, b]) => a[1] - a[0] - (b[1] - b[0]))) {
    let lane = taken.findIndex((others) => others.every(([a, b]) => low < a || b < top));
    if (lane < 0) lane = taken.push([]) - 1;
    taken[lane].push([top, low]), of.set(from, lane);
  }
  return { of, count: taken.length };
}

// Paths --------------------------------------------------------------------------------------------------------

const r = (number) => Math.round(number * 10) / 10;

function curve(points, goesOn = false) {
  let d = `${goesOn ? "L" : "M"}${r(points[0].x)} ${r(points[0].y)}`;
  for (let i = 1; i < points.length; i++) {
    const [a, b] = [points[i - 1], points[i]], middle = r((a.y + b.y) / 2);
    d += Math.abs(a.x - b.x) < 0.5 ? `L${r(b.x)} ${r(b.y)}` : `C${r(a.x)} ${middle} ${r(b.x)} ${middle} ${r(b.x)} ${r(b.y)}`;
  }
  return d;
}

// From the foot of one column to the head of the next.
const gutter = (start, x, y) => [start, { x: start.x, y: start.y + 12 }, { x, y: start.y + 12 }, { x, y: y - 14 }];

function polyline(points) {
  return points.map((p, i) => `${i ? "L" : "M"}${r(p.x)} ${r(p.y)}`).join("");
}

function aside(from, to, x) {
  const start = { x: from.x + from.w / 2, y: from.y }, end = { x: to.x + to.w / 2, y: to.y };
  const bend = Math.min(8, Math.abs(end.y - start.y) / 2), down = end.y > start.y ? bend : -bend;
  const d =
    `M${r(start.x)} ${r(start.y)}L${r(x - bend)} ${r(start.y)}Q${r(x)} ${r(start.y)} ${r(x)} ${r(start.y + down)}` +
    `L${r(x)} ${r(end.y - down)}Q${r(x)} ${r(end.y)} ${r(x - bend)} ${r(end.y)}L${r(end.x)} ${r(end.y)}`;
  return { d, box: boxOf([start, end, { x, y: start.y }]) };
}

function across(from, to) {
  const side = to.x > from.x ? 1 : -1;
  const start = { x: from.x + (side * from.w) / 2, y: from.y }, end = { x: to.x - (side * to.w) / 2, y: to.y };
  const reach = side * Math.max(40, Math.abs(end.x - start.x) / 3);
  const d = `M${r(start.x)} ${r(start.y)}C${r(start.x + reach)} ${r(start.y)} ${r(end.x - reach)} ${r(end.y)} ${r(end.x)} ${r(end.y)}`;
  return { d, box: boxOf([start, end]) };
}

function boxOf(points) {
  const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  return [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
}

self.onmessage = ({ data }) => {
  try {
    self.postMessage({ ticket: data.ticket, found: arrange(data.nodes, data.edges, data.aspect) });
  } catch (error) {
    self.postMessage({ ticket: data.ticket, failed: String(error) });
  }
};
