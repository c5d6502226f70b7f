"use strict";
// The panel: an overview of the model, lists, and what is known of the selected operator, group or edge.

const panel = document.getElementById("panel");

const chip = (type) => h("span", { class: `chip t${typeIndex(type)}`, title: type }, h("i", {}, MARKS[type] ?? "?"), type);
const link = (item, ...text) => h("button", { type: "button", class: "link", onclick: () => select(item) }, text.length ? text : titleOf(item));
const facts = (...rows) => h("dl", {}, rows.filter(Boolean).map(([name, ...value]) => [h("dt", {}, name), h("dd", {}, ...value)]));
const section = (title, ...children) => h("section", {}, h("h3", {}, title), ...children);

// Lists that grow when asked: thousands of rows are no help at once.
function list(rows, make, first = 40) {
  const shownRows = h("ul", { class: "rows" }, rows.slice(0, first).map(make));
  if (rows.length <= first) return shownRows;
  const more = h("button", { type: "button", class: "more", onclick: () => (shownRows.append(...rows.slice(first).map(make)), more.remove()) }, `Show ${rows.length - first} more`);
  return h("div", {}, shownRows, more);
}
function alike(items, key) {
  const found = new Map();
  for (const item of items) found.set(key(item), [...(found.get(key(item)) ?? []), item]);
  return [...found.values()];
}

// Tabs --------------------------------------------------------------------------------------------------------

const TABS = { overview: ["Overview", overview], kernels: ["Kernels", kernelList] };
if (hasModules) TABS.modules = ["Modules", moduleList];
if (edges.length) TABS.refused = ["Not fused", refusedList];
if (content.rewriting) TABS.rewrites = ["Rewrites", rewriteList];

function showPanel(tab, item) {
  const tabs = Object.entries(TABS).map(([name, [title]]) =>
    h("button", { type: "button", role: "tab", "aria-selected": String(!item && name === tab), onclick: () => openTab(name) }, title),
  );
  const body = item ? described(item) : TABS[tab][1]();
  panel.replaceChildren(h("nav", { role: "tablist" }, tabs), h("div", { class: "body" }, body));
  panel.scrollTop = 0;
}

function overview() {
  const { counts, stock } = content;
  const figure = (value, label, other) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, label), other ? h("small", {}, other) : null);
  const gaps = content.call?.gaps_us;
  const outside = host > 0 && `${microseconds(host)} outside kernels${gaps ? `, ${microseconds(gaps)} between them` : ""}`;
  const byType = TYPES.map((type) => [type, groups.filter((group) => group.type === type)]).filter(([, found]) => found.length);
  const slowest = [...groups].sort((a, b) => timeOf(b) - timeOf(a)).slice(0, 8);
  return [
    h("div", { class: "figures" },
      figure(counts.kernels.toLocaleString("en"), counts.kernels === 1 ? "kernel" : "kernels", stock && `stock TVM ${stock.kernels.toLocaleString("en")}`),
      counts.intermediate_bytes === undefined ? null : figure(bytes(counts.intermediate_bytes), "intermediates", stock && `stock TVM ${bytes(stock.intermediate_bytes)}`),
      content.call ? figure(microseconds(content.call.us), "a call", outside) : null,
      figure(microseconds(totalTime), `${isMeasured ? "measured" : "predicted"}${content.call ? " in kernels" : ""}`)),
    section("Time by mapping type", h("ul", { class: "bars" }, byType.map(([type, found]) => {
      const time = found.reduce((sum, group) => sum + timeOf(group), 0);
      return h("li", {}, chip(type), h("span", { class: "number" }, percent(time / totalTime)), h("span", { class: `bar t${typeIndex(type)}`, style: `width:${(100 * time) / totalTime}%` }));
    }))),
    section("Roofline", roofline() ?? h("p", {}, "No group has both operations and bytes that are known.")),
    section("Where the time goes", kernelRows(slowest)),
    content.notes.length ? section("Notes", list(content.notes, (note) => h("li", {}, note), 5)) : null,
    content.assumed_dim ? h("p", { class: "note" }, `Estimates assume ${content.assumed_dim} for every symbolic dimension.`) : null,
  ];
}

