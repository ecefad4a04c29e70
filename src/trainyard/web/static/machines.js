// Which machines: the list by group, or any text of the machine grammar; each chosen one opens its knobs.

import * as api from "./api.js";
import {announce, complaint, field, make, unique} from "./dom.js";
import {Knobs} from "./knobs.js";
import {show} from "./units.js";

const MOST = 8;

export class MachineChooser {
  constructor({changed, several = true}) {
    Object.assign(this, {changed, several});
    this.machines = [];
    this.entries = [];
    this.opened = null;
    this.filter = make("input", {type: "search", autocomplete: "off", placeholder: "Filter: npu, dla, pim, …", on: {input: () => this.list()}});
    this.select = make("select", {size: "7", on: {
      dblclick: () => this.add(this.select.value),
      keydown: event => { if (event.key === "Enter") { event.preventDefault(); this.add(this.select.value); } },
      change: () => this.tell(),
    }});
    this.about = make("p", {class: "quiet about"});
    this.text = make("input", {type: "text", autocomplete: "off", spellcheck: "false", placeholder: "npu(dram=75 GB/s)", on: {
      keydown: event => { if (event.key === "Enter") { event.preventDefault(); this.add(this.text.value, this.text); } },
    }});
    this.trouble = complaint(this.text);
    this.file = make("input", {type: "file", accept: ".toml,.cfg", on: {change: () => this.uploaded()}});
    const word = several ? "Add" : "Use";
    this.addChosen = make("button", {type: "button", on: {click: () => this.add(this.select.value)}}, `${word} the selected`);
    const addText = make("button", {type: "button", on: {click: () => this.add(this.text.value, this.text)}}, word);
    this.chosen = make("ol", {class: "chosen", "aria-label": "Chosen machines"});
    this.element = make("fieldset", {class: "machines"}, make("legend", {}, several ? "Machines" : "Machine"),
      field("Filter the machines", this.filter), field("Machine", this.select), this.about,
      make("div", {class: "row end"}, this.addChosen),
      make("div", {class: "row end"}, field("or write one: name(key=value, …), values may be machines", this.text), addText), this.trouble.element,
      make("details", {}, make("summary", {}, "Own file"), field("Upload a machine (TOML, or a SCALE-Sim configuration)", this.file)));
  }

  async start() {
    this.entries = await api.machines();
    this.list();
  }

  get state() { return this.machines.map(({text, settings}) => ({text, settings})); }

  set state(machines) {
    const before = this.machines;
    this.opened = before.indexOf(this.opened) >= 0 ? before.indexOf(this.opened) : null;
    this.machines = machines.map(({text, settings}) => ({id: unique("machine"), text, settings: {...settings}, trouble: "", about: null}));
    this.opened = this.opened === null ? null : this.machines[this.opened] ?? null;
    this.machines.forEach(machine => this.look(machine));
    this.filter.value = "";
    this.list();
    this.draw();
  }

