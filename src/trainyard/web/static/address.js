// The view is in the address: ?view=compare&workload=resnet50&batch=8&on=npu&set=order=interleaved&on=tpu(dram=75 GB/s)&run=1
// `set` belongs to the `on` in front of it. Back, forward, reload and a copied link all reproduce it.

export const VIEWS = ["compare", "whatif", "papers", "sweeps"];
const listeners = [];
const OF_RUN = ["workload", "batch", "masks", "at", "parallel", "inference", "range"];

export const whenChanged = listener => { listeners.push(listener); };

export function current() {
  const pairs = new URLSearchParams(location.search);
  const view = pairs.get("view");
  return {view: VIEWS.includes(view) ? view : "compare", pairs};
}

export function linkTo(view, pairs) {
  const all = new URLSearchParams([["view", view], ...[...pairs].filter(([name]) => name !== "view")]);
  return `/?${all.toString().replaceAll("%28", "(").replaceAll("%29", ")").replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/")}`;
}

// Writes the address without showing anything: the view already looks like that.
export function write(view, pairs, {push = false} = {}) {
  const link = linkTo(view, pairs);
  if (link === location.pathname + location.search) return;
  if (push) history.pushState(null, "", link); else history.replaceState(null, "", link);
}

export function go(view, pairs) {
  write(view, pairs, {push: true});
  tell();
}

export function tell() { listeners.forEach(listener => listener(current())); }
addEventListener("popstate", tell);

// What is to be run, from and to pairs. machines: [{text, settings: {path: value}}]
export function readRun(pairs) {
  const state = {...Object.fromEntries(OF_RUN.map(name => [name, ""])), machines: [], run: false};
  for (const [name, value] of pairs) {
    if (name === "on") state.machines.push({text: value, settings: {}});
    else if (name === "set") {
      const [path, ...rest] = value.split("=");
      const last = state.machines.at(-1);
      if (last && rest.length) last.settings[path] = rest.join("=");
    } else if (name === "run") state.run = value === "1";
    else if (OF_RUN.includes(name)) state[name] = value;
  }
  return state;
}

export function writeRun(state) {
  const pairs = OF_RUN.filter(name => ![undefined, null, false, ""].includes(state[name])).map(name => [name, String(state[name])]);
  for (const {text, settings} of state.machines) {
    pairs.push(["on", text]);
    for (const [path, value] of Object.entries(settings)) pairs.push(["set", `${path}=${value}`]);
  }
  if (state.run) pairs.push(["run", "1"]);
  return pairs;
}
