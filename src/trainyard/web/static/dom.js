// Elements, tables and announcements. Text is only ever put in as text: no string of a user or a file is read as HTML.

import {watchSideways} from "./fitting.js";

const PROPERTIES = new Set(["value", "checked", "selected", "disabled", "hidden", "open", "multiple"]);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

let numbered = 0;
export const unique = stem => `${stem}-${++numbered}`;

// A control under its label; `hint` is read out with it.
export function field(label, control, hint = "") {
  control.id ||= unique("field");
  const told = hint ? make("small", {id: `${control.id}-hint`, class: "quiet"}, hint) : null;
  if (told) control.setAttribute("aria-describedby", told.id);
  return make("div", {class: "field"}, make("label", {for: control.id}, label), control, told);
}

// A place for an error under a control: empty while there is none, read out when it is filled.
export function complaint(control = null) {
  const place = make("p", {class: "error", role: "alert", id: unique("error"), hidden: true});
  return {
    element: place,
    say(text) {
      place.textContent = text;
      place.hidden = !text;
      if (!control) return;
      if (text) control.setAttribute("aria-invalid", "true"); else control.removeAttribute("aria-invalid");
      const others = (control.getAttribute("aria-describedby") ?? "").split(" ").filter(id => id && id !== place.id);
      control.setAttribute("aria-describedby", (text ? [...others, place.id] : others).join(" "));
    },
  };
}

let waiting = 0;
// Read out by screen readers; only the last of a burst.
export function announce(text) {
  clearTimeout(waiting);
  waiting = setTimeout(() => { document.getElementById("announcer").textContent = text; }, 150);
}

// columns: {head, cell(row) -> text or node, value(row)? -> what to sort by, text?: left-aligned, head_of_row?, class?}
export function table({caption, columns, rows, label = caption, sortable = true, classes = ""}) {
  const body = make("tbody");
  const lines = rows.map(row => ({row, line: line(row, columns)}));
  const heads = columns.map((column, number) => {
    const sorts = sortable && rows.length > 1 && !column.plain;
    const inside = sorts ? make("button", {type: "button", on: {click: () => sort(number)}}, column.head) : column.head;
    return make("th", {scope: "col", class: [column.text || column.of_row ? "text" : "", column.class ?? ""].join(" ").trim() || null}, inside);
  });
  function sort(number) {
    const column = columns[number], head = heads[number];
    const up = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "descending" : Boolean(column.text || column.of_row);
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = ({row, line: cells}) => column.value ? column.value(row) : cells.cells[number].textContent;
    lines.sort((a, b) => compared(key(a), key(b)) * (up ? 1 : -1));
    body.append(...lines.map(({line: cells}) => cells));
  }
  body.append(...lines.map(({line: cells}) => cells));
  const whole = make("table", {class: classes || null}, make("caption", {}, caption), make("thead", {}, make("tr", {}, heads)), body);
  return scrolled(whole, label);
}

// A box that scrolls, and says so where its content is wider.
export const scrolled = (content, label) => watchSideways(make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, content));

function line(row, columns) {
  const cells = columns.map(column => {
    const inside = column.cell(row);
    const kind = [column.text ? "text" : "", column.class ?? ""].join(" ").trim() || null;
    return column.of_row ? make("th", {scope: "row", class: column.class}, inside) : make("td", {class: kind}, inside);
  });
  return make("tr", {}, cells);
}

function compared(a, b) {
  const missing = value => value === null || value === undefined || Number.isNaN(value);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
}

// A name that may be broken after a dot, an underscore, a bracket, a comma or a sign of equality.
export const breakable = text => text.split(/(?<=[._(,=])/).flatMap((part, number) => number ? [make("wbr"), part] : [part]);

// A long name of a machine keeps its beginning and its end.
export const middle = (text, width) => text.length <= width ? text : `${text.slice(0, Math.ceil(width / 2) - 1)}…${text.slice(text.length - Math.floor(width / 2))}`;

// A long name keeps its end, where layers differ.
export const tail = (text, width = 60) => text.length <= width ? text : `…${text.slice(text.length - width + 1)}`;
