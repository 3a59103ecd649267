"""The checkpoints that are there, the best one marked."""

from __future__ import annotations

import json
import time
from typing import Any

from millpond.planner.lines import size
from millpond.report.chart import figure
from millpond.report.facts import Facts
from millpond.report.markup import Block, join, table, tag


def checkpoints(facts: Facts) -> Block | None:
    """A row a checkpoint, and the commands that use them."""
    if not facts.checkpoints:
        return None
    rows = [
        [
            saved.path.name,
            figure(saved.updates),
            ("" if saved.score is None else figure(saved.score)) + (" (best)" if saved.best else ""),
            size(saved.nbytes),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved.saved_at)),
        ]
        for saved in facts.checkpoints
    ]
    name = facts.name
    best = f"millpond eval {name} --best" if facts.acts else f"millpond reward score {name} EPISODES --best"
    use = f"{best}    # the best by evaluation\nmillpond train --resume {name}    # go on from the newest\n"
    return Block(
        "Checkpoints",
        join(
            table(["checkpoint", "updates", f"{facts.score_name} when evaluated", "size", "saved"], rows),
            tag("pre", use),
        ),
    )


# -- The plan, the config and the host as they are in the folder, to be opened when they are wanted.


def plan(facts: Facts) -> Block | None:
    """The numbers of the plan, then what it notes and advises."""
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
    """config.yaml, all settings."""
    return Block("Config", tag("pre", facts.config_text), folded=True) if facts.config_text else None


def host(facts: Facts) -> Block | None:
    """host.json."""
    return Block("Host", tag("pre", json.dumps(facts.host, indent=2)), folded=True) if facts.host else None


def _show(value: Any) -> str:
    return figure(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
