"""The page of a run: its last sections (checkpoints, plan, config, host), the sections of each kind, their order, and writing.

The page is one HTML file without scripts that loads nothing; charts can also be written as SVG files.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millpond.durable import replace_file
from millpond.formatting import plural, size
from millpond.report.chart import format_number
from millpond.report.curves import charted_metrics, curves, metric_chart, outer_phases, phase_bar, phases
from millpond.report.facts import UNKNOWN, Facts, KindReport, Picture, read_facts
from millpond.report.iteration import nine_stages
from millpond.report.markup import Block, Markup, join, standalone, style_sheet, table, tag
from millpond.report.summary import evaluations, return_chart, returns, summary
from millpond.safe_read import is_count

# Nothing may be loaded from anywhere, whatever text a run contains: styles and images are in the page itself.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Section = Callable[[Facts], Block | None]  # None where the run has nothing to show in it


def checkpoints(facts: Facts) -> Block | None:
    """Return one row per checkpoint, the best one marked, and the commands that use them."""
    if not facts.checkpoints:
        return None
    rows = [
        [
            saved.path.name,
            format_number(saved.updates),
            ("" if saved.score is None else format_number(saved.score)) + (" (best)" if saved.best else ""),
            size(saved.nbytes),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved.saved_at)),
        ]
        for saved in facts.checkpoints
    ]
    name = facts.name
    best = f"millpond eval {name} --best" if facts.has_agent else f"millpond reward score {name} EPISODES --best"
    commands = f"{best}    # the best by evaluation\nmillpond train --resume {name}    # continue from the newest\n"
    return Block(
        "Checkpoints",
        join(
            table(["checkpoint", "updates", f"{facts.score_name} when evaluated", "size", "saved"], rows),
            tag("pre", commands),
        ),
    )


def warnings(facts: Facts) -> Block | None:
    """Return one row per cause that was warned about: when first and last, in how many records, and the first text."""
    by_cause: dict[str, list[dict[str, Any]]] = {}
    for warning in facts.warnings:
        by_cause.setdefault(str(warning.get("cause", "")), []).append(warning)
    if not by_cause:
        return None
    rows = [
        [
            cause,
            str(found[0].get("text", "")),
            _count(found[0].get("updates")),
            _count(found[-1].get("last_updates", found[-1].get("updates"))),
            _count(sum(one["records"] if is_count(one.get("records")) else 1 for one in found)),
        ]
        for cause, found in by_cause.items()
    ]
    return Block("Warnings", table(["cause", "warning", "first, after updates", "last", "records"], rows, left=2))


def _count(value: Any) -> str:
    return f"{value:,}" if is_count(value) else UNKNOWN


def plan(facts: Facts) -> Block | None:
    """Return the numbers of the plan, then its notes and advice."""
    if not facts.plan:
        return None
    numbers = [[key, _show(value)] for key, value in facts.plan.items() if not isinstance(value, list)]
    notes = [
        tag("p", tag("b", f"{key}: "), "; ".join(map(str, value)))
        for key, value in facts.plan.items()
        if isinstance(value, list) and value
    ]
    return Block("Plan", join(table([], numbers), *notes), folded=True)


def config(facts: Facts) -> Block | None:
    """Return config.yaml with all settings."""
    return Block("Config", tag("pre", facts.config_text), folded=True) if facts.config_text else None


def host(facts: Facts) -> Block | None:
    """Return host.json."""
    return Block("Host", tag("pre", json.dumps(facts.host, indent=2)), folded=True) if facts.host else None


def _show(value: Any) -> str:
    return format_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _always(facts: Facts) -> bool:
    return True


def _with_agent(facts: Facts) -> bool:
    return not facts.setting("reward.reward_only", True)


def _policy(facts: Facts) -> list[list[str]]:
    if not facts.setting("policy.core"):
        return []
    return [["policy", f"core {facts.setting('policy.core')}, {facts.setting('policy.hidden_size')} units"]]


def _agents(facts: Facts) -> list[list[str]]:
    if not facts.plan.get("agents"):
        return []
    big = "" if facts.setting("mixture.mode") == "single" else " and the BigAgent (DQN)"
    units = facts.setting("policy.hidden_size")
    return [["agents", f"{plural(facts.plan['agents'], 'PQN agent')}{big}, {units} units each"]]


def _reward_network(facts: Facts) -> list[list[str]]:
    data = [] if facts.has_agent else [["data", str(facts.setting("data.path", UNKNOWN))]]
    units = facts.setting("reward.hidden_size")
    return [*data, ["reward network", f"objective {facts.setting('reward.objective', UNKNOWN)}, {units} units"]]


PPO = KindReport(has_agent=_always, subject=_policy, sections=(nine_stages,))
MIXTURE = KindReport(has_agent=_always, subject=_agents)
REWARD = KindReport(has_agent=_with_agent, subject=_reward_network)

FIRST: tuple[Section, ...] = (returns, summary, warnings, evaluations)
LAST: tuple[Section, ...] = (curves, phases, checkpoints, plan, config, host)


def write_report(folder: Path, picture: Picture | None = None) -> Path:
    """Write `report.html` into a run's folder, atomically replacing an older one. Nothing else in the folder changes."""
    facts = read_facts(folder, picture)
    path = folder / "report.html"
    replace_file(path, page(facts, sections_of(facts)).encode())
    return path