const kernelRows = (rows, first) => list(rows, (group) =>
  h("li", {}, h("button", { type: "button", class: "row", onclick: () => select(group) },
    h("span", { class: "name" }, h("b", {}, shortTitle(group)), h("small", {}, nameOf(group))),
    h("span", { class: "number" }, microseconds(timeOf(group)), h("small", {}, percent(timeOf(group) / totalTime))),
    h("span", { class: `bar t${typeIndex(group.type)}`, style: `width:${(100 * timeOf(group)) / longestTime}%` }))), first);

function kernelList() {
  const equal = alike(groups, (group) => `${group.title} ${group.template} ${group.kernels}`).sort((a, b) => sumOf(b) - sumOf(a));
  return [
    h("p", { class: "note" }, `${counted(groups.length, "group")} of operators, ${equal.length} of them different; the slowest first.`),
    list(equal, (same) => same.length === 1 ? h("li", {}, ...kernelRows(same).children[0].children) : h("li", {}, h("details", {}, h("summary", { class: "row" },
      h("span", { class: "name" }, h("b", {}, `${same.length} × ${shortTitle(same[0])}`), h("small", {}, `by ${same[0].template}`)),
      h("span", { class: "number" }, microseconds(sumOf(same)), h("small", {}, percent(sumOf(same) / totalTime))),
      h("span", { class: `bar t${typeIndex(same[0].type)}`, style: `width:${(100 * sumOf(same)) / totalTime}%` })), kernelRows(same)))),
  ];
}
const sumOf = (same) => same.reduce((sum, group) => sum + timeOf(group), 0);

function moduleList() {
  const rows = (node) => [...node.children.values()].map(folded).sort((a, b) => b.time - a.time);
  const bar = (node) => [
    h("span", { class: "name" }, h("b", {}, node.name), h("small", {}, node.children.size ? counted(node.children.size, "part") : counted(node.items.length, "group"))),
    h("span", { class: "number" }, microseconds(node.time), h("small", {}, percent(node.time / totalTime))),
    h("span", { class: "bar t4", style: `width:${(100 * node.time) / totalTime}%` }),
  ];
  const made = (node) => {
    const show = h("button", { type: "button", class: "link", onclick: () => openModule(node.path) }, "Show in the graph");
    return h("li", {}, h("details", {}, h("summary", { class: "row" }, bar(node)), h("p", {}, show), node.children.size ? list(rows(node), made) : null, ownRows(node)));
  };
  const root = modules(), several = ownRows(root);
  return [
    h("p", { class: "note" }, "Time of the model's modules; a kernel counts where all that it computes belongs."), list(rows(root), made),
    several && section("Of several modules", several),
  ];
}
const ownRows = (node) => {
  const own = node.items.filter((item) => item.kind === "group");
  return own.length ? kernelRows(own, 8) : null;
};
// A module with one part and nothing else is shown as that part.
function folded(node) {
  while (node.children.size === 1 && !node.items.length) {
    const [child] = node.children.values();
    node = { ...child, name: joinedName(node.name, child) };
  }
  return node;
}

function refusedList() {
  const refused = edges.filter((edge) => edge.verdict === "refused");
  if (!refused.length) return h("p", {}, "Nothing was refused.");
  const byCode = alike(refused, (edge) => edge.code).sort((a, b) => b.length - a.length);
  return [
    h("p", { class: "note" }, `${counted(refused.length, "edge")} between operators that share no kernel, by reason.`),
    ...byCode.map((same) => h("details", { open: byCode.length < 4 }, h("summary", {}, h("b", {}, same[0].code.replaceAll("_", " ")), h("span", { class: "number" }, same.length)),
      list(alike(same, (edge) => `${pairOf(edge)} ${edge.sentence}`).sort((a, b) => b.length - a.length), (equal) => h("li", {}, h("button", { type: "button", class: "row", onclick: () => select(equal[0]) },
        h("span", { class: "name" }, h("b", {}, `${equal.length > 1 ? `${equal.length} × ` : ""}${pairOf(equal[0])}`), h("small", { class: "clip" }, equal[0].sentence)))), 15))),
  ];
}
const pairOf = (edge) => [operators[edge.from], ...edge.through.map((i) => operators[i]), operators[edge.to]].map((operator) => operator.title).join(" → ");

