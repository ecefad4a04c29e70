// Figures: plotly is fetched when there is a first one to draw, never before.

import {make} from "./dom.js";
import {drawFitted} from "./fitting.js";

const PLOTLY = "/static/plotly.min.js";
// plotly would offer to upload a figure to its makers: nothing leaves this computer
const CONFIG = {displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: ""};
const IDLE_MS = 800;  // after the results are shown
let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = make("script", {src: PLOTLY, on: {
      load: () => resolve(window.Plotly),
      error: () => { loading = null; reject(new Error("The plots cannot be drawn: plotly could not be loaded.")); },
    }});
    document.head.append(script);
  });
  return loading;
}

// plotly reads a subset of HTML in its texts
export const plain = text => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// Where each figure is drawn, and how wide it was then.
const drawn = new Map();
const sight = new IntersectionObserver(entries => {
  for (const {isIntersecting, target} of entries) if (isIntersecting) draw(target);
}, {rootMargin: "200px"});
const waiting = new Set();

// Figures out of sight are drawn one by one while the page is idle, so that a print has them all.
function drawNext() {
  const place = [...waiting].find(other => other.isConnected && other.clientWidth);
  if (!place) return;
  draw(place).then(() => setTimeout(drawWhenIdle, 0));
}
const drawWhenIdle = () => window.requestIdleCallback ? requestIdleCallback(drawNext, {timeout: 2000}) : setTimeout(drawNext, 200);

async function draw(place) {
  const spec = specs.get(place);
  sight.unobserve(place);
  waiting.delete(place);
  try {
    const library = await plotly();
    if (!place.isConnected) return;
    drawn.set(place, place.clientWidth);
    await drawFitted(library, place, spec, {...CONFIG, ...spec.config});
    place.dataset.drawn = "yes";
    spec.ready?.(place);
  } catch (problem) {
    place.textContent = problem.message;
  }
}

const specs = new WeakMap();

// spec: plotly's {data, layout}; `config` and `ready(place)` are for figures that are brushed.
export function figure(spec, {description = spec.layout?.meta?.description ?? "", broad = false, title = "", config = {}, ready = null} = {}) {
  const layout = {...spec.layout};
  if (title) layout.title = {...(layout.title ?? {}), text: plain(title)};
  const place = make("div", {role: config.displayModeBar ? "group" : "img", "aria-label": description || title, class: "plot"});
  place.style.height = `${layout.height ?? 420}px`;
  specs.set(place, {data: spec.data, layout, config: {modeBarButtonsToRemove: ["select2d", "lasso2d"], ...config}, ready});
  sight.observe(place);
  if (!waiting.size) setTimeout(drawWhenIdle, IDLE_MS);
  waiting.add(place);
  return make("figure", {class: broad ? "broad" : null}, place, description ? make("figcaption", {}, description) : null);
}

// Draws again with other data in the same place.
export function redraw(element, spec) {
  const place = element.querySelector(".plot");
  specs.set(place, {...specs.get(place), data: spec.data, layout: spec.layout});
  if (drawn.has(place)) draw(place);
}

function redrawAll() {
  for (const place of [...drawn.keys()]) if (!place.isConnected) drawn.delete(place); else if (place.clientWidth) draw(place);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => drawn.forEach((width, place) => { if (place.isConnected && place.clientWidth && place.clientWidth !== width) draw(place); }), 150);
});
// On paper: light colours, and what has not been drawn yet is drawn now if plotly is there.
addEventListener("beforeprint", () => {
  document.documentElement.dataset.print = "yes";
  if (window.Plotly) [...waiting].filter(place => place.clientWidth).forEach(draw);
  redrawAll();
});
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; redrawAll(); });

// Frees the figures of an element that is about to be thrown away.
export function forget(element) {
  for (const place of element.querySelectorAll(".plot")) {
    sight.unobserve(place);
    waiting.delete(place);
    if (drawn.delete(place)) window.Plotly?.purge(place);
  }
}

export function base({title, x, y, height = 420, description, ...more}) {
  return {
    template: "none",
    title: {text: plain(title), font: {size: 16}, x: 0, xanchor: "left", xref: "container", y: 1, yanchor: "top", yref: "container", pad: {l: 12, t: 14}},
    font: {family: "system-ui, sans-serif", size: 12},
    height,
    margin: {l: 10, r: 20, t: 84, b: 52},
    legend: {orientation: "h", y: 1, yanchor: "bottom", x: 0, xanchor: "left", traceorder: "normal", itemsizing: "constant"},
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: {namelength: -1},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: "#9a9a9a", activecolor: "#0072B2"},
    meta: {description},
    ...more,
    xaxis: {title: {text: x}, automargin: true, ...more.xaxis},
    yaxis: {title: {text: y}, automargin: true, ...more.yaxis},
  };
}