  list() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.entries.filter(({name, about, group}) => words.every(word => `${name} ${about} ${group}`.toLowerCase().includes(word)));
    const groups = [...new Set(found.map(({group}) => group ?? "machines"))];
    this.select.replaceChildren(...groups.map(group => make("optgroup", {label: group},
      found.filter(entry => (entry.group ?? "machines") === group).map(({name}) => make("option", {value: name}, name)))));
    // Marked is the first machine that was chosen; while one filters, the first that is named so, or else the first that fits.
    const chosen = this.machines.map(({text}) => text.split("(")[0].trim()).find(name => found.some(entry => entry.name === name));
    const fits = found.find(({name}) => words.every(word => name.toLowerCase().includes(word))) ?? found[0];
    this.select.value = words.length ? fits?.name ?? "" : chosen ?? "";
    this.tell();
    if (words.length) announce(`${found.length} of ${this.entries.length} machines`);
  }

  tell() {
    this.addChosen.disabled = !this.select.value;
    this.about.textContent = this.entries.find(({name}) => name === this.select.value)?.about ?? "";
  }

  async add(text, from = null) {
    text = (text ?? "").trim();
    this.trouble.say("");
    if (!text) return;
    if (this.several && this.machines.length >= MOST) return this.trouble.say(`At most ${MOST} machines side by side.`);
    const machine = {id: unique("machine"), text, settings: {}, trouble: "", about: null};
    await this.learn(machine);
    if (machine.wrong) return this.trouble.say(machine.wrong);
    if (from) from.value = "";
    if (!this.several) this.machines = [];
    this.machines.push(machine);
    if (from) this.list();
    announce(`${api.named(text)} added, ${this.machines.length} chosen`);
    this.draw();
    this.changed();
  }

  async uploaded() {
    const file = this.file.files[0];
    if (!file) return;
    try {
      const kept = await api.upload(file);
      if (kept.kind !== "machine") throw new Error(`it is a file of kind ${kept.kind}, not a machine`);
      await this.add(kept.id);
    } catch (problem) {
      this.trouble.say(`${file.name}: ${problem.message}`);
    }
    this.file.value = "";
  }

  // What the server knows of a machine: `about` as its text has it, `now` as it is with its settings. `before` has what each knob
  // would be without its own setting: of a part that was put in, that part's own value.
  async learn(machine) {
    const {text, settings: {...settings}} = machine;
    const turn = machine.turn = (machine.turn ?? 0) + 1;
    const told = {wrong: ""};
    try {
      const about = await api.machine(text);
      Object.assign(told, {about, now: machine.now ?? about, before: machine.before ?? about});  // of settings that cannot be made, too
      const now = await api.machine(text, settings);
      const parts = now.fields.filter(({path, kind}) => kind === "part" && path in settings).map(({path}) => [path, settings[path]]);
      Object.assign(told, {now, before: parts.length ? await api.machine(text, Object.fromEntries(parts)) : about});
    } catch (problem) {
      told.wrong = problem.message;
    }
    if (turn === machine.turn) Object.assign(machine, told);
  }

  async look(machine) {
    await this.learn(machine);
    if (!this.machines.includes(machine)) return;
    if (machine.knobs && !machine.knobs.fits()) machine.knobs = new Knobs(machine.knobs);
    this.draw();
  }

  turned(machine) {
    machine.trouble = "";
    this.draw();
    this.look(machine);
    this.changed();
  }

  complain(number, text) {
    const machine = this.machines[number];
    if (machine) { machine.trouble = text; this.draw(); }
  }

  draw() {
    const active = document.activeElement?.id;
    const scrolled = this.scroll()?.scrollTop;
    this.chosen.replaceChildren(...this.machines.map((machine, number) => this.card(machine, number)));
    if (!this.machines.length) this.chosen.append(make("li", {class: "quiet empty"}, "No machine yet: choose one above."));
    if (scrolled && this.scroll()) this.scroll().scrollTop = scrolled;
    if (active) document.getElementById(active)?.focus({preventScroll: Boolean(scrolled)});
  }

  scroll() { return this.chosen.querySelector(".knobs .scroll"); }

  card(machine, number) {
    const changes = Object.entries(machine.settings);
    const open = this.opened === machine;
    const panel = `knobs-${this.several ? "many" : "one"}-${number}`;
    const button = (text, action, more = {}) => make("button", {type: "button", id: `${panel}-${text.toLowerCase()}`, "aria-label": `${text}: ${api.named(machine.text)}`, on: {click: action}, ...more}, text);
    const peaks = machine.now?.peaks;
    const told = peaks ? [show(peaks.macs_per_s, "MAC/s"), show(peaks.dram_bytes_per_s, "B/s"), peaks.technology || null, peaks.devices > 1 ? `${peaks.devices} devices` : null] : [];
    const item = make("li", {},
      make("div", {class: "card"},
        make("strong", {}, api.named(machine.text)),
        make("span", {class: "quiet"}, told.filter(Boolean).join(" · ")),
        changes.map(([path, value]) => make("span", {class: "chip changed"}, `${path} = ${value}`)),
        this.several && number === 0 && this.machines.length > 1 ? make("span", {class: "chip"}, "baseline") : null,
        make("span", {class: "spring"}),
        this.several && number > 0 ? button("First", () => this.first(machine)) : null,
        button("Knobs", () => this.toggle(machine), {"aria-expanded": String(open), "aria-controls": panel, disabled: !machine.about}),
        button("Remove", () => this.remove(machine))),
      machine.trouble || machine.wrong ? make("p", {class: "error", role: "alert"}, machine.trouble || machine.wrong) : null);
    if (open && machine.about) {
      machine.knobs ??= new Knobs({machine, changed: () => this.turned(machine), closed: () => this.toggle(machine)});
      machine.knobs.element.id = panel;
      item.append(machine.knobs.element);
    }
    return item;
  }

  toggle(machine) {
    this.opened = this.opened === machine ? null : machine;
    this.draw();
    const number = this.machines.indexOf(machine);
    const panel = `knobs-${this.several ? "many" : "one"}-${number}`;
    if (this.opened) document.getElementById(panel)?.querySelector("input")?.focus();
    else document.getElementById(`${panel}-knobs`)?.focus();
  }

  first(machine) {
    this.machines = [machine, ...this.machines.filter(other => other !== machine)];
    this.draw();
    this.changed();
  }

  remove(machine) {
    this.machines = this.machines.filter(other => other !== machine);
    announce(`${api.named(machine.text)} removed`);
    this.draw();
    this.select.focus();
    this.changed();
  }
}