function rewriteList() {
  const rewriting = content.rewriting;
  if (!rewriting?.changes.length) return h("p", {}, "Nothing was rewritten.");
  const gain = (same) => same.reduce((sum, change) => sum + (change.gain?.us ?? 0), 0);
  const equal = alike(rewriting.changes, (change) => JSON.stringify([change.rules, change.before, change.after])).sort((a, b) => gain(b) - gain(a));
  return [
    h("p", { class: "note" }, `${counted(rewriting.changes.length, "change")}. Small letters are tensors, capitals constants; gains are the planner's estimates.`),
    list(equal, (same) => h("li", { class: "change" },
      h("p", {}, h("b", {}, same[0].rules.join(", ") || "equal operators merged"), same.length > 1 ? ` ${same.length} ×` : "", gain(same) > 0.05 ? h("span", { class: "number" }, `saves ${microseconds(Math.max(gain(same), 0))}`) : null),
      h("pre", {}, h("del", {}, same[0].before), h("ins", {}, same[0].after)),
      h("p", { class: "note" }, ...placesOf(same)))),
  ];
}
const placesOf = (same) => same.slice(0, 6).filter((change) => change.variable).flatMap((change) => {
  const found = became.get(change.variable)?.[0];
  return [found ? link(found, change.variable) : change.variable, " "];
});

// One item ----------------------------------------------------------------------------------------------------

function described(item) {
  const made = { group: groupPage, module: modulePage, "module edge": moduleEdge, operator: operatorPage, imported: importedPage, edge: (edge) => edgePage([edge]), "kernel edge": (edge) => edgePage(edge.edges), "imported edge": importedEdge, "order edge": orderEdge, "read edge": readEdge };
  const close = h("button", { type: "button", class: "close", title: "Close (Escape)", "aria-label": "Close", onclick: () => select(null) }, "×");
  return h("article", {}, close, made[item.kind](item));
}
const names = (item) => h("p", { class: "names" }, namesOf(item).map((name) => h("code", {}, name)));

const tensorsOf = (item) => item.tensors?.some((tensor) => !namesOf(item).includes(tensor)) ? ["Tensors", item.tensors.slice(0, 8).flatMap((tensor) => [h("code", {}, tensor), " "])] : null;

