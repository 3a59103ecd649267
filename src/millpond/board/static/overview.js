// The first page: the best run of each environment and if it still learns, the list of runs, and the curves of selected ones.

import { draw, forget, spark, traces } from "./charts.js";
import { age, bytes, get, h, number, replace } from "./dom.js";

const MOST = 12, FIRST_ROWS = 60, MORE_ROWS = 200;
const TRENDS = { improving: ["↗", "still improving"], flat: ["→", "flat"], worse: ["↘", "getting worse"], new: ["", "too few records"] };
const AXES = { agent_steps: "agent steps", updates: "updates", frames: "frames", env_steps: "env steps", seconds: "time" };
const ORDERS = {
  return: (run) => -(run.return ?? -Infinity), best: (run) => -(run.best ?? run.return ?? -Infinity), age: (run) => -run.since,
  speed: (run) => -(run.speed ?? 0), steps: (run) => -(run.steps ?? 0), name: (run) => run.name,
};

export const usage = { runs: {} }; // cores and memory of running runs on this machine

const lowerIsBetter = (run) => (run.headline ?? "").includes("loss");
const figure = (run) => run.best ?? run.return;
const beats = (a, b) => (lowerIsBetter(a) ? figure(a) < figure(b) : figure(a) > figure(b));
export const address = (run) => `#/run/${encodeURIComponent(run)}`;
export const trend = (run) => h("span", { class: `trend ${run.trend ?? "new"}`, title: TRENDS[run.trend ?? "new"][1] },
  TRENDS[run.trend ?? "new"][0]);
export const state = (run) => h("span", { class: `state ${run.state}`, title: run.note || run.state }, run.stopping ? "stopping" : run.state);
const world = (run) => run.env || run.kind || "unknown";

const chosen = { runs: new Map(), touched: false, filter: "", env: null, state: "", order: "return", shown: FIRST_ROWS,
  metric: "", axis: "agent_steps", smoothing: 0.05, log: false, seeds: false };

