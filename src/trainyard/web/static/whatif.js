// What if: what every alternative of every assumption and every parameter halved or doubled is worth, of a machine or of a paper.

import * as address from "./address.js";
import * as api from "./api.js";
import {announce, breakable, complaint, field, make, table} from "./dom.js";
import {figure, forget} from "./figures.js";
import {Jobs} from "./jobs.js";
import {MachineChooser} from "./machines.js";
import {show, signed, unitOf} from "./units.js";
import {WorkloadChooser} from "./workload.js";

const VIEW = "whatif";
const METRICS = ["time_s", "energy_j", "samples_per_s", "cycles", "array_cycles", "traffic_bytes.dram"];
const KINDS = [["", "assumptions and parameters"], ["assumption", "assumptions"], ["parameter", "parameters"]];
const options = pairs => pairs.map(([value, text]) => make("option", {value}, text));

export default class WhatIf {
  constructor(panel) {
    const changed = () => this.changed();
    this.workload = new WorkloadChooser({changed});
    this.machines = new MachineChooser({changed, several: false});
    this.metric = make("select", {on: {change: changed}}, options(METRICS.map(name => [name, name])));
    this.only = make("select", {on: {change: changed}}, options(KINDS));
    this.paper = make("select", {on: {change: () => { this.choosers.hidden = this.machines.chosen.hidden = Boolean(this.paper.value); changed(); }}}, options([["", "a workload on a machine"]]));
    this.jobs = new Jobs("Jobs");
    this.trouble = complaint();
    this.stale = make("p", {class: "warning", hidden: true}, "The choice above has changed since this was weighed.");
    this.results = make("section", {class: "results", "aria-label": "Worths"});
    this.choosers = make("div", {class: "choosers"}, this.workload.element, this.machines.element);
    const form = make("form", {"aria-label": "What to weigh", novalidate: true, on: {submit: event => { event.preventDefault(); this.submit(); }}},
      make("p", {class: "quiet"}, "Every alternative in the place of an assumption, every number halved and doubled: one at a time, and the most valuable in pairs."),
      make("div", {class: "row end"}, field("Weigh", this.paper), field("What", this.only), field("Metric", this.metric), make("button", {type: "submit", class: "main"}, "Weigh")),
      this.choosers, this.machines.chosen);
    panel.append(form, this.trouble.element, this.jobs.element, this.stale, this.results);
    this.visit = 0;
    this.shown = "";
    this.ready = Promise.all([this.workload.start(), this.machines.start(), this.start()]).catch(problem => this.trouble.say(problem.message));
  }

  // A ledger that cannot be listed must not keep a machine from being weighed.
  async start() { this.paper.append(...options((await api.papers().catch(() => [])).map(({name}) => [name, `the paper ${name}`]))); }

  get state() {
    const more = {paper: this.paper.value, metric: this.metric.value, only: this.only.value};
    return more.paper ? {...more, machines: []} : {...this.workload.state, ...more, machines: this.machines.state};
  }

  pairs({paper, metric, only, ...state}) {
    const more = [["paper", paper], ["metric", metric === METRICS[0] ? "" : metric], ["only", only]];
    return [...more.filter(([, value]) => value), ...address.writeRun(state)];
  }

  async show(pairs) {
    const visit = ++this.visit;
    const given = new URLSearchParams([...pairs]);
    const one = (name, known) => known.includes(given.get(name)) ? given.get(name) : known[0];
    const state = {...address.readRun(pairs), paper: given.get("paper") ?? "", metric: one("metric", METRICS), only: one("only", KINDS.map(([kind]) => kind))};
    state.machines = state.machines.slice(0, 1);
    if (!state.paper && !state.workload && !state.machines.length) Object.assign(state, {workload: "resnet50", machines: [{text: "npu", settings: {}}]});
    await this.ready;
    if (visit !== this.visit) return;
    this.workload.state = state;
    this.machines.state = state.machines;
    this.paper.value = state.paper;
    this.choosers.hidden = this.machines.chosen.hidden = Boolean(this.paper.value);
    this.metric.value = state.metric;
    this.only.value = state.only;
    this.stale.hidden = true;
    if (state.run) await this.run(state);
    else this.stale.hidden = !this.shown;
  }

