"""The page of an experiment: page.md in its folder, with pictures."""

from __future__ import annotations

from pathlib import Path

from millpond.config.rules import as_override
from millpond.durable import replace_file
from millpond.experiments.analysis import ALL, Answer, cells_of, header, show_efficiency, title_of
from millpond.experiments.file import Experiment
from millpond.experiments.pictures import draw_curves, draw_profiles
from millpond.experiments.results import Results
from millpond.experiments.statistics import show_detectable
from millpond.formatting import plural

STATISTICS = (
    "Means and interquartile means with 95 % intervals, bootstrapped with runs resampled within each world; probability "
    "that a run of a method beats a run of the baseline; two-sided permutation test within worlds."
)


def write_page(folder: Path, experiment: Experiment, answer: Answer, results: Results) -> Path:
    """Write page.md, curves.png, curves.svg, profiles.png and profiles.svg, and return the path of the page."""
    draw_curves(results, answer, experiment, [folder / "curves.png", folder / "curves.svg"])
    draw_profiles(answer, experiment, [folder / "profiles.png", folder / "profiles.svg"])
    path = folder / "page.md"
    replace_file(path, ("\n".join(page_lines(experiment, answer, results)) + "\n").encode())
    return path


def page_lines(experiment: Experiment, answer: Answer, results: Results) -> list[str]:
    """Return the page as lines of Markdown."""
    file = experiment.file
    runs = sum(len(seeds) for methods in results.values() for seeds in methods.values())
    lines = [f"# {file.description or experiment.name}", "", answer.sentence, ""]
    for world in dict.fromkeys(row.world for row in answer.rows):
        rows = [row for row in answer.rows if row.world == world]
        lines += [f"**{_escaped(title_of(world, answer))}**", "", _row(header(answer)), _row(["---"] * 6)]
        lines += [_row(cells_of(row)) for row in rows]
        if world in answer.random:
            lines.append(_row(["random player", "", f"{answer.random[world]:.2f}", "", "", ""]))
        lines += ["", *_joined(show_efficiency([one for one in answer.efficiency if one.world == world]))]
        gaps = [f"{row.method} {row.optimality_gap.value:.2f}" for row in rows if row.optimality_gap is not None]
        if world == ALL and gaps:
            lines += [f"Optimality gap below 1: {', '.join(gaps)}.", ""]
    lines += ["![Learning curves](curves.png)", "", "![Performance profiles](profiles.png)", ""]
    lines += [STATISTICS, "", f"{_sentence(show_detectable(file.seeds, len(experiment.worlds)))}", "", "## Runs", ""]
    episodes = plural(file.episodes, "episode")
    lines += [f"{plural(runs, 'run')}, seeds {experiment.seeds[0]} to {experiment.seeds[-1]}, {episodes} per run.", ""]
    lines += [_row(["method", "recipe", "overrides"]), _row(["---"] * 3)]
    for method in experiment.methods:
        overrides = " ".join(f"`{as_override(key, value)}`" for key, value in file.methods[method].overrides.items())
        lines.append(_row([method, f"`{experiment.recipe_of(method)}`", overrides]))
    shared = " ".join(f"`{as_override(key, value)}`" for key, value in experiment.shared.items())
    lines += ["", f"All runs: {shared}"] if shared else []
    return lines


def _joined(lines: list[str]) -> list[str]:
    text = " ".join(line.strip() for line in lines)
    return [f"{_sentence(text)}", ""] if text else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
