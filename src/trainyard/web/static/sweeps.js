// Sweeps: a store's points by any two metrics, the Pareto front marked; a brush filters the table, a point opens in Run & compare.

import * as address from "./address.js";
import * as api from "./api.js";
import {announce, complaint, field, make, table} from "./dom.js";
import {figure, forget, plain, redraw} from "./figures.js";
import {points} from "./plots.js";
import {number, show, unitOf, written} from "./units.js";

const VIEW = "sweeps";
const MOST_ROWS = 200;

export default class Sweeps {
  constructor(panel) {
    this.trouble = complaint();
    this.list = make("nav", {"aria-label": "Sweep stores"});
    this.file = make("input", {type: "file", accept: ".parquet", on: {change: () => this.uploaded()}});
    this.place = make("section", {class: "results", "aria-label": "Store"});
    panel.append(make("div", {class: "beside"}, make("div", {class: "side"}, this.list, field("Open the points of a store (Parquet)", this.file)), make("div", {}, this.trouble.element, this.place)));
    this.visit = 0;
  }

  async show(pairs) {
    const visit = ++this.visit;
    const given = new URLSearchParams([...pairs]);
    this.trouble.say("");
    try {
      [this.stores] = await Promise.all([api.stores(), api.uploads()]);
      const name = given.get("store") ?? "";
      if (visit !== this.visit) return;
      if (!name) this.body = null;
      else if (this.body?.name !== name || isPartial(this.body)) this.body = {...(await api.store(name)), name};
      if (visit !== this.visit) return;
    } catch (problem) {
      if (visit === this.visit) this.trouble.say(problem.message);
      this.body = null;
    }
    this.drawList();
    forget(this.place);
    this.place.replaceChildren();
    if (!this.body) return void this.place.append(this.stores?.length ? make("p", {class: "quiet"}, "Choose a store.") : "");
    const {metrics, objectives} = this.body;
    if (!metrics.length) return void this.place.append(make("h2", {}, this.body.name), this.body.rows.length ? this.failures() : make("p", {}, "This store has no points yet."), this.unfinished());
    const wished = Object.keys(objectives ?? {}).sort((a, b) => (b === "time_s") - (a === "time_s"));
    const known = (name, fallback) => metrics.includes(given.get(name)) ? given.get(name) : fallback;
    const x = known("x", wished[0] ?? metrics[0]);
    this.choice = {x, y: known("y", wished.find(metric => metric !== x) ?? metrics.find(metric => metric !== x) ?? x),
      logX: given.get("logx") === "1", logY: given.get("logy") === "1", front: given.get("front") === "1", box: readBox(given.get("box")), lasso: readLasso(given.get("lasso"))};
    this.draw();
  }

  async uploaded() {
    const file = this.file.files[0];
    this.trouble.say("");
    if (!file) return;
    try {
      const kept = await api.upload(file);
      if (kept.kind !== "store") throw new Error(`it is a file of kind ${kept.kind}, not the points of a store`);
      address.go(VIEW, [["store", kept.id]]);
    } catch (problem) {
      this.trouble.say(`${file.name}: ${problem.message}`);
    }
    this.file.value = "";
  }

  pairs() {
    const {x, y, logX, logY, front, box, lasso} = this.choice;
    return [["store", this.body.name], ["x", x], ["y", y], ...(logX ? [["logx", "1"]] : []), ...(logY ? [["logy", "1"]] : []), ...(front ? [["front", "1"]] : []),
      ...(box ? [["box", box.map(edge => Number.isFinite(edge) ? Number(edge.toPrecision(6)) : "").join(",")]] : []),
      ...(lasso ? [["lasso", lasso.map(([a, b]) => `${Number(a.toPrecision(4))},${Number(b.toPrecision(4))}`).join(";")]] : [])];
  }