function groupPage(group) {
  const members = group.operators.map((i) => operators[i]);
  const own = new Set(group.operators);
  const inside = edges.filter((edge) => own.has(edge.from) && own.has(edge.to) && !edge.through.length);
  const around = edges.filter((edge) => own.has(edge.from) !== own.has(edge.to) && edge.verdict);
  return [
    h("h2", {}, shortTitle(group)), h("p", {}, chip(group.type)), nameOf(group) ? h("p", { class: "names" }, h("code", {}, nameOf(group))) : null,
    facts(
      ["Time", h("b", {}, microseconds(timeOf(group))), ` ${sourceOf(group)}, ${percent(timeOf(group) / totalTime)} of all`],
      group.measured_us !== null && group.us !== null ? ["Predicted", `${microseconds(group.us)} (${group.source})`] : null,
      group.most ? ["Largest term", group.most] : null,
      group.template ? ["Template", group.template, group.arithmetic ? `, ${group.arithmetic}` : ""] : null,
      Object.keys(group.config ?? {}).length ? ["Configuration", Object.entries(group.config).map(([name, value]) => `${name}=${value}`).join(" ")] : null,
      group.launches === undefined ? null : ["Launches", String(group.launches)],
      group.bytes === null ? null : ["Memory traffic", bytes(group.bytes), group.hidden_bytes ? `; ${bytes(group.hidden_bytes)} stay in registers or caches` : ""],
      ["Arithmetic", flops(group.flops), group.bytes ? `, ${(group.flops / group.bytes).toPrecision(2)} per byte` : ""],
      ...Object.entries(group.shares ?? {}).map(([name, share]) => [`Share of ${name}`, percent(share)])),
    members.length ? section(counted(members.length, "operator"), list(members, operatorRow)) : null,
    group.titles ? section(counted(group.titles.length, "operator"), list(group.titles, (title) => h("li", {}, title))) : null,
    group.names?.length ? section("Names", list(group.names, (name) => h("li", {}, h("code", {}, name)))) : null,
    group.forms?.length ? section("Forms of kernels", list(group.forms, (form) => h("li", {}, h("b", {}, form.name), ` ${form.kernel}`, form.is_chosen ? " (chosen)" : "", h("small", {}, form.sentence)))) : null,
    ...(operators.length ? group.kernels.map((name, i) => source(name, i === 0 && group.kernels.length === 1))
      : [section(counted(group.kernels.length, "kernel"), list(group.kernels, (name) => h("li", {}, h("code", {}, name))))]),
    around.length ? section("Not fused with", edgeRows(around, (edge) => (own.has(edge.from) ? ["→", operators[edge.to]] : ["←", operators[edge.from]]))) : null,
    inside.length ? section("Fused inside", edgeRows(inside, (edge) => ["", operators[edge.to], operators[edge.from]])) : null,
  ];
}
const operatorRow = (operator) => h("li", {}, h("button", { type: "button", class: "row", onclick: () => select(operator) },
  h("span", { class: "name" }, h("b", {}, operator.title), h("small", {}, namesOf(operator).join(", "))), chip(operator.mapping), h("small", { class: "type" }, operator.type)));
const edgeRows = (rows, ends) => list(rows, (edge) => {
  const [arrow, to, from] = ends(edge);
  return h("li", {}, h("button", { type: "button", class: "row", onclick: () => select(edge) }, h("span", { class: "name" }, h("b", {}, from ? `${from.title} → ${to.title}` : `${arrow} ${to.title}`), h("small", { class: "clip" }, edge.sentence))));
}, 8);

function source(name, isOpen) {
  const languages = h("nav", { role: "tablist" }), text = h("pre", { class: "source", tabindex: "0" });
  const fill = async () => {
    const texts = await textsOf(name);
    const choose = (language) => {
      text.textContent = texts.find(([other]) => other === language)?.[1] ?? "No source is known.";
      for (const button of languages.children) button.setAttribute("aria-selected", String(button.textContent === language));
    };
    languages.replaceChildren(...texts.map(([language]) => h("button", { type: "button", role: "tab", onclick: () => choose(language) }, language)));
    choose(texts[0]?.[0]);
  };
  const made = h("details", { class: "kernel", ontoggle: () => made.open && fill() }, h("summary", {}, "Kernel ", h("code", {}, name)), languages, text);
  made.open = isOpen;
  return made;
}

function operatorPage(operator) {
  const group = groupOf(operator);
  return [
    h("h2", {}, operator.title), h("p", {}, chip(operator.mapping)), names(operator),
    facts(
      ["Kernel", group ? link(group) : operator.is_view ? "none: a view renames the elements of a buffer" : "opaque: no template can take it"],
      tensorsOf(operator),
      ["Variable", h("code", {}, operator.variable), ` in ${operator.function}`],
      ["Result", operator.type, operator.bytes ? `, ${bytes(operator.bytes)}` : ""],
      operator.flops ? ["Arithmetic", flops(operator.flops)] : null),
    operator.reads.length ? section("Reads", edgeRows(operator.reads, (edge) => ["←", operators[edge.from]])) : null,
    operator.readers.length ? section("Is read by", edgeRows(operator.readers, (edge) => ["→", operators[edge.to]])) : null,
  ];
}

