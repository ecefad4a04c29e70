// The page: four tabs, each a view that is shown from the address and written back to it.

import * as address from "./address.js";
import {Compare} from "./compare.js";
import {make} from "./dom.js";

const TITLES = {compare: "Run & compare", whatif: "What if", papers: "Papers", sweeps: "Sweeps"};
const LATER = {whatif: () => import("./whatif.js"), papers: () => import("./papers.js"), sweeps: () => import("./sweeps.js")};
const views = {};
const last = {};

const tab = name => document.getElementById(`tab-${name}`);
const panel = name => document.getElementById(`panel-${name}`);

async function view(name) {
  views[name] ??= name === "compare" ? new Compare(panel(name)) : new (await LATER[name]()).default(panel(name));
  return views[name];
}

async function show({view: name, pairs}) {
  for (const other of address.VIEWS) {
    const chosen = other === name;
    tab(other).setAttribute("aria-selected", String(chosen));
    tab(other).tabIndex = chosen ? 0 : -1;
    panel(other).hidden = !chosen;
  }
  document.title = `${TITLES[name]} · Trainyard`;
  last[name] = pairs;
  try {
    await (await view(name)).show(pairs);
  } catch (problem) {
    panel(name).replaceChildren(make("p", {class: "error", role: "alert"}, `This view cannot be shown: ${problem.message}`));
    delete views[name];
    throw problem;
  }
}

function open(name, focus = false) {
  last[address.current().view] = address.current().pairs;
  address.go(name, last[name] ?? []);
  if (focus) tab(name).focus();
}

for (const name of address.VIEWS) tab(name).addEventListener("click", () => open(name));
document.querySelector("[role=tablist]").addEventListener("keydown", event => {
  const at = address.VIEWS.indexOf(address.current().view), count = address.VIEWS.length;
  const to = {ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  open(address.VIEWS[to], true);
});

address.whenChanged(show);
show(address.current());
