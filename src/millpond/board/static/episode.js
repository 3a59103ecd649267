// An episode of the policy, step by step: a grid world drawn from its states, other envs as frames.

import { h, number, post, replace, result } from "./dom.js";

const CELL = 16, FRAMES_PER_SECOND = 12;

export function episodePlayer(run) {
  const stage = h("div", { class: "stage" }), caption = h("p", { class: "quiet" });
  const best = h("input", { type: "checkbox", checked: true }), seed = h("input", { type: "number", min: 0, placeholder: "seed", "aria-label": "seed" });
  const button = h("button", { class: "play-episode", click: start }, "play an episode");
  const element = h("div", { class: "episode" }, h("div", { class: "tools" }, button, h("label", { class: "toggle" }, best, h("span", {}, "best checkpoint")), seed), stage, caption);
  let timer = null;

  async function start() {
    button.disabled = true;
    try {
      const { id } = await post("/api/episode", { run, best: best.checked, seed: seed.value === "" ? null : Number(seed.value) });
      const episode = await result(id, (text) => { button.textContent = text === "waiting" ? "waiting …" : "playing …"; });
      if (episode.error) throw new Error(episode.error);
      show(episode);
    } catch (error) {
      replace(stage);
      caption.textContent = error.message;
    }
    button.disabled = false;
    button.textContent = "play another episode";
  }

  function show(episode) {
    const draw = episode.grid ? gridView(episode.grid) : frameView(episode.frames);
    const place = h("input", { type: "range", min: 0, max: Math.max(0, episode.steps - 1), value: 0, "aria-label": "step", input: () => go(Number(place.value)) });
    const words = h("p", { class: "step" });
    const play = h("button", { click: () => (timer ? pause() : run_()) }, "▶");
    let step = 0;
    const totals = [episode.rewards[0]?.map(() => 0) ?? []];
    for (const rewards of episode.rewards) totals.push(totals.at(-1).map((sum, k) => sum + rewards[k]));

    function go(to) {
      step = Math.min(Math.max(0, to), episode.steps - 1);
      place.value = step;
      draw.show(step);
      const action = episode.actions[step], names = episode.action_names;
      const named = (one) => (names.length ? names[one] ?? one : Array.isArray(one) ? `[${one.map((each) => number(each, 3)).join(", ")}]` : one);
      replace(words, `step ${step + 1} of ${episode.length.toLocaleString()} · action ${(action ?? []).map(named).join(", ")} · reward ${(episode.rewards[step] ?? []).map((each) => number(each)).join(", ")} · return ${totals[step + 1].map((each) => number(each)).join(", ")}`,
        draw.describe?.(step) ?? null);
    }
    function pause() { clearInterval(timer); timer = null; play.textContent = "▶"; }
    function run_() {
      if (step >= episode.steps - 1) go(0);
      play.textContent = "❚❚";
      timer = setInterval(() => (step >= episode.steps - 1 ? pause() : go(step + 1)), 1000 / FRAMES_PER_SECOND);
    }

    pause();
    replace(stage, draw.element, h("div", { class: "tools player" }, h("button", { "aria-label": "step back", click: () => { pause(); go(step - 1); } }, "‹"), play,
      h("button", { "aria-label": "step forward", class: "forward", click: () => { pause(); go(step + 1); } }, "›"), place), words);
    caption.textContent = [`return ${episode.returns.map((each) => number(each)).join(", ")}`, `seed ${episode.seed}`, episode.policy, episode.actions_are, episode.caption,
      episode.steps < episode.length ? `the first ${episode.steps.toLocaleString()} steps` : ""].filter(Boolean).join(" · ");
    go(0);
  }

  return { element, stop() { clearInterval(timer); } };
}

function frameView(frames) {
  const image = h("img", { alt: "the environment at this step" });
  image.hidden = !frames.length;
  return { element: image, show(step) { if (frames.length) image.src = `data:image/png;base64,${frames[Math.min(step, frames.length - 1)]}`; } };
}

function gridView(grid) {
  const rows = grid.map.length, columns = grid.map[0].length, agent = grid.cell_names.length - 1;
  const canvas = h("canvas", { width: columns * CELL, height: rows * CELL, role: "img", "aria-label": "the grid world at this step" });
  const context = canvas.getContext("2d"), rgb = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
  let at = -1, cells = grid.map.map((row) => [...row]);
  const square = (row, column, inset, fill) => { context.fillStyle = fill; context.fillRect(column * CELL + inset, row * CELL + inset, CELL - 2 * inset, CELL - 2 * inset); };

  return {
    element: canvas,
    show(step) {
      if (step < at) { at = -1; cells = grid.map.map((row) => [...row]); }
      for (; at < step; at += 1) for (const [row, column, code] of grid.steps[at + 1].cells) cells[row][column] = code;
      cells.forEach((row, r) => row.forEach((code, c) => square(r, c, code && code !== agent ? 0.5 : 0, rgb(grid.colours[code === agent ? 0 : code]))));
      grid.steps[step].agents.forEach(([row, column], k) => {
        context.fillStyle = rgb(grid.agent_colours[k % grid.agent_colours.length]);
        context.beginPath();
        context.arc((column + 0.5) * CELL, (row + 0.5) * CELL, CELL / 2 - 1, 0, 2 * Math.PI);
        context.fill();
        const [ore, battery] = grid.steps[step].carried[k];
        if (ore || battery) square(row, column, 5, rgb(grid.colours[battery ? 3 : 2]));
      });
    },
    describe(step) {
      return h("span", { class: "quiet" }, " · ", grid.steps[step].carried.map((carried, k) => `agent ${k}: ${carried.map((count, r) => `${count} ${grid.resources[r]}`).join(", ")}`).join(" · "));
    },
  };
}