  changed() {
    this.metric.disabled = Boolean(this.paper.value);
    address.write(VIEW, this.pairs({...this.state, run: false}), {push: address.current().pairs.get("run") === "1"});
    this.stale.hidden = !this.shown;
    this.trouble.say("");
  }

  submit() {
    const state = {...this.state, run: true};
    if (!state.paper && (!state.workload || !state.machines.length)) return this.trouble.say("Choose a workload and a machine.");
    address.write(VIEW, this.pairs(state), {push: true});
    this.visit += 1;
    this.run(state);
  }

  clear() {
    this.jobs.cancelAll();
    this.jobs.clear();
    forget(this.results);
    this.results.replaceChildren();
    this.shown = "";
    this.stale.hidden = true;
    this.trouble.say("");
  }

  async run(state) {
    const visit = this.visit, wanted = JSON.stringify(this.pairs(state));
    if (wanted === this.shown) return;
    this.clear();
    const [machine] = state.machines;
    const only = state.only ? {only: state.only} : {};
    const request = state.paper ? {paper: state.paper, whatif: true, ...only}
      : {...this.workload.request, machine: machine?.text ?? "", settings: machine?.settings ?? {}, whatif: true, metric: state.metric, ...only};
    try {
      const refused = message => { if (visit !== this.visit) return; if (machine) this.machines.complain(0, message); else this.trouble.say(message); };
      const job = await this.jobs.run(state.paper || api.named(`${state.workload} on ${machine?.text}`), request, refused);
      const body = await api.result(job.key);
      if (visit !== this.visit) return;
      this.results.replaceChildren(...worths(body));
      this.shown = wanted;
      this.jobs.tidy();
      announce("The worths are shown");
    } catch {
      // said where it belongs by the job's line, or by `refused`
    }
  }
}

function worths({title, metric, worths: rows, pairs, figures}) {
  const heading = make("h2", {}, title);
  if (!rows.length) return [heading, make("p", {}, "Nothing is open here: there is nothing to weigh.")];
  const unit = unitOf(metric);
  const columns = [
    {head: "change", of_row: true, cell: w => breakable(w.name)},
    {head: "kind", text: true, cell: w => w.kind},
    {head: "value", text: true, cell: w => w.value_text},
    {head: "alternative", text: true, cell: w => w.alternative_text},
    {head: "before", cell: w => show(w.before, unit), value: w => w.before},
    {head: "after", cell: w => w.error ? "not possible" : show(w.after, unit), value: w => w.error ? null : w.after},
    {head: "worth", cell: w => w.error ? "-" : signed(w.change), value: w => w.error ? null : Math.abs(w.change)},
    {head: "meaning", text: true, class: "wide", cell: w => w.error || w.meaning},
  ];
  const changed = w => `${w.name}: ${w.value_text} → ${w.alternative_text}`;
  const share = (pair, value) => pair.error ? "-" : signed(value);
  const both = [
    {head: "first", of_row: true, cell: pair => changed(pair.first)},
    {head: "second", text: true, class: "wide", cell: pair => changed(pair.second)},
    {head: "first alone", cell: pair => signed(pair.first.change), value: pair => pair.first.change},
    {head: "second alone", cell: pair => signed(pair.second.change), value: pair => pair.second.change},
    {head: "together", cell: pair => pair.error ? "not possible" : signed(pair.change), value: pair => pair.error ? null : pair.change},
    {head: "interaction", cell: pair => share(pair, pair.interaction), value: pair => pair.error ? null : Math.abs(pair.interaction)},
    ...(pairs?.some(pair => pair.error) ? [{head: "why not", text: true, class: "wide", cell: pair => pair.error}] : []),
  ];
  return [heading, figure(figures.tornado, {broad: true}),
    make("h3", {}, "One at a time"), table({caption: `What each change does to ${metric}, the most valuable first.`, columns, rows, label: "Worths"}),
    ...(pairs?.length ? [make("h3", {}, "Two at a time"), table({caption: "Interaction: what two changes do together beyond what they do one by one.", columns: both, rows: pairs, label: "Pairs"})] : [])];
}