  drawList() {
    this.list.replaceChildren(make("h2", {}, "Stores"), this.stores?.length ? make("ul", {}, this.stores.map(store => make("li", {},
      make("a", {href: address.linkTo(VIEW, [["store", store.name]]), "aria-current": store.name === this.body?.name ? "page" : null, on: {click: event => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        address.go(VIEW, [["store", store.name]]);
      }}}, api.named(store.name)), make("p", {class: store.error ? "error" : "quiet"}, store.error || `${store.points}${isPartial(store) ? ` of ${store.planned}` : ""} points${store.failed ? `, ${store.failed} failed` : ""}${isPartial(store) ? ": unfinished" : ""}`))))
      : make("p", {class: "quiet"}, "No sweep stores in the folder that is served. trainyard sweep study.toml makes one."));
  }

  draw() {
    const {body, choice} = this;
    this.good = body.rows.filter(row => !row.error && row.metrics);
    this.front = new Set(body.front ?? []);
    const metric = (key, label) => {
      const select = make("select", {on: {change: () => { choice[key] = select.value; choice.box = choice.lasso = null; this.draw(); this.note(); }}}, body.metrics.map(name => make("option", {value: name, selected: choice[key] === name}, name)));
      return field(label, select);
    };
    const tick = (key, label) => {
      const id = `sweep-${key}`;
      const box = make("input", {type: "checkbox", id, checked: choice[key], on: {change: () => { choice[key] = box.checked; this.note(); this.update(); }}});
      return make("div", {class: "tick"}, box, make("label", {for: id}, label));
    };
    const edge = (place, label) => {
      const input = make("input", {type: "text", inputmode: "decimal", class: "edge", autocomplete: "off", on: {change: () => this.edge(place, input)}});
      input.dataset.edge = place;
      return field(label, input);
    };
    this.edges = make("div", {class: "row end", role: "group", "aria-label": "Brush by numbers"}, edge(0, "x from"), edge(1, "x to"), edge(2, "y from"), edge(3, "y to"),
      make("button", {type: "button", on: {click: () => { choice.box = choice.lasso = null; this.note(); this.update(); }}}, "Clear the brush"));
    forget(this.place);
    this.figure = figure(this.spec(), {config: {displayModeBar: true, modeBarButtonsToRemove: ["toImage", "autoScale2d"]}, ready: place => this.listen(place)});
    this.rows = make("div", {class: "points"});
    const failed = body.rows.length - this.good.length;
    this.place.replaceChildren(make("h2", {}, api.named(body.name)), make("p", {class: "quiet"},
      `${body.points ?? body.rows.length} points${failed ? `, ${failed} failed` : ""}; ${this.front.size} on the Pareto front${objectivesText(body.objectives)}. Draw a box or a lasso in the plot, or write the edges, to filter the table; click a point to open it.`),
      this.unfinished(), make("div", {class: "row end"}, metric("x", "Horizontal"), tick("logX", "log"), metric("y", "Vertical"), tick("logY", "log"), tick("front", "Pareto front only")),
      this.edges, make("div", {class: "brushed"}, this.figure, this.rows));
    this.update();
  }

  // What a store lacks of its study: its front is that of the points so far.
  unfinished() {
    const {body} = this;
    return isPartial(body) ? make("p", {class: "warning", role: "note"}, `This sweep is not finished: the store has ${body.points} of ${body.planned} points, and the front is theirs. trainyard sweep on the same study goes on from there; this page shows what it adds when it is opened again.`) : "";
  }

  // A store in which nothing succeeded still says why.
  failures() {
    const columns = [{head: "point", of_row: true, cell: row => row.key.slice(0, 7)}, {head: "settings", text: true, class: "wide", cell: row => Object.entries(row.settings).map(([path, value]) => `${path} = ${setting(path, value)}`).join(", ")},
      {head: "error", text: true, class: "wide", cell: row => row.error}];
    return table({caption: `All ${this.body.rows.length} points failed.`, columns, rows: this.body.rows.slice(0, MOST_ROWS), label: "Points"});
  }

  note() { address.write(VIEW, this.pairs()); }

  chosen() {
    const {x, y, box, lasso} = this.choice;
    if (!box && !lasso) return null;
    const inside = ({metrics}) => box ? within(metrics[x], box[0], box[1]) && within(metrics[y], box[2], box[3]) : inPolygon([metrics[x], metrics[y]], lasso);
    return new Set(this.good.filter(inside).map(({key}) => key));
  }

  spec() {
    const {x, y, logX, logY, front} = this.choice;
    const shown = this.good.filter(row => Number.isFinite(row.metrics[x]) && Number.isFinite(row.metrics[y]) && (!front || this.front.has(row.key)));
    const hover = row => [row.workload, ...this.body.axes.map(path => `${path} = ${setting(path, row.settings[path])}`), `${x} ${valued(x, row.metrics[x])}`, `${y} ${valued(y, row.metrics[y])}`].map(plain).join("<br>");
    const made = points({rows: shown, front: this.front, chosen: this.chosen(), x, y, logX, logY, hover});
    this.factors = [made.factorX, made.factorY];
    return made;
  }

  update() {
    const spec = this.spec();
    redraw(this.figure, spec);
    this.figure.querySelector("figcaption").textContent = spec.layout.meta.description;
    this.figure.querySelector(".plot").setAttribute("aria-label", spec.layout.meta.description);
    for (const input of this.edges.querySelectorAll("input")) {
      const value = this.choice.box?.[Number(input.dataset.edge)];
      input.value = Number.isFinite(value) ? String(Number(value.toPrecision(6))) : "";
    }
    this.drawRows();
  }

  listen(place) {
    if (place.dataset.listens) return;
    place.dataset.listens = "yes";
    place.on("plotly_selected", event => {
      if (!event) return;
      const [factorX, factorY] = this.factors;
      if (event.range) Object.assign(this.choice, {lasso: null, box: [...ordered(event.range.x, factorX), ...ordered(event.range.y, factorY)]});
      else if (event.lassoPoints) Object.assign(this.choice, {box: null, lasso: event.lassoPoints.x.map((value, at) => [value * factorX, event.lassoPoints.y[at] * factorY])});
      else return;
      this.note();
      this.update();
    });
    place.on("plotly_deselect", () => { this.choice.box = this.choice.lasso = null; this.note(); this.update(); });
    place.on("plotly_click", ({points: clicked}) => {
      const row = this.good.find(({key}) => key === clicked[0].customdata[0]);
      if (row) this.open(row);
    });
  }

  // In Run & compare, or says why not.
  open(row) {
    const reason = this.body.closed?.[row.key];
    this.trouble.say(reason ? `Point ${row.key.slice(0, 7)} cannot be opened here: ${reason}.` : "");
    if (!reason) address.go("compare", pointPairs(row));
  }

  edge(place, input) {
    const value = input.value.trim() === "" ? NaN : Number(input.value);
    const box = this.choice.box ?? [NaN, NaN, NaN, NaN];
    box[place] = value;
    this.choice.lasso = null;
    this.choice.box = box.some(Number.isFinite) ? box : null;
    this.note();
    this.update();
  }

  drawRows() {
    const {x, y, front} = this.choice;
    const chosen = this.chosen();
    const rows = this.body.rows.filter(row => row.error ? !chosen && !front : (!chosen || chosen.has(row.key)) && (!front || this.front.has(row.key)));
    const sorted = [...rows].sort((a, b) => (a.metrics?.[y] ?? Infinity) - (b.metrics?.[y] ?? Infinity)).slice(0, MOST_ROWS);
    const {axes} = this.body;
    const several = new Set(this.body.rows.map(row => row.workload)).size > 1;
    const others = this.body.metrics.filter(metric => metric !== x && metric !== y);
    const columns = [
      {head: "point", of_row: true, class: "short", cell: row => this.body.closed?.[row.key]
        ? make("button", {type: "button", title: row.key, "aria-label": `Why ${row.key.slice(0, 7)} cannot be opened`, on: {click: () => this.open(row)}}, row.key.slice(0, 7))
        : make("a", {href: address.linkTo("compare", pointPairs(row)), title: row.key, on: {click: event => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          this.open(row);
        }}}, row.key.slice(0, 7))},
      {head: "front", text: true, cell: row => this.front.has(row.key) ? "Pareto" : row.error ? "failed" : ""},
      ...(several ? [{head: "workload", text: true, cell: row => row.workload}] : []),
      ...[...new Set([x, y])].map(measured),
      ...axes.map(path => ({head: path, cell: row => setting(path, row.settings?.[path]), value: row => row.settings?.[path]})),
      ...others.map(measured),
      ...(rows.some(row => row.error) ? [{head: "error", text: true, class: "wide", cell: row => row.error ?? ""}] : []),
    ];
    const cut = rows.length > sorted.length ? `, the ${sorted.length} with the least ${y} shown` : "";
    this.rows.replaceChildren(table({caption: `${rows.length} of ${this.body.rows.length} points${cut}${chosen ? ", inside the brush" : ""}.`, columns, rows: sorted, label: "Points"}));
    if (chosen) announce(`${rows.length} points inside the brush`);
  }
}

