"""The checkpoints that are there, the best one marked."""

from __future__ import annotations

import time

from millpond.planner.lines import size
from millpond.report.facts import Facts
from millpond.report.markup import join, table, tag
from millpond.report.section import Block
from millpond.report.ticks import figure


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
