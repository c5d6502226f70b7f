"use strict";
// Charts: the time of each kernel in order, and the roofline that prices are made of.

const tip = document.getElementById("tip");
function tell(event, ...lines) {
  tip.replaceChildren(...lines.map((line, i) => h(i ? "span" : "b", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${Math.max(8, Math.min(event.clientY - height - 12, innerHeight - height - 8))}px`;
}
const tellOf = (group) => (event) =>
  tell(event, shortTitle(group), nameOf(group), `${microseconds(timeOf(group))}, ${percent(timeOf(group) / totalTime)} ${sourceOf(group)}`);
const silence = () => (tip.hidden = true);
const sourceOf = (group) => (group.measured_us === null ? `(${group.source})` : "(measured)");

// All kernels side by side, each as wide as it takes.
function timeBar(footer) {
  if (!groups.length) return void footer.remove();
  const width = 1000, bar = s("svg", { viewBox: `0 0 ${width} 24`, preserveAspectRatio: "none", class: "strip", "aria-hidden": "true" });
  let x = 0;
  const whole = Math.max(totalTime + host, 1e-9);
  for (const group of groups) {
    const w = (width * timeOf(group)) / whole;
    bar.append(
      s("rect", {
        x, width: Math.max(w - (w > 1.5 ? 0.35 : 0), 0.15), height: 24, class: `block t${typeIndex(group.type)}`, "data-id": group.id,
        onclick: () => select(group), onpointermove: tellOf(group), onpointerleave: silence,
      }),
    );
    x += w;
  }
  if (host) bar.append(s("rect", { x, width: width - x, height: 24, class: "host", onpointermove: (event) => tell(event, "Outside of kernels", microseconds(host)), onpointerleave: silence }));
  const told = isMeasured ? "measured" : "predicted by the planner's model, not measured";
  footer.append(h("p", {}, h("b", {}, microseconds(totalTime)), ` in ${counted(groups.length, "group")} of operators, in order; ${told}`), bar);
}
function markTime(footer, group) {
  for (const rect of footer.querySelectorAll("rect")) rect.classList.toggle("selected", rect.dataset.id === group?.id);
}

const power = (e) => `${10 ** (((e % 3) + 3) % 3)} ${["m", "", "k", "M", "G", "T", "P"][Math.floor(e / 3) + 1] ?? ""}`;

// Dtypes by their peak, highest first.
function roofs(peaks) {
  const found = new Map();
  for (const [dtype, peak] of Object.entries(peaks)) found.set(peak, [...(found.get(peak) ?? []), dtype]);
  return [...found].sort(([a], [b]) => b - a);
}

// Operations per byte against operations per second, both logarithmic.
function roofline() {
  const points = groups.filter((group) => group.flops > 0 && group.bytes > 0 && timeOf(group) > 0);
  if (!points.length) return null;
  if (!content.machine) return null;
  const { bandwidth, peaks, peaks_from: source } = content.machine;
  const W = 380, H = 236, L = 46, R = 12, T = 12, B = 34;
  const xs = points.map((group) => group.flops / group.bytes), ys = points.map((group) => (group.flops / timeOf(group)) * 1e6);
  const top = Math.max(...Object.values(peaks)), ridge = top / bandwidth;
  const decades = (values) => [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
  const [x0, x1] = decades([...xs, ridge * 2, 0.1]), [y0, y1] = decades([...ys, top * 1.2]);
  const x = (value) => L + ((Math.log10(value) - x0) / (x1 - x0)) * (W - L - R);
  const y = (value) => H - B - ((Math.log10(value) - y0) / (y1 - y0)) * (H - T - B);
  const low = Math.max(y0, -3);
  const chart = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "roofline", role: "img", "aria-label": "Roofline: operations per second against operations per byte" });
  const step = Math.max(1, Math.ceil((y1 - low) / 7));
  for (let e = low; e <= y1; e += step) chart.append(s("path", { class: "grid", d: `M${L} ${y(10 ** e)}H${W - R}` }), s("text", { class: "tick", x: L - 6, y: y(10 ** e) + 3.5, "text-anchor": "end" }, power(e)));
  for (let e = x0; e <= x1; e++) chart.append(s("path", { class: "grid", d: `M${x(10 ** e)} ${T}V${H - B}` }), s("text", { class: "tick", x: x(10 ** e), y: H - B + 14, "text-anchor": "middle" }, `${e < 0 ? (10 ** e).toFixed(-e) : 10 ** e}`));
  chart.append(s("text", { class: "axis", x: (L + W - R) / 2, y: H - 4, "text-anchor": "middle" }, "operations per byte"));
  chart.append(s("text", { class: "axis", x: L + 4, y: T + 9 }, "operations per second"));
  const start = Math.max(10 ** x0, 10 ** low / bandwidth);
  chart.append(s("path", { class: "roof", d: `M${x(start)} ${y(start * bandwidth)}L${x(ridge)} ${y(top)}` }));
  let last = -Infinity; // the label above
  for (const [peak, dtypes] of roofs(peaks)) {
    const at = y(peak) - 4, roof = s("path", { class: "roof", d: `M${x(peak / bandwidth)} ${y(peak)}H${W - R}` });
    chart.append(roof);
    roof.append(s("title", {}, `${dtypes.join(", ")}: ${scaled(peak, ["", "k", "M", "G", "T", "P"])}FLOP/s`));
    if (at - last < 11) continue;
    chart.append(s("text", { class: "tick", x: W - R, y: at, "text-anchor": "end" }, dtypes.join(", ")));
    last = at;
  }
  for (const [i, group] of points.entries())
    chart.append(
      s("circle", {
        cx: x(xs[i]), cy: y(Math.max(ys[i], 10 ** low)), r: 2.5 + 7 * Math.sqrt(timeOf(group) / longestTime),
        class: `dot t${typeIndex(group.type)}${group.measured_us === null ? " predicted" : ""}`, "data-id": group.id,
        onclick: () => select(group), onpointermove: tellOf(group), onpointerleave: silence,
      }),
    );
  const rate = `${scaled(bandwidth, ["B", "kB", "MB", "GB", "TB"])}/s`;
  const told = source ? `Measured bandwidth ${rate}, ${source} peak rates.` : `Bandwidth ${rate} and peak rates as the planner assumes them.`;
  return h("figure", {}, chart, h("figcaption", {}, `${told} ` + `A dot's area is its time${isMeasured ? "" : "; rings are predictions"}.`));
}
