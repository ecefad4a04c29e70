// The server's answers; every refusal is an Error whose message can be shown as it is.

export class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refused("The server does not answer. Is trainyard serve still running?", 0);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(body?.error ?? `The server answered ${response.status} ${response.statusText}`.trim(), response.status);
  return body;
}

const kept = new Map();
function once(path) {
  if (!kept.has(path)) kept.set(path, ask(path).catch(problem => { kept.delete(path); throw problem; }));
  return kept.get(path);
}

const q = encodeURIComponent;
export const workloads = () => once("/api/workloads");
export const machines = () => once("/api/machines");
// Every field of a machine; `settings` {path: value} change it first.
export const machine = (text, settings = {}) => once(`/api/machine?text=${q(text)}${Object.entries(settings).map(([path, value]) => `&set=${q(`${path}=${value}`)}`).join("")}`);
export const papers = () => ask("/api/papers");
export const paper = name => ask(`/api/papers/${q(name)}`);
export const stores = () => ask("/api/stores");

const MOST_POINTS = 50000;
// All pages of a store, up to so many points.
export async function store(name) {
  const page = offset => ask(`/api/stores/${q(name)}?offset=${offset}`);
  const whole = await page(0);
  for (let more = whole.rows; more.length && whole.rows.length < Math.min(whole.points, MOST_POINTS);) {
    const next = await page(whole.rows.length);
    more = next.rows;
    whole.rows.push(...more);
    Object.assign(whole.closed, next.closed);
  }
  return whole;
}

export const resultPath = key => `/api/results/${q(key)}`;
export const result = key => ask(resultPath(key));

const uploadNames = new Map();
const remembered = kept => { uploadNames.set(kept.id, kept.name); return kept; };
export const upload = async file => remembered(await ask(`/api/uploads?name=${q(file.name)}`, {method: "POST", body: file}));
export const uploads = async () => (await ask("/api/uploads")).map(remembered);
// A text with the names of files in the place of their ids.
export const named = text => text.replace(/upload-[0-9a-f]{16}/g, id => uploadNames.get(id) ?? id);

export const startJob = request => ask("/api/jobs", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(request)});
// Answers when the job has ended, or after so many seconds.
export const job = (id, waitS) => ask(`/api/jobs/${q(id)}?wait=${waitS}`);
export const cancelJob = id => ask(`/api/jobs/${q(id)}`, {method: "DELETE"});
