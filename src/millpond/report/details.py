"""The last sections of a report: the saved checkpoints, then plan, config and host as the run folder has them."""

from __future__ import annotations

import json
import time
from typing import Any

from millpond.planner.lines import size
from millpond.report.chart import format_number
from millpond.report.facts import Facts
from millpond.report.markup import Block, join, table, tag


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
