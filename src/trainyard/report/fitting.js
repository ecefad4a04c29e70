// What every page does before plotly draws a figure: the page's colours, and room for title, legend and labels on a narrow screen.
// Also marks tables and drawings that are wider than their box. Put into report/page.html, and served to the page in the browser.

const NARROW_PX = 560, MODEBAR_PX = 30, LONGEST_LABEL = 18, LONGEST_AXIS_TITLE = 22, LETTER_PX = 8.6, TITLE_LINE_PX = 20, ABOVE_TITLE_PX = 14, GAP_PX = 8;

// In the colours of the page's style sheet.
export function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const text = style.getPropertyValue("--text").trim(), line = style.getPropertyValue("--line").trim();
  const axis = {color: text, gridcolor: line, zerolinecolor: line, linecolor: line};
  const names = new Set([...axes(layout), "xaxis", "yaxis"]);
  const coloured = Object.fromEntries([...names].map(name => [name, {...layout[name], ...axis}]));
  return {...layout, ...coloured, font: {...layout.font, color: text}};
}

// A long label keeps its beginning and its end; plotly's escapes count as one sign.
function shortened(text) {
  const signs = String(text).match(/&\w+;|./gsu) ?? [];
  return signs.length <= LONGEST_LABEL ? text : [...signs.slice(0, 8), "…", ...signs.slice(9 - LONGEST_LABEL)].join("");
}

// Words in lines of at most so many signs; a longer word is cut.
function wrapped(text, signs) {
  const lines = [""];
  for (const word of String(text).split(" ").flatMap(whole => whole.match(new RegExp(`.{1,${Math.max(signs, 1)}}`, "gsu")) ?? [])) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= signs) lines.push(word);
    else lines[lines.length - 1] += (lines.at(-1) && " ") + word;
  }
  return lines;
}

const titleLines = (layout, width) => wrapped(layout.title?.text ?? "", Math.floor((width - 40) / LETTER_PX));
const axes = layout => Object.keys(layout).filter(name => /^[xy]axis\d*$/.test(name));

// Values beside bars need room inside the axis where the plot is narrow.
function widened(range, data) {
  const beside = data.some(({type, orientation, textposition}) => type === "bar" && orientation === "h" && textposition === "outside");
  if (!beside || !Array.isArray(range)) return range;
  const more = 0.45 * (range[1] - range[0]);
  return [range[0] - more, range[1] + more];
}

// The layout for a place of that width. A figure that states its width is left as it is: its box scrolls.
export function fitted({data, layout}, width, above = 0) {
  if (layout.width || !layout.title?.text) return layout;
  const title = {...layout.title, text: titleLines(layout, width).join("<br>"), pad: {...layout.title.pad, t: (layout.title.pad?.t ?? 0) + above}};
  const fit = {...layout, title};
  if (width >= NARROW_PX) return fit;
  const numeric = data.every(({x}) => !Array.isArray(x) || x.every(value => typeof value === "number" || value === null));
  for (const name of axes(layout)) {
    const axis = fit[name] = {...layout[name]};
    if (Array.isArray(axis.ticktext)) axis.ticktext = axis.ticktext.map(shortened);
    if (name[0] !== "x") continue;
    if (axis.ticktext) axis.tickangle = -40;
    if (numeric && !axis.tickvals && axis.type !== "log") axis.nticks = 5;
    if (axis.title?.text?.length > LONGEST_AXIS_TITLE) axis.title = {...axis.title, text: axis.title.text.replace(" [", "<br>[")};
    axis.range = widened(axis.range, data);
  }
  return fit;
}

// How wide a drawing of cells is at its height: narrower, its letters would be too small. Other figures fit any width.
function drawingWidth({xaxis, yaxis, height, width, margin}) {
  if (!yaxis?.scaleanchor || !xaxis?.range || !yaxis.range || width) return 0;
  const span = ([from, to]) => Math.abs(to - from);
  return Math.round((height - (margin?.t ?? 0) - (margin?.b ?? 0)) * span(xaxis.range) / span(yaxis.range)) + (margin?.l ?? 0) + (margin?.r ?? 0);
}

// Draws a figure, and once more where its legend needs more room above the plot than the layout gave it.
export async function drawFitted(library, place, figure, config) {
  const {data, layout} = figure, width = place.clientWidth;
  const above = config.displayModeBar && width < NARROW_PX ? MODEBAR_PX : 0;  // its buttons stand in the title's line
  const fit = themed(fitted(figure, width, above));
  if (drawingWidth(layout) > width) {
    place.style.overflowX = "auto";
    await library.react(place, data, {...fit, width: drawingWidth(layout), autosize: false}, {...config, responsive: false});
    return void watchSideways(place);
  }
  await library.react(place, data, {...fit, ...(layout.width ? {} : {height: layout.height})}, config);
  const legend = place.querySelector(".infolayer > .legend")?.getBoundingClientRect().height ?? 0;
  const isAbove = layout.legend?.orientation === "h" && layout.legend.y === 1;
  if (layout.width) return;
  const title = above + ABOVE_TITLE_PX + TITLE_LINE_PX * titleLines(layout, width).length + GAP_PX;
  const top = title + (legend && isAbove ? Math.ceil(legend) + GAP_PX : 0);
  const more = Math.max(0, top - (layout.margin?.t ?? 0));
  place.style.height = `${layout.height + more}px`;
  if (more) await library.react(place, data, {...fit, height: layout.height + more, margin: {...layout.margin, t: top}}, config);
}

// Boxes whose content goes on to the left or the right: `data-more` says where, and a line above says how to see it.
const boxes = new ResizeObserver(entries => entries.forEach(({target}) => markSideways(target)));
export function watchSideways(box) {
  if (box.dataset.watched) return box;
  box.dataset.watched = "yes";
  box.addEventListener("scroll", () => markSideways(box), {passive: true});
  boxes.observe(box);
  return box;
}

function markSideways(box) {
  const right = box.scrollWidth - box.clientWidth - box.scrollLeft > 1, left = box.scrollLeft > 1;
  box.dataset.more = [left && "left", right && "right"].filter(Boolean).join(" ");
  const hint = box.previousElementSibling?.classList.contains("sideways") ? box.previousElementSibling : null;
  if (hint) hint.hidden = !(left || right);
  else if (left || right) box.before(Object.assign(document.createElement("p"), {className: "sideways", textContent: "Wider than the screen: scroll it sideways ↔"}));
}