function importedPage(node) {
  const others = (rows) => list(rows, (other) => h("li", {}, link(other, other.title), " ", h("small", {}, nameOf(other))));
  const group = node.became && groupOf(node.became);
  return [
    h("h2", {}, node.title), node.became ? h("p", {}, chip(node.became.mapping)) : null, names(node),
    facts(
      ["Became", node.became ? link(node.became, `${node.became.title} (${nameOf(node.became)})`) : "another operator: it was rewritten or computed at compile time"],
      group ? ["Kernel", link(group)] : null,
      tensorsOf(node),
      ["Variable", h("code", {}, node.variable), ` in ${node.function}`], ["Result", node.type]),
    node.reads.length ? section("Reads", others(node.reads)) : null,
    node.readers.length ? section("Is read by", others(node.readers)) : null,
  ];
}
const importedEdge = (edge) => [h("h2", {}, "A tensor of the imported model"), facts(["From", link(byId.get(edge.from))], ["To", link(byId.get(edge.to))])];
const readEdge = (edge) => [h("h2", {}, "A kernel reads what another wrote"), facts(["Written by", link(byId.get(edge.from))], ["Read by", link(byId.get(edge.to))])];
const orderEdge = (edge) => [h("h2", {}, "One kernel after another"), facts(["First", link(byId.get(edge.from))], ["Then", link(byId.get(edge.to))])];

// Edges between modules: of kernels, with their reasons, or of calls in their order.
function moduleEdge(edge) {
  const [from, to] = [byId.get(edge.from), byId.get(edge.to)];
  return [
    h("h2", {}, `${titleOf(from)} → ${titleOf(to)}`), facts(["From", link(from)], ["To", link(to)]),
    section(counted(edge.edges.length, "edge"), list(edge.edges, (one) => h("li", {}, link(one, [one.from, one.to].map((id) => titleOf(byId.get(id))).join(" → ")), " ", h("small", { class: "clip" }, one.edges?.[0].sentence ?? "")), 15)),
  ];
}
function modulePage(module) {
  const kernels = module.members.filter((item) => item.kind === "group"), inside = partsOf(module).sort((a, b) => b.time - a.time);
  return [
    h("h2", {}, module.title), h("p", { class: "names" }, h("code", {}, module.path)),
    facts(["Time", h("b", {}, microseconds(module.time)), `, ${percent(module.time / totalTime)} of all`], ["Kernels", counted(kernels.length, "group")]),
    h("p", {}, h("button", { type: "button", class: "link", onclick: () => toggle(module) }, module.isOpen ? "Close in the graph" : "Open in the graph"), " ", h("small", {}, "or a double click, or Enter")),
    inside.length ? section(counted(inside.length, "module"), list(inside, (one) => h("li", {}, h("button", { type: "button", class: "row", onclick: () => select(one) },
      h("span", { class: "name" }, h("b", {}, one.title), h("small", {}, counted(one.members.length, "group"))),
      h("span", { class: "number" }, microseconds(one.time), h("small", {}, percent(one.time / totalTime))),
      h("span", { class: "bar t4", style: `width:${(100 * one.time) / totalTime}%` }))))) : null,
    kernels.length ? section("Where the time goes", kernelRows([...kernels].sort((a, b) => timeOf(b) - timeOf(a)), 8)) : null,
  ];
}

function edgePage(found) {
  return found.map((edge) => {
    const [from, to] = [operators[edge.from], operators[edge.to]];
    const verdict = { accepted: "Fused", refused: "Not fused" }[edge.verdict] ?? "No decision";
    return [
      h("h2", {}, pairOf(edge)), h("p", {}, h("span", { class: `verdict ${edge.verdict ?? ""}` }, verdict), edge.code ? h("code", {}, edge.code) : null),
      h("p", { class: "reason" }, edge.sentence || "A view renames the elements of a buffer: there is nothing to fuse."),
      facts(["From", link(from, `${from.title} (${nameOf(from)})`)], ["To", link(to, `${to.title} (${nameOf(to)})`)],
        edge.classes.length ? ["Mapping types", edge.classes.flatMap((type, i) => [i ? " → " : "", chip(type)])] : null,
        ["Tensor", bytes(edge.bytes)]),
    ];
  });
}
