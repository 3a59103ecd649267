// The page of one run: curves of all metrics, evaluations and episodes, time by phase, checkpoints, plan, config.

import { draw, forget, traces } from "./charts.js";
import { bytes, date, duration, get, h, number, post, replace, result, words } from "./dom.js";
import { episodePlayer } from "./episode.js";
import { state, trend } from "./overview.js";

const FIRST = ["episode_return", "eval/episode_return", "R_loss"];
const MOST_CHARTS = 40;

export function runPage(main, id, runs) {
  const top = h("section", { class: "run-top" }), labels = h("section", { class: "panel labels" });
  const wide = h("div", { class: "chart" }), small = h("div", { class: "multiples" }), constant = h("p", { class: "quiet" });
  const rest = h("div"), player = episodePlayer(id);
  const legend = h("ul", { class: "legend" });
  main.append(top,
    h("div", { class: "columns" },
      h("div", {}, h("section", { class: "panel" }, h("h2", {}, "Return"), wide, legend), labels),
      h("section", { class: "panel" }, h("h2", {}, "An episode, step by step"), player.element)),
    h("section", { class: "panel" }, h("h2", {}, "All metrics"), constant, small), rest);
  let gone = false, shown = null;
  const charts = new Map();

  async function details(fresh) {
    const run = await get("/api/run", { run: id }, { fresh });
    if (run === null || gone) return;
    shown = run;
    document.title = `${run.name}: Millpond board`;
    head(run);
    const open = rest.querySelector(".changing details")?.open ?? false;
    if (fresh) {
      label(run);
      replace(rest, h("div", { class: "changing" }), lake(run), plan(run), text("Config", run.config), text("Host", JSON.stringify(run.host, null, 2)));
    }
    replace(rest.querySelector(".changing"), problems(run), evaluations(run), phases(run, open), checkpoints(run), warnings(run));
  }

  function head(run) {
    const stop = h("button", { disabled: run.stopping, click: async () => {
      stop.disabled = true;
      try { await post("/api/stop", { run: id }); stop.textContent = "stopping"; } catch (error) { stop.textContent = error.message; }
    } }, run.stopping ? "stops after this iteration" : "stop after this iteration");
    const facts = [["return", number(run.return)], ["best", number(run.best)], [run.unit === "updates" ? "updates" : "agent steps", number(run.steps)],
      ["time", duration(run.seconds)], ["speed", run.speed ? `${number(run.speed, 3)}/s` : "–"], ["seed", run.seed ?? "–"]];
    replace(top, h("p", { class: "back" }, h("a", { href: "#/" }, "← all runs"), run.has_report ? h("a", { href: `/api/report?run=${encodeURIComponent(id)}`, target: "_blank", rel: "noopener" }, "report") : null),
      h("h1", {}, run.name, " ", state(run), " ", trend(run)),
      h("p", { class: "quiet" }, [run.kind, run.env, run.note].filter(Boolean).join(" · ")),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      run.state === "running" ? stop : null);
  }

  function label(run) {
    const tags = h("input", { value: run.tags.join(", "), "aria-label": "tags", placeholder: "tags, separated by commas" });
    const note = h("textarea", { "aria-label": "note", rows: 2, placeholder: "note" });
    note.value = run.remark;
    const saved = h("span", { class: "quiet" });
    const save = h("button", { click: async () => {
      try {
        await post("/api/labels", { run: id, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), note: note.value });
        saved.textContent = "saved";
      } catch (error) { saved.textContent = error.message; }
    } }, "save");
    replace(labels, h("div", { class: "tools" }, tags, note, save, saved));
  }

  async function curves(fresh) {
    const axis = shown?.unit === "updates" ? "updates" : "agent_steps";
    const answered = await get("/api/all-curves", { run: id, axis }, { fresh });
    if (answered === null || gone) return;
    const names = Object.keys(answered.curves).filter((name) => answered.curves[name].y.length);
    const main_name = FIRST.find((name) => names.includes(name)) ?? names[0];
    if (!main_name) return;
    const overlaid = FIRST.slice(0, 2).filter((name) => names.includes(name));
    const lines = (overlaid.length ? overlaid : [main_name]).map((name, slot) => curve(answered, name, slot));
    draw(wide, traces(lines, { smoothing: 0.05 }), { xTitle: words(axis), yTitle: overlaid.length ? "return" : main_name, key: "return" });
    replace(legend, lines.length > 1 ? lines.map((line) => h("li", {}, h("i", { class: `key f${line.slot}` }), line.label === FIRST[0] ? "training episodes" : "evaluations", h("b", {}, number(line.last)))) : null);
    const flat = (name) => new Set(answered.curves[name].y).size < 2;
    const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : name.startsWith("env/") || name.startsWith("eval/") ? 5 : 9);
    const rows = names.filter((name) => name !== "episodes" && !name.endsWith("_low") && !name.endsWith("_high")).sort((a, b) => rank(a) - rank(b));
    constant.textContent = rows.filter(flat).length ? `Constant: ${rows.filter(flat).map((name) => `${name} ${number(answered.curves[name].last)}`).join(", ")}` : "";
    for (const name of rows.filter((each) => !flat(each)).slice(0, MOST_CHARTS)) {
      if (!charts.has(name)) {
        charts.set(name, h("div", { class: "chart" }));
        small.append(h("figure", {}, h("figcaption", {}, name), charts.get(name)));
      }
      draw(charts.get(name), traces([curve(answered, name, 0)], { smoothing: 0.03 }), { small: true, key: name });
    }
  }

  function curve(answered, name, slot) {
    const { curves: all } = answered, given = all[name], low = all[`${name}_low`], high = all[`${name}_high`];
    const interval = low && high && low.y.length === given.y.length;
    return { label: name, slot, ...given, low: interval ? low.y : given.low, high: interval ? high.y : given.high, interval };
  }

  return {
    async update(changed) {
      if (!runs.has(id) && shown === null && runs.size === 0) return;
      await details(shown === null);
      await curves(charts.size === 0);
    },
    leave() { gone = true; player.stop(); document.title = "Millpond board"; for (const chart of [wide, ...charts.values()]) forget(chart); },
  };
}

