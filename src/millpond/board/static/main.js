// The page: what the address names is shown, and what changes is asked for every two seconds while the page is visible.

import { bytes, get, h, number, replace } from "./dom.js";
import { overview, usage } from "./overview.js";
import { runPage } from "./run.js";
import { sweepPage, sweepList } from "./sweep.js";

const SECONDS = 2;
export const runs = new Map();
const main = document.getElementById("main");
let version = 0, sweeps = [], view = null, folder = "";

function route() {
  const [, kind, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  return { kind: kind ?? "", name: rest.join("/") };
}

function show() {
  const { kind, name } = route();
  view?.leave?.();
  main.replaceChildren();
  window.scrollTo(0, 0);
  if (kind === "run") view = runPage(main, name, runs);
  else if (kind === "sweeps") view = sweepList(main, () => sweeps);
  else if (kind === "sweep") view = sweepPage(main, name);
  else view = overview(main, runs);
  showViews();
  view.update?.(true);
}

function showViews() {
  const { kind } = route();
  const link = (address, text, current) => h("a", { href: address, "aria-current": current ? "page" : null }, text);
  replace(document.getElementById("views"),
    link("#/", `Runs ${runs.size.toLocaleString()}`, kind === ""),
    sweeps.length ? link("#/sweeps", `Sweeps ${sweeps.length}`, kind.startsWith("sweep")) : null);
}

async function readRuns() {
  const answer = await get("/api/runs", { since: version });
  for (const run of answer.runs) runs.set(run.id, run);
  for (const id of answer.removed) runs.delete(id);
  const changed = answer.version !== version || answer.sweeps.length !== sweeps.length;
  ({ version, sweeps, folder } = answer);
  document.getElementById("folder").textContent = folder;
  if (changed) showViews();
  return { changed, waiting: answer.waiting };
}

async function readMachine() {
  const machine = await get("/api/machine");
  usage.runs = machine.runs;
  const { memory, disk } = machine;
  replace(document.getElementById("machine"),
    h("span", { title: "cores in use" }, `${machine.busy_cores === null ? "?" : machine.busy_cores.toFixed(1)} of ${machine.cores_in_all} cores`),
    memory && h("span", { title: "memory in use" }, `${bytes(memory.used)} of ${bytes(memory.total)}`),
    h("span", { title: "disk in use" }, `disk ${number((100 * disk.used) / disk.total, 2)}%`));
}

async function tick() {
  const problem = document.getElementById("problem");
  let pause = SECONDS;
  try {
    const { changed, waiting } = await readRuns();
    await view?.update?.(changed);
    if (waiting) pause = 0.05;
    else await readMachine();
    problem.hidden = true;
  } catch (error) {
    problem.textContent = error instanceof TypeError ? "The board does not answer; it may have been ended." : error.message;
    problem.hidden = false;
  }
  setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", tick, { once: true }) : tick()), pause * 1000);
}

window.addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.update?.(true));
readRuns().catch(() => {}).then(() => { show(); performance.mark("listed"); tick(); });