def sections_of(facts: Facts) -> tuple[Section, ...]:
    """Return the sections of a run: those of all runs, and between results and curves those of its kind."""
    kind = facts.kind_report
    return (*FIRST, *(kind.sections if kind is not None else ()), *LAST)


def page(facts: Facts, sections: Sequence[Section]) -> str:
    """Return the HTML of all sections that have content. A section that raises is replaced by its error message."""
    blocks = [block for section in sections if (block := _block_of(section, facts)) is not None]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        tag("title", f"{facts.name}: Millpond run"),
        tag("style", style_sheet("colours", "pictures", "page")),
    )
    state = facts.status.state if facts.status is not None else "state unknown"
    written = time.strftime("%Y-%m-%d %H:%M:%S %z")
    links = (tag("a", block.title, href=f"#{_anchor(k)}") for k, block in enumerate(blocks))
    header = tag(
        "header",
        tag("h1", facts.name),
        tag("p", f"Millpond run of kind {facts.kind}, {state}; report written {written}"),
        tag("nav", *links),
    )
    problems = None
    if facts.problems:
        items = (tag("li", problem) for problem in facts.problems)
        problems = tag("div", tag("p", "Could not be read:"), tag("ul", *items), class_="problems")
    body = tag("body", tag("main", header, problems, *(_html(k, block) for k, block in enumerate(blocks))))
    return "<!DOCTYPE html>\n" + tag("html", head, "\n", body, lang="en") + "\n"


def write_pictures(facts: Facts, folder: Path) -> list[Path]:
    """Write the charts that a run has as SVG files: `return.svg`, `phases.svg` and one file per metric."""
    pictures = {"return": return_chart(facts)}
    if seconds := outer_phases(facts):
        pictures["phases"] = phase_bar(seconds)
    pictures |= {name: metric_chart(facts, name, metrics) for name, metrics in charted_metrics(facts).items()}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in pictures.items():
        if picture is not None:
            path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-') or 'metric'}.svg"
            path.write_text(standalone(picture), encoding="utf-8")
            written.append(path)
    return written


def _block_of(section: Section, facts: Facts) -> Block | None:
    try:
        return section(facts)
    except Exception as error:
        name = getattr(section, "__name__", type(section).__name__)
        message = f"This section could not be made: {type(error).__name__}: {error}"
        return Block(name.replace("_", " ").capitalize(), tag("p", message, class_="problems"))


def _anchor(number: int) -> str:
    return f"section-{number}"


def _html(number: int, block: Block) -> Markup:
    heading = tag("h2", block.title)
    if block.folded:
        return join("\n", tag("details", tag("summary", heading), block.body, id=_anchor(number)))
    return join("\n", tag("section", heading, block.body, id=_anchor(number)))