export function overview(main, runs) {
  const answer = h("section", { class: "answer" });
  const rows = h("tbody"), more = h("button", { class: "more", click: () => { chosen.shown += MORE_ROWS; list(); } });
  const counts = h("p", { class: "counts" }), chart = h("div", { class: "chart", role: "img" }), legend = h("ul", { class: "legend" });
  const differences = h("div", { class: "differences" }), note = h("p", { class: "quiet" });
  const metric = choice("metric", [], () => { chosen.metric = metric.value; curves(true); });
  const axis = choice("axis", Object.entries(AXES), () => { chosen.axis = axis.value; curves(true); });
  axis.value = chosen.axis;
  const envs = choice("environment", [], () => { chosen.env = envs.value; chosen.by_hand = true; chosen.touched = false; list(); selectFirst(); });
  const order = choice("order", [["return", "return"], ["best", "best return"], ["age", "newest"], ["speed", "speed"], ["steps", "steps"], ["name", "name"]],
    () => { chosen.order = order.value; list(); });
  order.value = chosen.order;
  const smoothing = h("input", { type: "range", min: 0, max: 0.3, step: 0.01, value: chosen.smoothing, "aria-label": "smoothing",
    input: () => { chosen.smoothing = Number(smoothing.value); paint(); } });
  const log = toggle("log", chosen.log, (on) => { chosen.log = on; paint(); });
  const seeds = toggle("mean over seeds", chosen.seeds, (on) => { chosen.seeds = on; curves(true); });
  const filter = h("input", { type: "search", placeholder: "name, tag or state", "aria-label": "filter", value: chosen.filter,
    input: () => { chosen.filter = filter.value; chosen.shown = FIRST_ROWS; list(); } });
  let newest = null, gone = false;

  main.append(answer,
    h("div", { class: "columns" },
      h("section", { class: "panel list" },
        h("div", { class: "tools" }, filter, envs, label("by", order)), counts,
        h("table", {}, h("thead", {}, h("tr", {}, ["", "run", "", "return", "", "speed", "age"].map((text, k) =>
          h("th", { class: k === 3 || k > 4 ? "figure" : null }, text)))), rows), more),
      h("section", { class: "panel curves" },
        h("div", { class: "tools" }, metric, label("over", axis), label("smooth", smoothing), log, seeds),
        chart, legend, note, differences)));

  function visible() {
    const text = chosen.filter.toLowerCase();
    return [...runs.values()].filter((run) => (!chosen.env || world(run) === chosen.env) &&
      (!text || `${run.id} ${run.state} ${run.tags.join(" ")} ${run.remark}`.toLowerCase().includes(text)));
  }

  function sorted(all) {
    const key = ORDERS[chosen.order], sign = (run) => (chosen.order === "return" || chosen.order === "best") && lowerIsBetter(run) ? -1 : 1;
    return all.map((run) => [key(run) * (typeof key(run) === "number" ? sign(run) : 1), run])
      .sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : y.since - x.since)).map(([, run]) => run);
  }

  // Returns of different environments cannot be compared: at first, the one that trains is shown, or the one with most runs.
  function firstWorld(all) {
    const counts = new Map();
    for (const run of all) counts.set(world(run), (counts.get(world(run)) ?? 0) + 1 + (run.state === "running" ? 1e6 : 0));
    return [...counts].sort(([, a], [, b]) => b - a)[0]?.[0] ?? null;
  }

  function list() {
    const all = [...runs.values()];
    if (!chosen.touched && !chosen.by_hand) chosen.env = firstWorld(all);
    const shown = sorted(visible());
    const by = (name) => all.filter((run) => run.state === name).length;
    replace(counts, ["running", "finished", "stopped", "failed"].filter(by).map((name) =>
      h("button", { class: `count ${name}`, click: () => { filter.value = chosen.filter = chosen.filter === name ? "" : name; list(); } }, `${by(name)} ${name}`)),
      shown.length < all.length ? h("span", {}, `${shown.length} shown`) : null);
    const worlds = new Map();
    for (const run of all) worlds.set(world(run), (worlds.get(world(run)) ?? 0) + 1);
    setChoices(envs, [["", "all environments"], ...[...worlds].map(([name, count]) => [name, `${name} (${count})`])], chosen.env ?? "");
    envs.hidden = worlds.size < 2;
    replace(rows, shown.slice(0, chosen.shown).map(row));
    more.hidden = shown.length <= chosen.shown;
    more.textContent = `${(shown.length - chosen.shown).toLocaleString()} more`;
    if (!all.length) replace(rows, h("tr", {}, h("td", { colspan: 7, class: "quiet" }, "No runs in this folder yet. Start one: millpond train")));
    replace(answer, best(all));
  }

  function row(run) {
    const slot = chosen.runs.get(run.id);
    return h("tr", { class: slot === undefined ? null : "selected", "data-run": run.id,
      click: (event) => { if (!event.target.closest("a, button")) pick(run.id); } },
    h("td", {}, h("button", { class: slot === undefined ? "pick" : `pick f${slot % 10}`, "aria-label": `draw ${run.name}`, "aria-pressed": String(slot !== undefined),
      click: () => pick(run.id) })),
    h("td", { class: "name" }, h("a", { href: address(run.id) }, run.name), run.sweep ? h("a", { class: "quiet", href: `#/sweep/${encodeURIComponent(run.sweep)}` }, run.sweep.split("/").at(-1)) : null, run.state === "finished" ? null : state(run),
      run.tags.map((tag) => h("span", { class: "tag" }, tag)), run.warnings.length ? h("span", { class: "warned", title: run.warnings.join(", ") }, "!") : null),
    h("td", {}, spark(run.spark, { slot: slot ?? null })),
    h("td", { class: "figure", title: run.headline ?? "" }, number(run.return), run.headline && !run.headline.includes("return") ? h("sup", { title: run.headline }, "*") : null),
    h("td", {}, trend(run)),
    h("td", { class: "figure speed" }, run.speed ? `${number(run.speed, 3)}/s` : "–"),
    h("td", { class: "figure age" }, age(run.since)));
  }

  function best(all) {
    const worlds = new Map();
    for (const run of all) {
      if (figure(run) === null || figure(run) === undefined) continue;
      const one = worlds.get(world(run)) ?? { best: run, count: 0, newest: 0 };
      worlds.set(world(run), { best: beats(run, one.best) ? run : one.best, count: one.count + 1, newest: Math.max(one.newest, run.since) });
    }
    const cards = [...worlds].sort(([x, a], [y, b]) => (y === chosen.env) - (x === chosen.env) || b.newest - a.newest).slice(0, 4).map(([name, { best: run, count }]) => {
      const [mark, text] = TRENDS[run.trend ?? "new"];
      return h("a", { class: "card", href: address(run.id) },
        h("span", { class: "quiet" }, `best of ${count} on ${name}`),
        h("strong", {}, number(figure(run)), h("span", { class: "of" }, run.name)),
        h("span", {}, spark(run.spark, { width: 120, height: 26 }), h("span", { class: `trend ${run.trend ?? "new"}` },
          `${mark} ${text}${run.trend === "improving" ? ` (+${number(run.gain, 2)} in the last quarter)` : ""}`)),
        h("span", { class: "quiet" }, [run.state, run.speed ? `${number(run.speed, 3)}/s` : null, `${number(run.steps)} ${run.unit === "updates" ? "updates" : "steps"}`]
          .filter(Boolean).join(" · ")));
    });
    return [...cards, ...(cards.length < 3 ? [bestSetting(all), training(all)] : [])];
  }

  // The settings with the best mean over at least two seeds.
  function bestSetting(all) {
    const groups = new Map();
    for (const run of all) {
      if (figure(run) === null || figure(run) === undefined || (chosen.env && world(run) !== chosen.env)) continue;
      groups.set(run.group, [...(groups.get(run.group) ?? []), run]);
    }
    const mean = (members) => members.reduce((sum, run) => sum + figure(run), 0) / members.length;
    let first = null;
    for (const members of groups.values()) {
      if (members.length < 2) continue;
      if (!first || (lowerIsBetter(members[0]) ? mean(members) < mean(first) : mean(members) > mean(first))) first = members;
    }
    if (!first) return null;
    const figures = first.map(figure), improving = first.filter((run) => run.trend === "improving").length;
    return h("div", { class: "card" }, h("span", { class: "quiet" }, "best settings, mean over seeds"),
      h("strong", {}, number(mean(first)), h("span", { class: "of" }, `${first.length} seeds of ${first[0].name}`)),
      h("span", {}, `${number(Math.min(...figures))} to ${number(Math.max(...figures))}; ${improving} of ${first.length} still improving`),
      h("span", { class: "quiet" }, first.map((run) => run.name).join(" · ").slice(0, 90)));
  }

  function training(all) {
    const now = all.filter((run) => run.state === "running").sort((a, b) => b.since - a.since);
    if (!now.length) return null;
    return h("div", { class: "card" }, h("span", { class: "quiet" }, `training now: ${now.length}`), now.slice(0, 3).map((run) =>
      h("span", { class: "now" }, h("a", { href: address(run.id) }, run.name), h("b", {}, number(run.return)), trend(run),
        usage.runs[run.id] ? h("span", { class: "quiet" }, `${usage.runs[run.id].cores.toFixed(1)} cores, ${bytes(usage.runs[run.id].memory)}`) : null, spark(run.spark))));
  }

  function pick(id) {
    chosen.touched = true;
    if (chosen.runs.has(id)) chosen.runs.delete(id);
    else if (chosen.runs.size < MOST) add(id);
    list();
    curves(true);
  }

  function add(id) {
    const taken = new Set(chosen.runs.values());
    let slot = 0;
    while (taken.has(slot)) slot += 1;
    chosen.runs.set(id, slot);
  }

  function selectFirst() {
    const running = visible().filter((run) => run.state === "running");
    const names = [...new Set([...running.slice(0, 3), ...sorted(visible()).slice(0, 5)].map((run) => run.id))].slice(0, 6);
    if (names.join("\n") === [...chosen.runs.keys()].join("\n")) return;
    chosen.runs.clear();
    names.forEach(add);
    list();
    curves(true);
  }

  async function curves(fresh = false) {
    const names = [...chosen.runs.keys()].filter((id) => runs.has(id));
    chart.hidden = !names.length;
    if (!names.length) {
      note.textContent = runs.size ? "Select runs in the list to draw their curves." : "";
      replace(legend);
      replace(differences);
      return;
    }
    const answered = await get("/api/curves", { run: names, metric: chosen.metric || null, axis: chosen.axis, seeds: chosen.seeds ? 1 : null }, { fresh });
    if (gone || answered === null) return;
    newest = answered;
    setChoices(metric, orderMetrics(newest.metrics).map((name) => [name, name]), newest.metric);
    paint();
    if (fresh) await differ(names);
  }

  function paint() {
    if (!newest) return;
    const drawn = newest.curves.filter((curve) => curve.x.length).map((curve) => ({ ...curve, slot: chosen.runs.get(curve.runs[0]) ?? 0 }));
    draw(chart, traces(drawn, { smoothing: chosen.smoothing }),
      { xTitle: newest.axis_label, yTitle: newest.metric, log: chosen.log, key: `${newest.metric} ${newest.axis} ${chosen.log}` })
      .catch((error) => { note.textContent = error.message; });
    chart.setAttribute("aria-label", `${newest.metric} over ${newest.axis_label}`);
    replace(legend, newest.curves.map((curve) => h("li", {}, h("i", { class: `key f${(chosen.runs.get(curve.runs[0]) ?? 0) % 10}` }),
      curve.label, h("b", {}, number(curve.last)))));
    const notes = newest.curves.filter((curve) => curve.problem).map((curve) => `${curve.label}: ${curve.problem}`);
    if (newest.curves.some((curve) => !curve.x.length)) notes.push(`Not every run has ${newest.metric} over ${newest.axis_label}.`);
    if (newest.curves.some((curve) => curve.sampled)) notes.push("Long curves are sampled; every evaluation is drawn.");
    if (newest.curves.some((curve) => curve.interval)) notes.push("Bands: 95% interval of the mean over seeds.");
    note.textContent = notes.join(" ");
  }

  async function differ(names) {
    if (names.length < 2) return replace(differences);
    const { rows: found, runs: ids } = await get("/api/differences", { run: names });
    if (gone) return;
    const heads = ids.map((id) => h("th", {}, h("i", { class: `key f${(chosen.runs.get(id) ?? 0) % 10}` }), runs.get(id)?.name ?? id));
    replace(differences, h("h3", {}, found.length ? "Settings that differ" : "No setting differs"), found.length
      ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, ""), heads)),
        h("tbody", {}, found.map(({ key, values }) => h("tr", {}, h("th", {}, key), values.map((value) => h("td", {}, value))))))) : null);
  }

  return {
    async update(changed) {
      if (changed) list();
      if (!chosen.touched) selectFirst();
      await curves(newest === null);
    },
    leave() { gone = true; forget(chart); },
  };
}

function orderMetrics(names) {
  const first = ["episode_return", "eval/episode_return"];
  const rank = (name) => (first.includes(name) ? first.indexOf(name) : name.startsWith("time/") ? 9 : name in AXES ? 8 : 5);
  return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

const label = (text, control) => h("label", {}, h("span", {}, text), control);
const choice = (name, options, change) => setChoices(h("select", { "aria-label": name, change }), options);

function setChoices(select, options, value) {
  const key = JSON.stringify(options);
  if (select.dataset.options !== key) {
    select.dataset.options = key;
    replace(select, options.map(([name, text]) => h("option", { value: name }, text)));
  }
  if (value !== undefined) select.value = value;
  return select;
}

function toggle(text, on, change) {
  const box = h("input", { type: "checkbox", checked: on, change: () => change(box.checked) });
  return h("label", { class: "toggle" }, box, h("span", {}, text));
}