const measured = metric => ({head: metric, cell: row => row.error ? "" : valued(metric, row.metrics[metric]), value: row => row.metrics?.[metric]});
const isPartial = ({points, planned}) => points < planned;
const within = (value, least, most) => !(value < least) && !(value > most);
const ordered = (pair, factor) => [Math.min(...pair) * factor, Math.max(...pair) * factor];
const valued = (metric, value) => unitOf(metric) ? show(value, unitOf(metric)) : number(value);
const setting = (path, value) => value === undefined ? "" : written(value, unitOf(path));

function objectivesText(objectives) {
  const told = Object.entries(objectives ?? {}).map(([metric, direction]) => `${direction} ${metric}`).join(", ");
  return told && ` (${told})`;
}

function pointPairs(row) {
  const {batch = "", masks = "", at = "", parallel = "", inference = false, ...rest} = row.settings ?? {};
  const settings = Object.fromEntries(Object.entries(rest).map(([path, value]) => [path, written(value, unitOf(path))]));
  return address.writeRun({workload: row.workload, batch, masks, at, parallel, inference: inference ? "1" : "", machines: [{text: row.machine, settings}], run: true});
}

function readBox(text) {
  const edges = (text ?? "").split(",").map(part => part === "" ? NaN : Number(part));
  return edges.length === 4 && edges.some(Number.isFinite) ? edges : null;
}

function readLasso(text) {
  const corners = (text ?? "").split(";").map(part => part.split(",").map(Number)).filter(pair => pair.length === 2 && pair.every(Number.isFinite));
  return corners.length > 2 ? corners : null;
}

// Even-odd rule: a ray to the right crosses the edge an odd number of times.
function inPolygon([x, y], corners) {
  let inside = false;
  corners.forEach(([x1, y1], at) => {
    const [x0, y0] = corners.at(at - 1);
    if ((y0 > y) !== (y1 > y) && x < (x1 - x0) * (y - y0) / (y1 - y0) + x0) inside = !inside;
  });
  return inside;
}