const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);
const table = (heads, rows, left = 1) => h("div", { class: "scroll" }, h("table", {},
  h("thead", {}, h("tr", {}, heads.map((head, k) => h("th", { class: k < left ? null : "figure" }, head)))),
  h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, k) => h("td", { class: k < left ? null : "figure" }, cell)))))));

function problems(run) {
  return run.problems.length ? h("section", { class: "panel failed" }, run.problems.map((problem) => h("p", {}, problem))) : null;
}

function evaluations(run) {
  if (!run.evaluations.length) return null;
  const name = "eval/episode_return", best = Math.max(...run.evaluations.map((each) => each[name]));
  return panel("Evaluations", table(["agent steps", "updates", "return", "95% interval", "length"], run.evaluations.toReversed().map((each) => [
    number(each.agent_steps), number(each.updates), `${number(each[name])}${each[name] === best ? " (best)" : ""}`,
    each[`${name}_low`] === undefined ? "" : `${number(each[`${name}_low`])} to ${number(each[`${name}_high`])}`, number(each["eval/episode_length"])]), 0));
}

function phases(run, open) {
  const all = Object.entries(run.phases), outer = all.filter(([name]) => !name.includes("/"));
  if (!outer.length) return null;
  const bar = h("div", { class: "phases" }, outer.map(([name, share], k) => {
    const piece = h("div", { class: name === "other" ? "other" : `f${k % 10}`, title: `${name} ${(100 * share).toFixed(1)}%` }, share > 0.09 ? `${name} ${(100 * share).toFixed(0)}%` : "");
    piece.style.flexGrow = Math.max(share, 0.001);
    return piece;
  }));
  return panel("Time by phase", bar, h("details", { open }, h("summary", {}, "all phases"), table(["phase", "share"], all.sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, share]) => [name, `${(100 * share).toFixed(1)}%`]))));
}

function checkpoints(run) {
  if (!run.checkpoints.length) return null;
  return panel("Checkpoints", table(["saved", "updates", "score", "size"], run.checkpoints.toReversed().map((each) => [
    date(each.saved), each.updates.toLocaleString(), `${number(each.score)}${each.best ? " (best)" : ""}`, bytes(each.bytes)])));
}

function warnings(run) {
  if (!run.warning_texts.length) return null;
  return panel("Warnings", table(["cause", "warning", "after updates"], run.warning_texts.map((each) => [String(each.cause ?? ""), String(each.text ?? ""), number(each.updates)]), 2));
}

function lake(run) {
  if (!run.has_lake) return null;
  const contents = h("div"), button = h("button", { click: async () => {
    button.disabled = true;
    try {
      const { id } = await post("/api/lake", { run: run.id });
      const info = await result(id, (text) => { button.textContent = `${text} …`; });
      button.remove();
      replace(contents, h("p", {}, `${info.transitions.toLocaleString()} transitions, ${bytes(info.stored_bytes)} stored, ${bytes(info.raw_bytes)} raw`),
        table(["stream", "round", "episodes", "mean return", "lowest", "highest", "length"], info.streams.flatMap((stream) => stream.returns.map((each) =>
          [stream.name, each.round, each.episodes, number(each.mean), number(each.lowest), number(each.highest), number(each.mean_length)]))),
        info.damage.map((damage) => h("p", { class: "failed" }, damage)));
    } catch (error) { button.disabled = false; button.textContent = "read the lake"; replace(contents, h("p", { class: "failed" }, error.message)); }
  } }, "read the lake");
  return panel("Lake", button, contents);
}

function plan(run) {
  const rows = Object.entries(run.plan).filter(([, value]) => typeof value !== "object" || value === null);
  return rows.length ? h("details", { class: "panel" }, h("summary", {}, "Plan"), table(["", ""], rows.map(([name, value]) => [words(name), typeof value === "number" ? value.toLocaleString() : String(value)]))) : null;
}

function text(title, content) {
  return content ? h("details", { class: "panel" }, h("summary", {}, title), h("pre", {}, content)) : null;
}
