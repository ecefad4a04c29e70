// Jobs on the server: one line each with a progress bar and Cancel, followed until they end.

import * as api from "./api.js";
import {announce, make} from "./dom.js";

const FIRST_LOOK_S = 0.1, SLOWEST_LOOK_S = 1;
const ENDED = new Set(["done", "failed", "cancelled"]);
const WORDS = {queued: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled"};

export class Cancelled extends Error {}

// A list of jobs that is seen while there is something to see.
export class Jobs {
  constructor(label) {
    this.list = make("ul", {class: "jobs"});
    this.element = make("section", {"aria-label": label, hidden: true}, this.list);
    this.lines = new Set();
  }

  clear() {
    this.list.replaceChildren();
    this.lines.clear();
    this.element.hidden = true;
  }

  // Starts a job and follows it: its last state, or an error. An unfinished one of an older view is cancelled. A request that the
  // server refuses is told to `refused`, beside the control that has it wrong; every other failure stands in the job's line alone.
  async run(label, request, refused = null) {
    const line = this.line(label);
    let job;
    try {
      job = await api.startJob(request);
      for (let wait = FIRST_LOOK_S; !ENDED.has(job.state); wait = Math.min(1.5 * wait, SLOWEST_LOOK_S)) {
        line.show(job);
        job = await api.job(job.id, wait);
      }
    } catch (problem) {
      if (refused && problem.status === 400) { line.remove(); refused(problem.message); } else line.end("failed", problem.message);
      throw problem;
    }
    line.show(job);
    if (job.state === "failed") throw new api.Refused(job.error || job.said || "the job failed", 500);
    if (job.state === "cancelled") throw new Cancelled(`${label} was cancelled`);
    return job;
  }

  // Takes the lines away that ended well: what they found is shown.
  tidy() {
    this.list.querySelectorAll("li.done").forEach(item => item.remove());
    this.element.hidden = !this.list.children.length;
  }

  cancelAll() { for (const line of this.lines) line.cancel(); }

  line(label) {
    const bar = make("progress", {max: "1", "aria-label": `Progress of ${label}`});
    const said = make("span", {class: "said quiet"});
    const state = make("span", {class: "state"}, "starting");
    let current = null, asked = false;
    const stop = make("button", {type: "button", "aria-label": `Cancel ${label}`, on: {click: () => line.cancel()}}, "Cancel");
    const item = make("li", {}, make("span", {class: "name"}, label), bar, state, said, stop);
    const line = {
      remove: () => {
        this.lines.delete(line);
        item.remove();
        this.element.hidden = !this.list.children.length;
      },
      cancel: () => {
        asked = true;
        stop.disabled = true;
        if (current && !ENDED.has(current.state)) api.cancelJob(current.id).catch(problem => { said.textContent = problem.message; });
      },
      show: job => {
        const first = current === null;
        current = job;
        if (first && asked) line.cancel();
        if (job.total > 0) { bar.max = job.total; bar.value = job.done ?? 0; }
        state.textContent = job.total > 1 && job.state === "running" ? `${job.done} of ${job.total}` : WORDS[job.state] ?? job.state;
        said.textContent = job.state === "failed" ? "" : job.said ?? "";
        if (ENDED.has(job.state)) line.end(job.state, job.state === "failed" ? job.error ?? job.said : "");
      },
      end: (how, text) => {
        this.lines.delete(line);
        state.textContent = WORDS[how];
        item.classList.add(how);
        if (how === "done") bar.value = bar.max;
        stop.remove();
        if (how !== "done") bar.remove();
        said.textContent = text ?? "";
        said.className = how === "failed" ? "said error" : "said quiet";
        announce(`${label}: ${WORDS[how]}${text ? `. ${text}` : ""}`);
      },
    };
    this.lines.add(line);
    this.list.append(item);
    this.element.hidden = false;
    return line;
  }
}
