// Quantities as trainyard prints them everywhere: KB, MB, GB are powers of ten, KiB, MiB, GiB powers of two.

const BINARY = [["Pi", 2 ** 50], ["Ti", 2 ** 40], ["Gi", 2 ** 30], ["Mi", 2 ** 20], ["Ki", 2 ** 10], ["", 1]];
const DECIMAL = [["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]];
const SMALL = [["m", 1e-3], ["µ", 1e-6], ["n", 1e-9], ["p", 1e-12]];
const PREFIXED = new Set(["B", "B/s", "s", "Hz", "W", "J", "FLOP/s", "MAC/s", "MAC"]);

export function show(value, unit, {binary = false, digits = 3} = {}) {
  if (value === null || value === undefined) return "-";
  if (!value || !Number.isFinite(value)) return `${value} ${unit}`.trim();
  const steps = binary ? BINARY : ["B", "B/s", ""].includes(unit) ? DECIMAL : [...DECIMAL, ...SMALL];
  const rounded = Math.abs(Number(value.toPrecision(digits)));
  const [prefix, size] = steps.find(([, least]) => rounded >= least) ?? steps.at(-1);
  return `${Number((value / size).toPrecision(digits))} ${prefix}${unit}`.trim();
}

// A field's value as one would write it: no digit is lost, so that it may be sent back.
export function written(value, unit) {
  if (Array.isArray(value)) return `(${value.map(item => written(item, unit)).join(",")})`;  // as the machine grammar has lists
  if (typeof value !== "number") return value === null || value === undefined ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value);
  if (!unit || !PREFIXED.has(unit)) return String(value);
  return show(value, unit, {binary: unit === "B" && roundInPowersOfTwo(value), digits: 12});
}

const roundInPowersOfTwo = value => BINARY.some(([, size]) => size > 1 && value >= size && value % size === 0 && value / size < 1024);

// What to divide by and the unit to write on an axis, so that `most` reads well.
export function scale(most, unit) {
  if (!most) return [1, unit];
  const name = show(most, unit).split(" ")[1] ?? unit;
  const prefix = name.slice(0, name.length - unit.length);
  const found = [...DECIMAL, ...SMALL].find(([letter]) => letter === prefix);
  return [found ? found[1] : 1, name];
}

export function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1 %";
  return `${(share * 100).toFixed(1)} %`.replace(".0 %", " %");
}

export const signed = share => `${share > 0 ? "+" : ""}${(share * 100).toFixed(1)} %`;

export const rate = perSecond => perSecond >= 100
  ? `${Math.round(perSecond).toLocaleString("en")} samples/s` : `${Number(perSecond.toPrecision(3))} samples/s`;

// The base unit that a metric's or field's name ends in.
const ENDINGS = [["_bytes_per_s", "B/s"], ["_macs_per_s", "MAC/s"], ["_flop_per_s", "FLOP/s"], ["_bytes", "B"], ["_hz", "Hz"], ["_s", "s"], ["_w", "W"], ["_j", "J"]];
export function unitOf(name) {
  if (name.endsWith("samples_per_s")) return "";
  const found = part => ENDINGS.find(([ending]) => part.endsWith(ending))?.[1];
  return found(name) ?? found(name.split(".")[0]) ?? "";  // time_s, array.buffer_bytes, traffic_bytes.dram
}

export function number(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(number).join(" / ");
  if (typeof value !== "number") return String(value);
  return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}
