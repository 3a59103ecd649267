"""The ablations as a page with a table, and curves of some of them as pictures. Numbers come from the results only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.zoo.curves import digest, draw_runs, save
from benchmarks.zoo.page import DOCS, shown
from benchmarks.zoo.results import Result
from benchmarks.zoo.tasks import Task

PAGE, PICTURES = DOCS / "ablations.md", DOCS / "pictures"
BASE = "recipe"
WIDE = 4  # tasks that a setting of the first table was tried on, at least

HEAD = """# Ablations: what each setting of the recipes is worth

Short trainings with the packaged recipes ([recipes](recipes.md)) and one setting changed. All rows but those about the
learning rate have `ppo.lr_schedule=linear`, as `mujoco` and `minatar` have; `gym` has a constant rate. This page is made by
`python -m benchmarks.zoo.ablations` from the files in [benchmarks/zoo/ablations](../benchmarks/zoo/README.md).

- Numbers are mean returns of the training episodes that ended in the last tenth of the steps, over seeds; in brackets the
  lowest and the highest seed. With two seeds only large differences mean something.
- **Bold**: every seed is better than every seed of the recipe; *italic*: every seed is worse.
- Trainings are short on purpose: settings differ most before a task is solved. [Zoo](zoo.md) has longer ones.
"""

SCHEDULES = """## Schedule of the learning rate at other lengths and in other worlds

Lengths of the zoo, and envs that no setting of a recipe was chosen on. One seed where there are no brackets, which the zoo
does not have:
"""

# file, [(task, settings)]; the pictures of docs/hyperparameters.md
CURVES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "reward_scales": [(task, ("scale-0.001", BASE, "scale-1000")) for task in ("cartpole", "pendulum", "breakout")],
    "rule_values": [("cartpole", (BASE, "scale-1000", "scale-1000-values")), ("lunarlander", (BASE, "values"))],
    "rule_rate": [(task, (BASE, "rate-lower", "rate-higher", "rate-highest")) for task in ("cartpole", "lunarlander")],
    "rule_schedule": [(task, (BASE, "rate-constant", "rate-floor")) for task in ("lunarlander", "hopper")],
    "rule_gamma": [(task, ("gamma-lower", BASE, "gamma-higher")) for task in ("lunarlander", "pendulum")],
    "rule_rows": [(task, (BASE, "rows", "trace")) for task in ("lunarlander", "hopper")],
    "rule_epochs": [(task, (BASE, "epochs")) for task in ("cartpole", "lunarlander")],
    "rule_entropy": [(task, ("entropy-0", BASE, "entropy-more")) for task in ("lunarlander", "acrobot")],
    "rule_observations": [(task, (BASE, "observations")) for task in ("hopper", "lunarlander")],
    "rule_envs": [(task, (BASE, "one-env")) for task in ("cartpole", "lunarlander")],
    "rule_memory": [("recall", (BASE, "memory-none"))],
}


def by_setting(results: Sequence[Result], task: str) -> dict[str, list[Result]]:
    """Return the results of a task by setting."""
    runs: dict[str, list[Result]] = {}
    for one in results:
        if one.task == task:
            runs.setdefault(one.party, []).append(one)
    return runs


def cell(runs: Sequence[Result], base: Sequence[Result]) -> str:
    """Return mean, lowest and highest seed; bold if all are better than all of the recipe's several seeds, italic if worse."""
    finals, others = ([one.final for one in some if one.final is not None] for some in (runs, base))
    if not finals:
        return "no episode ended" if runs else ""
    text = shown(mean(finals)) + (f" ({shown(min(finals))} to {shown(max(finals))})" if len(finals) > 1 else "")
    if runs is base or len(others) < 2:
        return text
    return f"**{text}**" if min(finals) > max(others) else f"*{text}*" if max(finals) < min(others) else text


