// The knobs of a machine: every field with its value, unit and source; what is assumed says its meaning and its alternatives.

import {named} from "./api.js";
import {breakable, make, scrolled, tail} from "./dom.js";
import {written} from "./units.js";

const OTHER = "other value …";

export class Knobs {
  // `filter` and `which` are those of the knobs that these take the place of.
  constructor({machine, changed, closed, filter = null, which = null}) {
    Object.assign(this, {machine, changed, closed});
    const title = named(machine.text);
    this.filter = make("input", {type: "search", autocomplete: "off", "aria-label": `Filter the knobs of ${title}`, placeholder: "Filter: dram, array, …", on: {input: () => this.list()}});
    this.which = make("select", {"aria-label": "Which knobs", on: {change: () => this.list()}},
      [["all", "all fields"], ["open", "assumptions"], ["changed", "changed"]].map(([value, text]) => make("option", {value}, text)));
    this.reset = make("button", {type: "button", on: {click: () => this.resetAll()}}, "Reset all");
    const close = make("button", {type: "button", "aria-label": `Close the knobs of ${title}`, on: {click: closed}}, "Close");
    this.body = make("tbody");
    this.count = make("span", {class: "quiet"});
    const heads = ["field", "value", "unit", "source and meaning"].map(head => make("th", {scope: "col", class: "text"}, head));
    const whole = make("table", {}, make("caption", {class: "unseen"}, `Knobs of ${title}`), make("thead", {}, make("tr", {}, heads)), this.body);
    this.element = make("div", {class: "knobs", role: "region", "aria-label": `Knobs of ${title}`,
      on: {keydown: event => this.pressed(event)}},
      make("div", {class: "row"}, this.filter, this.which, this.count, make("span", {class: "spring"}), this.reset, close),
      scrolled(whole, `Table of the knobs of ${title}`));
    if (filter) [this.filter.value, this.which.value] = [filter.value, which.value];
    this.about = machine.now;
    this.lines = machine.now.fields.filter(known => known.path !== "type").map(known => this.line(known));
    this.list();
  }

  // Enter takes what was typed, and does not run the form that the knobs are in.
  pressed(event) {
    if (event.key === "Escape") { event.stopPropagation(); this.closed(); }
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.target.tagName !== "INPUT") return;
    event.preventDefault();
    event.target.dispatchEvent(new Event("change"));
  }

  // Whether the machine still has these fields: a part that was changed brings its own.
  fits() {
    const shape = ({fields}) => JSON.stringify(fields.map(({path, kind}) => [path, kind]));
    return shape(this.about) === shape(this.machine.now);
  }

  // A field as it is without its own setting: its source and its alternatives stand there, whatever it is set to.
  line(field) {
    const {machine} = this;
    const known = (field.kind === "part" ? machine.about : machine.before).fields.find(({path}) => path === field.path) ?? field;
    const before = written(known.value, known.unit);
    const name = make("th", {scope: "row"});
    const place = make("span", {class: "value"});
    const undo = make("button", {type: "button", "aria-label": `Reset ${known.path} to ${before || "nothing"}`, on: {click: () => { put(before); control.focus(); }}}, "Reset");
    const row = make("tr", {}, name, make("td", {}, place, undo), make("td", {class: "text quiet"}, known.unit ?? ""), make("td", {class: "wide"}, about(known)));
    const put = value => {
      if (value === (machine.settings[known.path] ?? before)) return;
      if (value === before) delete machine.settings[known.path]; else machine.settings[known.path] = value;
      if (known.kind === "part") for (const path of Object.keys(machine.settings)) if (path.startsWith(`${known.path}.`)) delete machine.settings[path];
      mark();
      this.counted();
      this.changed();
    };
    const labelled = {"aria-label": `${known.path}${known.unit ? `, in ${known.unit}` : ""}`, id: `${machine.id}-${known.path}`};
    let control = null;
    const mark = () => {
      const now = machine.settings[known.path];
      const changed = now !== undefined;
      const fresh = this.control(known, changed ? now : before, labelled, put);
      if (control && control.tagName === fresh.tagName) { if (control.tagName === "SELECT") control.replaceChildren(...fresh.children); control.value = fresh.value; }
      else { place.replaceChildren(fresh); control = fresh; }
      row.classList.toggle("changed", changed);
      undo.hidden = !changed;
      name.replaceChildren(...breakable(known.path), changed ? make("span", {class: "unseen"}, " (changed)") : "");
    };
    mark();
    return {known, row, mark, before};
  }

  control(known, value, labelled, put) {
    const choices = choicesOf(known);
    if (isFixed(known)) return make("output", {...labelled, class: "quiet"}, known.kind === "part" ? value.split(":").at(-1) : value);
    if (!choices) return make("input", {type: "text", ...labelled, value, autocomplete: "off", spellcheck: "false", on: {change: event => put(event.target.value.trim())}});
    const all = choices.includes(value) ? choices : [...choices, value];
    const free = known.kind !== "boolean";
    const select = make("select", {...labelled, on: {change: event => {
      if (event.target.value !== OTHER) return put(event.target.value);
      const text = make("input", {type: "text", ...labelled, value, autocomplete: "off", spellcheck: "false", on: {change: changed => put(changed.target.value.trim())}});
      event.target.replaceWith(text);
      text.focus();
      text.select();
    }}}, [...all, ...(free ? [OTHER] : [])].map(choice => make("option", {value: choice}, choice)));
    select.value = value;
    return select;
  }

  list() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.lines.filter(({known}) => {
      if (this.which.value === "open" && !known.alternatives?.length) return false;
      if (this.which.value === "changed" && this.machine.settings[known.path] === undefined) return false;
      const text = `${known.path} ${known.source ?? ""} ${known.meaning ?? ""}`.toLowerCase();
      return words.every(word => text.includes(word));
    });
    this.body.replaceChildren(...shown.map(({row}) => row));
    this.counted(shown.length);
  }

  counted(shown = this.body.rows.length) {
    const changed = Object.keys(this.machine.settings).length;
    this.count.textContent = `${shown} of ${this.lines.length} fields${changed ? `, ${changed} changed` : ""}`;
    this.reset.disabled = !changed;
  }

  resetAll() {
    for (const path of Object.keys(this.machine.settings)) delete this.machine.settings[path];
    this.lines.forEach(({mark}) => mark());
    this.counted();
    this.changed();
  }
}

const isPlain = value => value === null || typeof value !== "object";
// Parts that no name stands for, and tables: shown, not turned.
const isFixed = ({kind, value}) => kind === "table" || (!isPlain(value) && !Array.isArray(value)) || (kind === "part" && String(value).includes(":")) || (kind === "list" && JSON.stringify(value).includes("{"));

function choicesOf(known) {
  if (known.kind === "boolean") return ["true", "false"];
  const others = [...(known.choices ?? []), ...(known.alternatives ?? [])].filter(isPlain);
  return others.length ? [...new Set([known.value, ...others].map(value => written(value, known.unit)))] : null;
}

function about(known) {
  const parts = [];
  if (known.source) parts.push(make("span", {}, known.source));
  if (known.meaning && known.meaning !== known.source) parts.push(make("span", {class: known.source ? "quiet" : null}, known.meaning));
  if (known.alternatives?.length) parts.push(make("span", {class: "quiet"}, `alternatives: ${known.alternatives.map(value => tail(written(value, known.unit))).join(", ")}`));
  return parts.flatMap((part, number) => number ? [make("br"), part] : [part]);
}
