// Sweeps: the list of them, and one with its parallel coordinates, the Pareto front of return and hours, and its trials.

import { colour, draw, forget, plain } from "./charts.js";
import { get, h, number, replace } from "./dom.js";
import { address } from "./overview.js";

const MOST_SWEEPS = 30; // of the list

export function sweepList(main, sweeps) {
  const rows = h("tbody"), seen = new Map();
  main.append(h("section", { class: "panel" }, h("h2", {}, "Sweeps"), h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ["sweep", "recipe", "trials", "running", "best", "on fresh seeds", "hours"].map((text) => h("th", {}, text)))), rows))));
  let gone = false;
  return {
    async update() {
      for (const name of sweeps().slice(0, MOST_SWEEPS)) {
        const sweep = await get("/api/sweep", { sweep: name }, { fresh: !seen.has(name) });
        if (gone) return;
        if (sweep !== null) seen.set(name, sweep);
      }
      replace(rows, [...seen].map(([name, sweep]) => h("tr", {}, h("td", {}, h("a", { href: `#/sweep/${encodeURIComponent(name)}` }, name)), cells(sweep).map((text) => h("td", {}, text)))));
    },
    leave() { gone = true; },
  };
}

function cells({ settings, trials, winner, hours, problems }) {
  if (!settings) return [problems.join("; ")];
  const running = trials.filter((trial) => trial.state === "running").length;
  return [settings.recipe, `${trials.length} of ${settings.trials} x ${settings.seeds} seeds`, running || "–",
    winner ? `${number(winner.score)} (trial ${winner.trial})` : "–", winner?.fresh_score === undefined || winner.fresh_score === null ? "–" : number(winner.fresh_score),
    `${number(hours.spent, 3)}${hours.planned ? ` of ${number(hours.planned, 3)}` : ""}`];
}

export function sweepPage(main, name) {
  const top = h("section", { class: "run-top" }), parallel = h("div", { class: "chart wide" }), pareto = h("div", { class: "chart" }), trials = h("section", { class: "panel" });
  const importance = h("div");
  main.append(top, h("section", { class: "panel" }, h("h2", {}, "Trials, one line each"), h("p", { class: "quiet" }, "From parameter to parameter, to the score; the better a trial, the stronger its line."), parallel),
    h("div", { class: "columns" }, h("section", { class: "panel" }, h("h2", {}, "Return for the hours"), pareto), h("section", { class: "panel" }, h("h2", {}, "Importance"), importance)), trials);
  let gone = false, seen = false;
  return {
    async update() {
      const sweep = await get("/api/sweep", { sweep: name }, { fresh: !seen });
      if (sweep === null || gone) return;
      seen = true;
      head(top, sweep);
      if (!sweep.settings) return;
      const done = sweep.trials.filter((trial) => trial.score !== null);
      drawParallel(parallel, sweep, done);
      drawPareto(pareto, sweep, done);
      const shares = Object.entries(sweep.importance);
      replace(importance, shares.length ? shares.map(([key, share]) => {
        const bar = h("div", { class: "share" });
        bar.style.width = `${100 * share}%`;
        return h("div", { class: "importance" }, h("span", {}, key), bar, h("span", {}, `${(100 * share).toFixed(0)}%`));
      }) : h("p", { class: "quiet" }, "Known when more trials have finished."));
      replace(trials, h("h2", {}, "Trials"), table(sweep));
    },
    leave() { gone = true; forget(parallel); forget(pareto); },
  };
}

function head(top, sweep) {
  const { settings, winner, hours } = sweep;
  replace(top, h("p", { class: "back" }, h("a", { href: "#/sweeps" }, "← all sweeps")), h("h1", {}, sweep.sweep),
    (sweep.problems ?? []).map((problem) => h("p", { class: "failed" }, problem)),
    settings && h("p", { class: "quiet" }, `${settings.recipe} · ${sweep.trials.length} of ${settings.trials} trials of ${settings.seeds} seeds · ${number(hours.spent, 3)} h${hours.planned ? ` of ${number(hours.planned, 3)} h` : ""}${sweep.refused ? ` · ${sweep.refused} points refused` : ""}`),
    winner && h("dl", { class: "facts" }, [["best trial", winner.trial], ["on the sweep's seeds", number(winner.score)], ["on fresh seeds", winner.fresh_score === null ? "not run yet" : `${number(winner.fresh_score)}${winner.confirmed ? "" : " (so far)"}`]]
      .map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))));
}

function scale(values) {
  const numbers = values.every((value) => typeof value === "number");
  if (!numbers) {
    const names = [...new Set(values.map(String))].sort();
    return { at: (value) => (names.length > 1 ? names.indexOf(String(value)) / (names.length - 1) : 0.5), ticks: names.map((each, k) => [names.length > 1 ? k / (names.length - 1) : 0.5, each]) };
  }
  const low = Math.min(...values), high = Math.max(...values), log = low > 0 && high / low > 20, map = log ? Math.log : (value) => value;
  const range = map(high) - map(low) || 1;
  return { at: (value) => (map(value) - map(low)) / range, ticks: [[0, number(low, 3)], [1, number(high, 3)]] };
}