def table(results: Sequence[Result], tasks: Sequence[Task], titles: Mapping[str, str]) -> list[str]:
    """Return a table of some settings on some tasks."""
    lines = [
        f"| setting | {' | '.join(f'`{task.recipe}`, {task.steps:,}' for task in tasks)} |",
        "|---" * (len(tasks) + 1) + "|",
    ]
    runs = {task.name: by_setting(results, task.name) for task in tasks}
    for name, title in titles.items():
        cells = [cell(runs[task.name].get(name, []), runs[task.name].get(BASE, [])) for task in tasks]
        if any(cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def warnings_line(results: Sequence[Result]) -> str:
    """Return a sentence about the warnings of the recipes' own runs."""
    runs = [one for one in results if one.party == BASE and one.warnings is not None]
    warned = sorted({f"`{one.task}`: {', '.join(one.warnings)}" for one in runs if one.warnings})
    return f"Warnings of the {len(runs)} runs with unchanged recipes: {'; '.join(warned) or 'none'}."


def page_of(
    results: Sequence[Result], tasks: Sequence[Task], scheduled: Sequence[Task], titles: Mapping[str, str]
) -> str:
    """Return the whole page. On the tasks of `scheduled` only the schedule of the learning rate is changed."""
    tried = {name: {one.task for one in results if one.party == name} for name in titles}
    wide = {name: title for name, title in titles.items() if name == BASE or len(tried[name]) >= WIDE}
    narrow = {name: title for name, title in titles.items() if name == BASE or 0 < len(tried[name]) < WIDE}
    common = [task for task in tasks if any(task.name in tried[name] for name in wide if name != BASE)]
    others = [task for task in tasks if any(task.name in tried[name] for name in narrow if name != BASE)]
    lines = [
        HEAD,
        *table(results, common, wide),
        "",
        SCHEDULES,
        *table(results, [task for task in scheduled if by_setting(results, task.name)], titles),
        "",
    ]
    lines += ["## Settings tried on a few tasks", "", *table(results, others, narrow), "", warnings_line(results), ""]
    lines += [
        "## Reward scales", "",
        "The same recipe with rewards multiplied by 0.001, 1 and 1,000 (`env.reward_scale`). Returns are reported in the "
        "env's own rewards, so that equal learning gives equal curves:", "",
        "![reward scales](pictures/reward_scales.png)", "",
        "By `python -m benchmarks.zoo.ablations --setting recipe scale-0.001 scale-1000 --task cartpole pendulum breakout`.",
    ]  # fmt: skip
    machines = sorted({one.machine for one in results})
    lines += ["", "## Where", "", f"{'; '.join(machines)}." if results else "Nothing was run yet."]
    return "\n".join(lines) + "\n"


def runs_of(results: Sequence[Result], panels: Sequence[tuple[str, tuple[str, ...]]]) -> list[Result]:
    """Return the results that a picture shows."""
    return [one for task, settings in panels for one in results if one.task == task and one.party in settings]


def draw(results: Sequence[Result], panels: Sequence[tuple[str, tuple[str, ...]]], tasks: Mapping[str, Task],
         titles: Mapping[str, str], path: Path) -> None:  # fmt: skip
    """Draw the curves of settings, one panel per task, and one colour per setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(panels), 2.7), layout="constrained")
    for number, (task, settings) in enumerate(panels):
        axes: Any = figure.add_subplot(1, len(panels), number + 1)
        runs = by_setting(results, task)
        for colour, name in enumerate(settings):
            if name in runs:
                draw_runs(axes, runs[name], f"C{colour}").set_label(titles[name])
        axes.set_title(tasks[task].recipe, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.ticklabel_format(axis="x", style="sci", scilimits=(3, 3), useMathText=True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    save(figure, path, digest(runs_of(results, panels)))


def write_page(
    results: Sequence[Result], tasks: Sequence[Task], scheduled: Sequence[Task], titles: Mapping[str, str]
) -> None:
    """Write the page, and every picture whose results have changed."""
    PAGE.write_text(page_of(results, tasks, scheduled, titles), encoding="utf-8")
    for name, panels in CURVES.items():
        if runs_of(results, panels):
            draw(results, panels, {task.name: task for task in (*tasks, *scheduled)}, titles, PICTURES / f"{name}.png")
