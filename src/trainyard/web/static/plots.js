// Figures over several results, drawn from their numbers: machines side by side, a sweep's points.

import {FRONT, MACHINES, PHASES, SPARE} from "./colours.js";
import {middle, tail} from "./dom.js";
import {base, plain} from "./figures.js";
import {percent, scale, show, unitOf} from "./units.js";

const MOST_LAYERS = 24;

// Machines as stacked horizontal bars; parts(body) -> {part: value}
function stacked(bodies, {title, quantity, unit, parts}) {
  const names = bodies.map(({name}) => name);
  const totals = bodies.map(body => Object.values(parts(body)).reduce((sum, value) => sum + value, 0));
  const most = Math.max(...totals);
  const [factor, axis] = scale(most, unit);
  const all = [...new Set(bodies.flatMap(body => Object.keys(parts(body))))].filter(part => bodies.some(body => parts(body)[part]));
  const order = [...Object.keys(PHASES).filter(part => all.includes(part)), ...all.filter(part => !(part in PHASES))];
  const places = names.map((_, number) => number);
  const data = order.map((part, number) => ({
    type: "bar", orientation: "h", name: plain(part), y: places,
    x: bodies.map(body => (parts(body)[part] ?? 0) / factor),
    marker: {color: PHASES[part] ?? SPARE[number % SPARE.length]},
    customdata: bodies.map((body, place) => `${plain(tail(names[place]))}<br>${plain(part)}: ${show(parts(body)[part] ?? 0, unit)} (${percent((parts(body)[part] ?? 0) / (totals[place] || 1))})`),
    hovertemplate: "%{customdata}<extra></extra>",
  }));
  const description = `${title}: ${names.map((name, place) => `${name} ${show(totals[place], unit)}`).join(", ")}.`;
  return {data, layout: base({title, description, x: `${quantity} [${axis}]`, y: "", height: 170 + 34 * Math.max(names.length, 3), barmode: "stack", bargap: 0.3, showlegend: true,
    xaxis: {range: [0, 1.03 * most / factor || 1]}, yaxis: labels(names.map(name => middle(name, 34)))})};
}

const labels = names => ({
  range: [names.length - 0.5, -0.5], showgrid: false, zeroline: false, ticksuffix: "  ", tickmode: "array",
  tickvals: names.map((_, number) => number), ticktext: names.map(plain),
});

export const timeByMachine = bodies => stacked(bodies, {title: "Time by machine and phase", quantity: "exposed time per step", unit: "s",
  parts: body => Object.fromEntries(Object.entries(body.by_phase).map(([phase, cost]) => [phase, cost.time_s]))});

export const energyByMachine = bodies => stacked(bodies, {title: "Energy by machine and phase", quantity: "energy per step", unit: "J",
  parts: body => Object.fromEntries(Object.entries(body.by_phase).map(([phase, cost]) => [phase, cost.energy_j]))});

export function timeByLayer(bodies) {
  const at = (body, layer) => body.by_layer[layer]?.time_s ?? 0;
  const all = [...new Set(bodies.flatMap(body => Object.keys(body.by_layer)))];
  const longest = layer => Math.max(...bodies.map(body => at(body, layer)));
  const chosen = new Set([...all].sort((a, b) => longest(b) - longest(a)).slice(0, MOST_LAYERS));
  const shown = all.filter(layer => chosen.has(layer));
  const [factor, axis] = scale(Math.max(...shown.map(longest)), "s");
  const data = bodies.map((body, number) => ({
    type: "bar", orientation: "h", name: plain(middle(body.name, 40)), y: shown.map((_, place) => place), x: shown.map(layer => at(body, layer) / factor),
    marker: {color: MACHINES[number % MACHINES.length], pattern: {shape: ["", "/", ".", "x", "-", "\\", "+", "|"][number % 8], size: 6, solidity: 0.25, fillmode: "overlay", fgcolor: "rgba(255,255,255,0.75)"}},
    customdata: shown.map(layer => `${plain(tail(layer))}<br>${plain(tail(body.name))}: ${show(at(body, layer), "s")} (${percent(at(body, layer) / body.time_s)})`),
    hovertemplate: "%{customdata}<extra></extra>",
  }));
  const left = all.length - shown.length;
  const top = [...shown].sort((a, b) => longest(b) - longest(a)).slice(0, 2);
  const description = `Time by layer${left ? `, the ${shown.length} longest of ${all.length}` : ""}: ${top.map(layer => `${layer} ${bodies.map(body => `${show(at(body, layer), "s")} on ${body.name}`).join(", ")}`).join("; ")}.`;
  return {data, layout: base({title: "Time by layer and machine", description, x: `exposed time per step [${axis}]`, y: "", barmode: "group", bargap: 0.25, showlegend: true,
    height: 150 + shown.length * Math.max(20, 9 * bodies.length + 6), yaxis: labels(shown.map(layer => tail(layer || "(outside any layer)", 40)))})};
}

// rows: [{key, metrics, ...}]; `front` holds keys, `chosen` the keys inside the brush or null
export function points({rows, front, chosen, x, y, logX, logY, hover}) {
  const inside = row => !chosen || chosen.has(row.key);
  const [factorX, axisX] = scaled(rows, x), [factorY, axisY] = scaled(rows, y);
  const trace = (members, name, marker) => ({
    type: "scatter", mode: "markers", name, x: members.map(row => row.metrics[x] / factorX), y: members.map(row => row.metrics[y] / factorY),
    marker: {...marker, opacity: members.map(row => inside(row) ? 0.95 : 0.18)}, ids: members.map(row => row.key),
    customdata: members.map(row => [row.key, hover(row)]), hovertemplate: "%{customdata[1]}<extra></extra>", selected: {}, unselected: {marker: {opacity: 0.18}},
  });
  const best = rows.filter(row => front.has(row.key)).sort((a, b) => a.metrics[x] - b.metrics[x]);
  const data = [
    trace(rows.filter(row => !front.has(row.key)), "point", {color: MACHINES[0], size: 7}),
    trace(best, "Pareto front", {color: FRONT, size: 10, symbol: "diamond", line: {width: 1, color: "#ffffff"}}),
  ];
  const description = `${rows.length} points by ${x} and ${y}; ${best.length} on the Pareto front${chosen ? `; ${chosen.size} inside the brush` : ""}.`;
  return {factorX, factorY, data, layout: base({title: `${y} over ${x}`, description, x: `${x} ${axisX && `[${axisX}]`}`.trim(), y: `${y} ${axisY && `[${axisY}]`}`.trim(), height: 500, showlegend: true, dragmode: "select",
    xaxis: axis(logX, rows.map(row => row.metrics[x])), yaxis: axis(logY, rows.map(row => row.metrics[y]))})};
}

// A logarithmic axis over less than two decades is marked at powers of two: plotly's own marks there are hard to read.
function axis(log, values) {
  if (!log) return {type: "linear"};
  const positive = values.filter(value => value > 0);
  return {type: "log", ...(Math.max(...positive) < 100 * Math.min(...positive) && {tick0: 0, dtick: Math.log10(2)})};
}

function scaled(rows, metric) {
  const unit = unitOf(metric);
  return unit ? scale(Math.max(...rows.map(row => Math.abs(row.metrics[metric]) || 0)), unit) : [1, ""];
}
