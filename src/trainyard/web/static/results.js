// Results side by side: the headline table, what makes the comparison unfair, figures, tables, notes and assumptions.

import * as api from "./api.js";
import {breakable, make, middle, table} from "./dom.js";
import {figure} from "./figures.js";
import {energyByMachine, timeByLayer, timeByMachine} from "./plots.js";
import {percent, rate, show, unitOf, written} from "./units.js";

const NAMED = {layers: "Time by layer and phase", roofline: "Roofline", traffic: "Traffic by tensor", energy: "Energy by component", timeline: "Timeline", overlap: "Exposed and hidden time", memory: "Memory over time"};
const BROAD = new Set(["layers", "timeline", "memory"]);

// results: [{name, key, body}], the first being the baseline
export function sideBySide(results) {
  const bodies = results.map(({name, body}) => ({...body, name}));
  const many = results.length > 1;
  return [
    make("h2", {}, many ? `${bodies[0].workload}, batch ${bodies[0].batch}, on ${results.length} machines` : bodies[0].title ?? `${bodies[0].workload} on ${bodies[0].name}`),
    warned(bodies),
    contents(),
    headline(bodies),
    slower(bodies).map(text => make("p", {}, text)),
    make("p", {class: "links"}, results.map(({name, key}) => make("a", {href: api.resultPath(key), download: `${fileName(name)}.json`}, `Download JSON: ${name}`)),
      make("a", {href: location.href}, "Permalink of this view")),
    make("h3", {}, "Time"),
    make("div", {class: "plots"},
      many ? figure(timeByMachine(bodies)) : drawn(bodies[0], "phases", many),
      many ? figure(energyByMachine(bodies)) : drawn(bodies[0], "energy", many),
      many ? figure(timeByLayer(bodies), {broad: true}) : drawn(bodies[0], "layers", many)),
    layers(bodies),
    section("Roofline", bodies, "roofline", many),
    section("Traffic", bodies, "traffic", many),
    many ? section("Energy by component", bodies, "energy", many) : [],
    section("Timeline", bodies, "timeline", many),
    section("Exposed and hidden time", bodies, "overlap", many),
    section("Memory", bodies, "memory", many),
    nodes(bodies),
    make("h3", {}, "Notes and assumptions"),
    bodies.map(body => rests(body, !many)),
  ].flat(2);
}

const fileName = text => text.replace(/[^\w.-]+/g, "_").slice(0, 60);

function drawn(body, name, many) {
  const spec = body.figures?.[name];
  return spec ? figure(spec, {broad: BROAD.has(name), title: many ? `${NAMED[name]}: ${middle(body.name, 48)}` : ""}) : null;
}

function section(title, bodies, name, many) {
  const all = bodies.map(body => drawn(body, name, many)).filter(Boolean);
  return all.length ? [make("h3", {}, title), make("div", {class: "plots"}, all)] : [];
}

// A node's link graph: an SVG that is shown as a picture, so that nothing in it can act; it has its own style for the dark.
const DARK = "<style>@media (prefers-color-scheme: dark) { .paper { fill: none; } .legend { fill: #e6e9ed; } }</style>";
function nodes(bodies) {
  const drawn = bodies.filter(body => body.node);
  return drawn.length ? [make("h3", {}, "Node"), make("div", {class: "plots"}, drawn.map(({node}) => make("figure", {class: "graph"},
    node.svg ? make("img", {alt: node.told, src: `data:image/svg+xml,${encodeURIComponent(node.svg.replace(">", `>${DARK}`))}`}) : null, make("figcaption", {}, node.told))))] : [];
}

export const speedup = (body, first) => body.samples_per_s / first.samples_per_s;

export function time(body) {
  return body.headline ?? show(body.time_s, "s");
}

function headline(bodies) {
  const first = bodies[0];
  const columns = [
    {head: "machine", of_row: true, cell: r => breakable(r.name)},
    {head: "time", cell: time, value: r => r.time_s},
    {head: "speedup", cell: r => `${speedup(r, first).toFixed(2)} x`, value: r => speedup(r, first)},
    {head: "throughput", cell: r => rate(r.samples_per_s), value: r => r.samples_per_s},
    {head: "energy", cell: r => Object.keys(r.energy_by_component_j ?? {}).length ? show(r.energy_j, "J") : "not modelled", value: r => r.energy_j},
    {head: "DRAM traffic", cell: r => show(r.traffic_bytes?.dram ?? 0, "B"), value: r => r.traffic_bytes?.dram ?? 0},
    {head: "memory", cell: r => r.memory, value: r => r.memory_share ?? 0},
    {head: "peak", cell: r => show(r.peaks.macs_per_s, "MAC/s"), value: r => r.peaks.macs_per_s},
    {head: "DRAM bandwidth", cell: r => show(r.peaks.dram_bytes_per_s, "B/s"), value: r => r.peaks.dram_bytes_per_s},
    {head: "technology", text: true, cell: r => r.peaks.technology || "not said"},
    {head: "bound by", text: true, cell: r => r.bound || "-"},
  ];
  return table({caption: `Per training step; speedup is in samples/s over ${first.name}.`, columns, rows: bodies, label: "Headline of each machine", classes: "headline"});
}

function warned(bodies) {
  const short = bodies.flatMap(body => body.shortages.map(text => make("p", {class: "warning", role: "note"}, `${bodies.length > 1 ? `${body.name}: ` : ""}${text}.`)));
  const found = differences(bodies);
  return [...short, ...unlike(found)];
}

