"""The plan, the config and the host as they are in the folder, to be opened when they are wanted."""

from __future__ import annotations

import json
from typing import Any

from millpond.report.facts import Facts
from millpond.report.markup import join, table, tag
from millpond.report.section import Block
from millpond.report.ticks import figure


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