function drawParallel(element, sweep, done) {
  const keys = [...new Set(done.flatMap((trial) => Object.keys(trial.params)))];
  if (!keys.length) return;
  const metric = sweep.settings.objectives[0], sign = sweep.settings.minimize ? -1 : 1;
  const axes = [...keys.map((key) => [key, (trial) => trial.params[key]]), [metric, (trial) => trial.score]];
  const scales = axes.map(([, value]) => scale(done.map(value).filter((each) => each !== undefined)));
  const ordered = done.toSorted((a, b) => sign * (a.score - b.score));
  const data = ordered.map((trial, rank) => {
    const points = axes.map(([, value], k) => (value(trial) === undefined ? null : scales[k].at(value(trial))));
    const share = ordered.length > 1 ? rank / (ordered.length - 1) : 1;
    return { x: axes.map((_, k) => k), y: points, mode: "lines", opacity: 0.15 + 0.85 * share ** 2, line: { color: colour(rank === ordered.length - 1 ? 1 : 0), width: rank === ordered.length - 1 ? 4 : 1.5 },
      text: axes.map(([key, value]) => plain(`${key} ${typeof value(trial) === "number" ? number(value(trial)) : value(trial)}`)), hovertemplate: `%{text}<extra>trial ${trial.number}</extra>` };
  });
  const lines = scales.map(({ ticks }, k) => ({ x: [k, k], y: [0, 1], mode: "lines", line: { color: colour(5), width: 1 }, hoverinfo: "skip" }));
  const marks = scales.flatMap(({ ticks }, k) => [{ x: k, y: 1.19, text: plain(axes[k][0].split(".").at(-1)), strong: true },
    ...ticks.map(([y, text]) => ({ x: k, y: y === 0 ? -0.06 : y === 1 ? 1.05 : y, text: plain(text) }))]);
  draw(element, [...data, ...lines], { marks, key: "parallel", bare: true });
}

function drawPareto(element, sweep, done) {
  const front = sweep.pareto.map((number_) => done.find((trial) => trial.number === number_)).filter(Boolean);
  const label = (trial) => plain(`trial ${trial.number}: ${Object.entries(trial.params).map(([key, value]) => `${key.split(".").at(-1)} ${typeof value === "number" ? number(value) : value}`).join(", ")}`);
  const dots = (trials, slot, symbol, text) => ({ x: trials.map((trial) => trial.hours), y: trials.map((trial) => trial.score), mode: "markers", name: text, marker: { size: 9, color: colour(slot), symbol },
    error_y: { type: "data", symmetric: false, array: trials.map((trial) => (trial.high ?? trial.score) - trial.score), arrayminus: trials.map((trial) => trial.score - (trial.low ?? trial.score)), thickness: 1, width: 0, color: colour(slot) },
    text: trials.map(label), hovertemplate: "%{text}<br>%{y:.4g} in %{x:.3g} h<extra></extra>" });
  draw(element, [{ x: front.map((trial) => trial.hours), y: front.map((trial) => trial.score), mode: "lines", line: { color: colour(1), width: 1.5, shape: sweep.settings.minimize ? "hv" : "hv", dash: "dot" }, hoverinfo: "skip" },
    dots(done.filter((trial) => trial.state !== "finished"), 5, "circle-open", "stopped early"), dots(done.filter((trial) => trial.state === "finished" && !sweep.pareto.includes(trial.number)), 0, "circle", "finished"),
    dots(front, 1, "diamond", "Pareto front")], { xTitle: "hours per run", yTitle: sweep.settings.objectives[0], key: "pareto" });
}

function table(sweep) {
  const sign = sweep.settings.minimize ? 1 : -1, keys = [...new Set(sweep.trials.flatMap((trial) => Object.keys(trial.params)))];
  const rows = sweep.trials.toSorted((a, b) => sign * ((a.score ?? -sign * Infinity) - (b.score ?? -sign * Infinity)));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["trial", "score", "state", "hours", ...keys].map((text) => h("th", {}, text)))),
    h("tbody", {}, rows.slice(0, 300).map((trial) => h("tr", { title: trial.reason },
      h("td", {}, runLink(sweep, trial), sweep.pareto.includes(trial.number) ? " ◆" : ""), h("td", {}, `${number(trial.score)}${trial.low === null ? "" : ` (${number(trial.low)} to ${number(trial.high)})`}`),
      h("td", {}, trial.at && trial.at < 1 ? `${trial.state} at ${Math.round(100 * trial.at)}%` : trial.state), h("td", {}, number(trial.hours, 3)),
      keys.map((key) => h("td", {}, typeof trial.params[key] === "number" ? number(trial.params[key]) : String(trial.params[key] ?? ""))))))));
}

function runLink(sweep, trial) {
  const part = `trial${String(trial.number).padStart(4, "0")}.`;
  const run = sweep.runs.find((each) => each.split("/").at(-1).startsWith(part));
  return run ? h("a", { href: address(run) }, trial.number) : trial.number;
}
