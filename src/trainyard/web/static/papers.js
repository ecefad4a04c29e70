// Papers: the ledger of each paper, its verdicts, its figures; what has not been computed is computed as a job.

import * as address from "./address.js";
import * as api from "./api.js";
import {breakable, complaint, field, make, table} from "./dom.js";
import {figure, forget} from "./figures.js";
import {Jobs} from "./jobs.js";
import {number} from "./units.js";

const VIEW = "papers";
const SHORT_NOTE = 110;
const VERDICTS = {
  met: "within 5 %, or the bound holds",
  near: "within 15 %",
  off: "farther than 15 %",
  open: "farther than 15 %; readings of the paper were searched jointly and none fits",
  undefined: "the paper does not define the quantity; readings of it disagree",
  contradicted: "the paper's own figures or physics exclude it; the proof is in the note",
  substitute: "stands in for data that cannot be had",
  derived: "arithmetic on the paper's rows, or calibrated on them",
  context: "a parameter, used and not met",
  "not yet": "not computed yet",
};
const chipClass = verdict => `chip verdict ${verdict.replaceAll(" ", "-")}`;

export default class Papers {
  constructor(panel) {
    this.list = make("nav", {"aria-label": "Papers", class: "side"});
    this.jobs = new Jobs("Jobs");
    this.trouble = complaint();
    this.ledger = make("section", {class: "results", "aria-label": "Ledger"});
    panel.append(make("div", {class: "beside"}, this.list, make("div", {}, this.trouble.element, this.jobs.element, this.ledger)));
    this.visit = 0;
  }

  async show(pairs) {
    const visit = ++this.visit;
    this.verdicts = new Set(new URLSearchParams([...pairs]).getAll("verdict"));
    this.words = new URLSearchParams([...pairs]).get("find") ?? "";
    const wanted = new URLSearchParams([...pairs]).get("paper");
    this.trouble.say("");
    try {
      this.papers = await api.papers();
      if (visit !== this.visit) return;
      this.name = wanted ?? this.papers[0]?.name;
      this.drawList();
      if (this.body?.name !== this.name || !this.body.kept) await this.load(visit);
      else this.draw();
    } catch (problem) {
      if (visit === this.visit) this.trouble.say(problem.message);
    }
  }

  pairs() { return [["paper", this.name], ...[...this.verdicts].map(verdict => ["verdict", verdict]), ...(this.words ? [["find", this.words]] : [])]; }

