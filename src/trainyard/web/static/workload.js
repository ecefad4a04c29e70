// Which step: one of the zoo or an uploaded file, its batch, the zeros it runs with, and how it is split.

import * as api from "./api.js";
import {announce, complaint, field, make, unique} from "./dom.js";

const STEPS = ["step", "topology", "onnx"];
const PARALLEL = [["", "as the machine says"], ["data", "data"], ["model", "model"], ["mixed", "mixed"]];
export const UPLOADED = "upload-";  // how the id of an upload begins

export class WorkloadChooser {
  constructor({changed}) {
    this.changed = changed;
    this.uploads = new Map();
    this.wanted = "";
    this.entries = [];
    this.filter = make("input", {type: "search", autocomplete: "off", placeholder: "Filter: resnet, bert, …", on: {input: () => this.list()}});
    this.select = make("select", {size: "7", on: {change: () => this.chosen(this.select.value)}});
    this.about = make("p", {class: "quiet about"});
    this.file = make("input", {type: "file", accept: ".json,.gz,.csv,.onnx,.py", on: {change: () => this.uploaded(this.file, this.trouble, true)}});
    this.trouble = complaint(this.file);
    this.batch = make("input", {type: "number", min: "1", step: "1", inputmode: "numeric", on: {change: () => this.told()}});
    this.parallel = make("select", {on: {change: () => this.told()}}, PARALLEL.map(([value, text]) => make("option", {value}, text)));
    this.masks = make("input", {type: "text", autocomplete: "off", spellcheck: "false", placeholder: "none: every value counts", on: {change: () => this.told()}});
    this.masksFile = make("input", {type: "file", accept: ".safetensors,.npz,.json", on: {change: () => this.uploaded(this.masksFile, this.masksTrouble, false)}});
    this.masksTrouble = complaint(this.masksFile);
    this.at = make("input", {type: "number", min: "0", step: "1", inputmode: "numeric", placeholder: "the first", on: {change: () => this.told()}});
    this.inference = make("input", {type: "checkbox", id: unique("inference"), on: {change: () => this.told()}});
    this.element = make("fieldset", {class: "workload"}, make("legend", {}, "Workload"),
      field("Filter the zoo", this.filter),
      field("Model", this.select),
      this.about,
      make("div", {class: "row"}, field("Batch", this.batch), field("Parallel", this.parallel)),
      make("div", {class: "tick"}, this.inference, make("label", {for: this.inference.id}, "the forward pass alone (inference)")),
      make("details", {}, make("summary", {}, "Own file, zeros"),
        field("Upload a step (JSON), a topology (SCALE-Sim CSV) or a model (ONNX)", this.file, "A model in Python: trainyard export my.py:build --to step -o step.json, then upload step.json."), this.trouble.element,
        field("Zeros (sparsity)", this.masks, "As on the command line: sparsity(A=0.6,G=0.5)"),
        field("or upload recorded masks", this.masksFile), this.masksTrouble.element,
        field("Training step of recorded masks", this.at)));
    this.more = this.element.querySelector("details");
  }

  async start() {
    const [entries, uploads] = await Promise.all([api.workloads(), api.uploads()]);
    this.entries = entries;
    for (const kept of uploads) if (STEPS.includes(kept.kind)) this.uploads.set(kept.id, kept);
    this.list();
    this.tell();
  }

  get state() {
    return {workload: this.wanted, batch: this.batch.value.trim(), masks: this.masks.value.trim(), at: this.at.value.trim(), parallel: this.parallel.value, inference: this.inference.checked ? "1" : ""};
  }

  set state({workload, batch, masks, at, parallel, inference}) {
    this.wanted = workload;
    this.batch.value = batch;
    this.masks.value = masks;
    this.at.value = at;
    this.inference.checked = ["1", "true"].includes(inference);
    this.parallel.value = PARALLEL.some(([value]) => value === parallel) ? parallel : "";
    if (masks || at || workload.startsWith(UPLOADED)) this.more.open = true;
    this.filter.value = "";
    this.list();
    this.tell();
  }

  // The request's part of a job: numbers as numbers, nothing that was left open.
  get request() {
    const {workload, batch, masks, at, parallel, inference} = this.state;
    return {workload, ...(batch && {batch: Number(batch)}), ...(masks && {masks}), ...(at && {at: Number(at)}), ...(parallel && {parallel}), ...(inference && {inference: true})};
  }

  list() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = ({name, about}) => words.every(word => `${name} ${about}`.toLowerCase().includes(word));
    const own = [...this.uploads.values()].map(({id, name}) => ({name: id, shown: `${name} (uploaded)`}));
    const unknown = this.wanted && ![...own, ...this.entries].some(({name}) => name === this.wanted) ? [{name: this.wanted, shown: this.wanted}] : [];
    const shown = [...own, ...unknown, ...this.entries.filter(entry => fits(entry) || entry.name === this.wanted)];
    this.select.replaceChildren(...shown.map(({name, shown: text}) => make("option", {value: name, selected: name === this.wanted}, text ?? name)));
    const found = this.entries.filter(fits).length;
    if (words.length) announce(`${found} of ${this.entries.length} models`);
  }

  chosen(name) {
    this.wanted = name;
    this.told();
  }

  tell() {
    const entry = this.entries.find(({name}) => name === this.wanted);
    const own = this.uploads.get(this.wanted);
    this.about.textContent = entry?.about ?? own?.about ?? "";
    this.batch.placeholder = entry?.batch ? `${entry.batch}` : "its own";
  }

  told() { this.tell(); this.changed(); }

  async uploaded(input, trouble, isWorkload) {
    const file = input.files[0];
    trouble.say("");
    if (!file) return;
    try {
      const kept = await api.upload(file);
      const fits = isWorkload ? STEPS : ["masks"];
      if (!fits.includes(kept.kind)) throw new Error(`${kept.name} is a file of kind ${kept.kind}: it goes into another field`);
      announce(`${kept.name} uploaded: ${kept.about}`);
      if (isWorkload) {
        this.uploads.set(kept.id, kept);
        this.wanted = kept.id;
        this.list();
      } else this.masks.value = kept.id;
      this.told();
    } catch (problem) {
      trouble.say(`${file.name}: ${problem.message}`);
    }
    input.value = "";
  }
}