function unlike(found) {
  return found.length ? [make("div", {class: "warning", role: "note"}, make("strong", {}, "Warning: this compares what is not alike."), make("ul", {}, found.map(text => make("li", {}, text))))] : [];
}

// Links to the sections below; filled when they are all there.
function contents() { return make("nav", {class: "links", "aria-label": "Sections of the results"}); }

export function fillContents(place) {
  const nav = place.querySelector("nav.links");
  nav?.replaceChildren(...[...place.querySelectorAll("h3")].map(head => make("a", {href: location.href, on: {click: event => {
    event.preventDefault();
    head.tabIndex = -1;
    head.scrollIntoView();
    head.focus({preventScroll: true});
  }}}, head.textContent)));
}

// Why a machine does fewer samples per second than the first: as `report.lines.slower` says it.
const SLOWER = 0.95;
const RATES = {dram: ["DRAM bandwidth", "dram_bytes_per_s", "B/s"], compute: ["peak MACs", "macs_per_s", "MAC/s"]};
function slower([first, ...others]) {
  return others.filter(body => speedup(body, first) < SLOWER).map(body => {
    const bound = (body.bound || "nothing that is booked").replace(/ (\d+ %)$/, " for $1 of its time");
    const known = Object.keys(RATES).sort((a, b) => bound.startsWith(b) - bound.startsWith(a)).map(name => RATES[name]);
    const has = known.filter(([, rate]) => body.peaks[rate] < first.peaks[rate]).map(([what, rate, unit]) =>
      `${Number((body.peaks[rate] / first.peaks[rate]).toPrecision(2))} x the ${what} (${show(body.peaks[rate], unit)} against ${show(first.peaks[rate], unit)})`);
    const waits = Object.entries(body.by_class ?? {}).filter(([name, cost]) => name !== "compute" && cost.time_s > 0.1 * body.time_s).map(([name, cost]) => `${percent(cost.time_s / body.time_s)} of its step is exposed ${name}`);
    const reason = [...(has.length ? [`it has ${has.join(" and ")}`] : []), ...waits].join(" and ") || "its peaks are no lower";
    return `${body.name} does ${Number(speedup(body, first).toPrecision(2))} x the samples/s of ${first.name}: it is bound by ${bound}; ${reason}.`;
  });
}

// What makes a comparison unfair unless it is meant.
function differences(bodies) {
  return Object.keys(bodies[0].conditions).flatMap(what => {
    const seen = new Map();
    for (const {name, conditions} of bodies) if (!seen.has(conditions[what])) seen.set(conditions[what], name);
    return seen.size > 1 ? [`${what}: ${[...seen].map(([value, name]) => `${value} (${name})`).join(" vs ")}`] : [];
  });
}

function layers(bodies) {
  const names = [...new Set(bodies.flatMap(body => Object.keys(body.by_layer)))];
  const at = (body, layer) => body.by_layer[layer]?.time_s ?? null;
  const columns = [
    {head: "layer", of_row: true, cell: name => breakable(name || "(outside any layer)")},
    ...bodies.flatMap(body => [
      {head: bodies.length > 1 ? `time, ${middle(body.name, 28)}` : "time", cell: name => show(at(body, name), "s"), value: name => at(body, name)},
      {head: "share", cell: name => at(body, name) === null ? "-" : percent(at(body, name) / body.time_s), value: name => at(body, name)},
      ...(bodies.length > 1 ? [] : [
        {head: "energy", cell: name => show(body.by_layer[name].energy_j, "J"), value: name => body.by_layer[name].energy_j},
        {head: "DRAM", cell: name => show(body.by_layer[name].traffic_bytes?.dram ?? 0, "B"), value: name => body.by_layer[name].traffic_bytes?.dram ?? 0},
        {head: "MACs", cell: name => show(body.by_layer[name].macs, "MAC"), value: name => body.by_layer[name].macs}]),
    ]),
  ];
  const caption = `${names.length} layers in the order of the network. Time is exposed time and sums to the step.`;
  return make("details", {class: "block"}, make("summary", {}, "Table by layer"), table({caption, columns, rows: names, label: "Table by layer"}));
}

function rests(body, open) {
  const columns = [
    {head: "name", of_row: true, cell: a => breakable(a.name)},
    {head: "value", text: true, cell: a => written(a.value, unitOf(a.path ?? a.name))},
    {head: "meaning", text: true, class: "wide", cell: a => a.meaning},
    {head: "alternatives", text: true, class: "wide", cell: a => a.alternatives.map(value => written(value, unitOf(a.path ?? a.name))).join(", ") || "(no other)"},
    {head: "chosen on", text: true, class: "wide", cell: a => a.settles || "-"},
  ];
  const notes = body.notes ?? [];
  const count = `${notes.length} notes, ${body.assumptions.length} assumptions`;
  return make("details", {class: "block", open}, make("summary", {}, `${body.name}: ${count}`),
    notes.length ? make("ul", {}, notes.map(note => make("li", {}, note))) : null,
    body.assumptions.length ? table({caption: "What is not known for certain, the value that stands in for it, and what else it could be.", columns, rows: body.assumptions, label: `Assumptions of ${body.name}`}) : null,
    make("p", {class: "quiet"}, body.provenance ?? `trainyard ${body.version}`));
}
