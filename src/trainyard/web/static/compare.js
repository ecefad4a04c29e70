// Run & compare: one workload on one or several machines, their knobs, and their results side by side.

import * as address from "./address.js";
import * as api from "./api.js";
import {announce, complaint, make} from "./dom.js";
import {forget} from "./figures.js";
import {Jobs} from "./jobs.js";
import {MachineChooser} from "./machines.js";
import {fillContents, sideBySide} from "./results.js";
import {WorkloadChooser} from "./workload.js";

const VIEW = "compare";
const RANGED = "the range of the time over the open assumptions";

export class Compare {
  constructor(panel) {
    this.workload = new WorkloadChooser({changed: () => this.changed()});
    this.machines = new MachineChooser({changed: () => this.changed()});
    this.jobs = new Jobs("Jobs");
    this.button = make("button", {type: "submit", class: "main"}, "Run");
    this.range = make("input", {type: "checkbox", id: "with-range", on: {change: () => this.changed()}});
    this.trouble = complaint();
    this.stale = make("p", {class: "warning", hidden: true}, "The choice above has changed since this run. Run shows its results.");
    this.results = make("section", {class: "results", "aria-label": "Results"});
    const form = make("form", {"aria-label": "What to run", novalidate: true, on: {submit: event => { event.preventDefault(); this.submit(); }}},
      make("div", {class: "choosers"}, this.workload.element, this.machines.element),
      this.machines.chosen,
      make("div", {class: "row"}, this.button, make("div", {class: "tick"}, this.range, make("label", {for: this.range.id}, `with ${RANGED}`)), make("span", {class: "quiet"}, "Ctrl+Enter runs, too.")));
    form.addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.submit(); } });
    panel.append(form, this.trouble.element, this.jobs.element, this.stale, this.results);
    this.visit = 0;
    this.shown = "";
    this.ready = Promise.all([this.workload.start(), this.machines.start()]).catch(problem => this.trouble.say(problem.message));
  }

  get state() { return {...this.workload.state, machines: this.machines.state, range: this.range.checked ? "1" : ""}; }

  async show(pairs) {
    const visit = ++this.visit;
    const state = address.readRun(pairs);
    if (!state.workload && !state.machines.length) Object.assign(state, {workload: "resnet50", machines: [{text: "npu", settings: {}}]});
    await this.ready;
    if (visit !== this.visit) return;
    this.workload.state = state;
    this.machines.state = state.machines;
    this.range.checked = state.range === "1";
    this.stale.hidden = true;
    if (state.run) await this.run(state);
    else if (!this.shown) this.clear();
    else this.stale.hidden = false;
  }

  changed() {
    const pairs = address.writeRun({...this.state, run: false});
    const wasRun = address.current().pairs.get("run") === "1";
    address.write(VIEW, pairs, {push: wasRun});
    this.stale.hidden = !this.shown;
    this.trouble.say("");
  }

  submit() {
    const state = {...this.state, run: true};
    if (!state.workload) return this.trouble.say("Choose a workload.");
    if (!state.machines.length) return this.trouble.say("Choose at least one machine.");
    address.write(VIEW, address.writeRun(state), {push: true});
    this.visit += 1;
    this.run(state);
  }

  clear() {
    this.jobs.cancelAll();
    this.jobs.clear();
    forget(this.results);
    this.results.replaceChildren();
    this.shown = "";
  }

  async run(state) {
    const visit = this.visit;
    const wanted = JSON.stringify(address.writeRun(state));
    if (wanted === this.shown) return;
    this.clear();
    this.trouble.say("");
    this.stale.hidden = true;
    announce(`Running ${api.named(state.workload)} on ${state.machines.length} machines`);
    const found = await Promise.allSettled(state.machines.map((machine, number) => this.one(machine, number, visit, state.range === "1")));
    if (visit !== this.visit) return;
    const results = found.filter(({status}) => status === "fulfilled").map(({value}) => value);
    if (!results.length) return;
    this.results.replaceChildren(...sideBySide(results));
    fillContents(this.results);
    this.jobs.tidy();
    this.shown = found.length === results.length ? wanted : "";
    announce(`Results of ${results.length} machines are shown`);
  }

  async one({text, settings}, number, visit, range) {
    this.machines.machines[number].trouble = "";
    const changes = Object.entries(settings).map(([path, value]) => `${path} = ${value}`);
    const name = [api.named(text), ...changes].join(", ");
    const refused = message => { if (visit === this.visit) this.machines.complain(number, message); };
    const job = await this.jobs.run(name, {...this.workload.request, machine: text, settings, range}, refused);
    return {name, key: job.key, body: await api.result(job.key)};
  }
}