  drawList() {
    this.list.replaceChildren(make("h2", {}, "Papers"), make("ul", {}, this.papers.map(paper => make("li", {},
      make("a", {href: address.linkTo(VIEW, [["paper", paper.name]]), "aria-current": paper.name === this.name ? "page" : null, on: {click: event => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        address.go(VIEW, [["paper", paper.name]]);
      }}}, paper.name),
      make("p", {class: "quiet"}, counted(paper))))));
  }

  async load(visit) {
    const body = await api.paper(this.name);
    if (visit !== this.visit) return;
    this.body = {...body, name: this.name, kept: body.complete};
    this.draw();
  }

  async compute() {
    const visit = this.visit, name = this.name;
    this.jobs.clear();
    try {
      await this.jobs.run(name, {paper: name});
    } catch {
      return;  // its line says why
    }
    this.jobs.tidy();
    try {
      if (visit === this.visit) { this.papers = await api.papers(); this.drawList(); await this.load(visit); }
    } catch (problem) {
      if (visit === this.visit && problem.status) this.trouble.say(problem.message);
    }
  }

  draw() {
    const {body} = this;
    const counts = new Map();
    for (const {verdict} of body.rows) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
    const find = make("input", {type: "search", value: this.words, autocomplete: "off", placeholder: "speedup, Fig. 12, …", on: {input: () => { this.words = find.value; this.written(); }}});
    const chips = make("div", {class: "chips", role: "group", "aria-label": "Filter by verdict"}, Object.keys(VERDICTS).filter(verdict => counts.has(verdict) || this.verdicts.has(verdict)).map(verdict =>
      make("button", {type: "button", class: chipClass(verdict), title: VERDICTS[verdict], "aria-pressed": String(this.verdicts.has(verdict)), on: {click: event => {
        if (!this.verdicts.delete(verdict)) this.verdicts.add(verdict);
        event.currentTarget.setAttribute("aria-pressed", String(this.verdicts.has(verdict)));
        this.written();
      }}}, `${verdict} ${counts.get(verdict) ?? 0}`)));
    this.place = make("div");
    forget(this.ledger);
    this.ledger.replaceChildren(
      make("h2", {}, body.title ?? this.papers.find(({name}) => name === this.name)?.title ?? this.name),
      body.kept ? "" : make("div", {class: "notice row"}, make("span", {}, `${body.shipped}.`), make("button", {type: "button", on: {click: () => this.compute()}}, "Compute it here")),
      make("p", {}, make("a", {href: address.linkTo("whatif", [["paper", this.name], ["run", "1"]]), on: {click: event => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        address.go("whatif", [["paper", this.name], ["run", "1"]]);
      }}}, "What its assumptions are worth")),
      make("div", {class: "row end"}, chips, field("Find in the ledger", find)),
      this.place,
      ...(body.figures?.length ? [make("h3", {}, "Figures"), make("div", {class: "plots"}, body.figures.map(spec => figure(spec.figure ?? spec, {broad: (spec.figure ?? spec).layout?.height > 700})))] : []));
    this.rows();
  }

  written() {
    address.write(VIEW, this.pairs());
    this.rows();
  }

  // Why no claim is shown.
  nothing() {
    const strange = [...this.verdicts].filter(verdict => !(verdict in VERDICTS));
    const known = [...this.verdicts].filter(verdict => verdict in VERDICTS);
    const found = this.words ? `that says “${this.words}”` : "";
    const judged = known.length ? `with the verdict ${known.join(" or ")}` : "";
    const unknown = strange.length ? ` There is no verdict ${strange.join(", ")}: the verdicts are ${Object.keys(VERDICTS).join(", ")}.` : "";
    return `None of the ${this.body.rows.length} claims of ${this.name} is one ${[judged, found].filter(Boolean).join(" ") || "of those that this link asks for"}.${unknown}`;
  }

  rows() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.body.rows.filter(row => (!this.verdicts.size || this.verdicts.has(row.verdict))
      && words.every(word => `${row.id} ${row.where} ${row.note}`.toLowerCase().includes(word)));
    const columns = [
      {head: "claim", of_row: true, cell: row => breakable(row.id), class: "claim"},
      {head: "paper", class: "list", cell: row => `${paperFigure(row)} ${row.unit ?? ""}`.trim(), value: row => first(row.paper)},
      {head: "ours", class: "list", cell: row => number(row.ours), value: row => first(row.ours)},
      ...(this.body.rows.some(measuredInGates) ? [{head: "from gates", class: "list", cell: row => measuredInGates(row) ? number(row.gates) : "", value: row => first(row.gates)}] : []),
      {head: "ratio", cell: row => row.ratio === null || row.ratio === undefined ? "" : row.ratio.toFixed(3), value: row => row.ratio},
      {head: "verdict", text: true, cell: row => make("span", {class: chipClass(row.verdict), title: VERDICTS[row.verdict]}, row.verdict)},
      {head: "where", text: true, cell: row => row.where, class: "wide where"},
      {head: "note", text: true, class: "wide note", cell: row => folded(row.note)},
    ];
    const empty = rows.length ? "" : make("div", {class: "notice row"}, make("span", {}, this.nothing()), make("button", {type: "button", on: {click: () => { this.verdicts.clear(); this.words = ""; address.write(VIEW, this.pairs()); this.draw(); }}}, "Show all claims"));
    this.place.replaceChildren(empty || table({caption: `${rows.length} of ${this.body.rows.length} claims. Met: within 5 %, or the bound holds; near: within 15 %.`, columns, rows, label: "Ledger", classes: "ledger"}));
  }
}

// A long note is opened by whoever wants to read it.
function folded(note) {
  if (note.length <= 1.4 * SHORT_NOTE) return marked(note);
  const cut = note.lastIndexOf(" ", SHORT_NOTE);
  return make("details", {}, make("summary", {}, marked(`${note.slice(0, cut)} …`)), marked(note.slice(cut + 1)));
}

// Words between backticks are code.
const marked = text => text.split(/`([^`]+)`/).map((part, number) => number % 2 ? make("code", {}, part) : part);

const measuredInGates = row => row.gates !== null && row.gates !== undefined;

const first = value => Array.isArray(value) ? value[0] : value;

function paperFigure(row) {
  if (row.bound === "range" && Array.isArray(row.paper)) return row.paper.map(number).join(" to ");
  return ({upper: "≤ ", lower: "≥ "}[row.bound] ?? "") + number(row.paper);
}

function counted(paper) {
  const counts = paper.counts ?? paper.verdicts ?? {};
  const told = Object.entries(counts).map(([verdict, count]) => `${count} ${verdict}`).join(", ");
  return told || `${paper.claims} claims`;
}
