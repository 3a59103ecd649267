// Elements, numbers, and requests. Text from runs reaches the page through textContent and setAttribute alone.

const SVG = "http://www.w3.org/2000/svg";
const LISTENED = new Set(["click", "input", "change", "keydown", "submit", "pointerdown"]);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (LISTENED.has(name)) element.addEventListener(name, value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${parseFloat((value / (unit === 1e4 ? 1e3 : unit)).toPrecision(3))}${suffix}`;
  }
  return size !== 0 && size < 1e-3 ? value.toExponential(1) : `${parseFloat(value.toPrecision(digits))}`;
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [unit, suffix] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= unit) return `${(value / unit).toPrecision(3)} ${suffix}`;
  }
  return `${value} B`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  for (const [unit, suffix] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${suffix}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

export const age = (since) => duration(Date.now() / 1000 - since);
export const date = (seconds) => new Date(seconds * 1000).toLocaleString();
export const words = (name) => name.replaceAll("_", " ");

export function query(path, parameters) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).filter((each) => each !== undefined && each !== null).map((each) => [name, each]));
  return `${path}?${new URLSearchParams(pairs)}`;
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ?? `the board answered ${response.status}`);
  return body;
}

const tags = new Map(); // ETag by address, of the newest answer
// Returns null where nothing has changed since the last call with `fresh` false.
export async function get(path, parameters = {}, { fresh = true } = {}) {
  const address = query(path, parameters);
  const headers = !fresh && tags.has(address) ? { "If-None-Match": tags.get(address) } : {};
  const response = await fetch(address, { headers, cache: "no-store", credentials: "same-origin" });
  if (response.status === 304) return null;
  const tag = response.headers.get("ETag");
  if (tag) {
    if (tags.size > 200) tags.clear();
    tags.set(address, tag);
  }
  return answer(response);
}

export async function post(path, values) {
  const headers = { "Content-Type": "application/json", "X-Millpond-Board": "1" };
  return answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(values), credentials: "same-origin" }));
}

// Wait for a task of the board, and return its result.
export async function result(id, onState) {
  for (;;) {
    const task = await get("/api/task", { id });
    if (task.state === "done") return task.result;
    if (task.state === "failed") throw new Error(task.error);
    onState(task.state);
    await new Promise((wake) => setTimeout(wake, 400));
  }
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
}
