"""One episode of the policy, to look at."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache

from millpond.config import load
from millpond.config.env import EnvConfig
from millpond.config.env_options import env_options
from millpond.errors import MillpondError
from millpond.plurals import plural
from millpond.record import Record
from millpond.report.chart import chart, figure, series
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag


def episode(facts: Facts) -> Block | None:
    """The GIF inside the page, or a sentence that says why there is none."""
    picture = facts.picture
    if picture is None:
        return None
    if picture.gif is None:
        return Block("An episode", tag("p", picture.words, class_="quiet"))
    source = f"data:image/gif;base64,{b64encode(picture.gif).decode('ascii')}"
    image = tag("img", src=source, alt="an episode of the policy, animated")
    return Block("An episode", tag("figure", image, tag("figcaption", picture.words), class_="episode"))


# -- What scripted players reach in an environment that has some: the marks that a learned return is measured against.

EPISODES = 64


def yardsticks(env: EnvConfig) -> dict[str, float]:
    """Mean returns by player, `random` and `greedy`; none where the environment has no players."""
    if env.id != "grid":
        return {}
    _, options = env_options(env.model_copy(update={"stagger": False}))
    return dict(_played(json.dumps(options, sort_keys=True)))


def share(learned: float, marks: dict[str, float]) -> float | None:
    """(learned - random) / (greedy - random): 0 is chance, 1 is the greedy player."""
    if not {"random", "greedy"} <= marks.keys() or marks["greedy"] == marks["random"]:
        return None
    return (learned - marks["random"]) / (marks["greedy"] - marks["random"])


@cache
def _played(options: str) -> tuple[tuple[str, float], ...]:
    from millpond.envs.grid.players import yardstick

    settings = json.loads(options)
    return tuple(
        (player, float(yardstick(player, settings, num_envs=EPISODES)["episode_return"]))
        for player in ("random", "greedy")
    )


# -- Evaluations: episodes on seeds of their own, each with an interval, and the best checkpoint by them.

RETURN, LOW, HIGH = "eval/episode_return", "eval/episode_return_low", "eval/episode_return_high"
ROWS = 40


def marks_of(facts: Facts) -> dict[str, float]:
    """Returns of the scripted players in this run's environment; none where nothing was evaluated or the config is broken."""
    if not facts.config_text or not evaluated(facts):
        return {}
    try:
        return yardsticks(load(facts.folder / "config.yaml").recipe.env)
    except MillpondError as error:
        note = f"no yardsticks: {error}"
        if note not in facts.problems:
            facts.problems.append(note)
        return {}


def evaluated(facts: Facts) -> list[Record]:
    """The records that have an evaluation."""
    return [record for record in facts.records if RETURN in record]


def evaluation_chart(facts: Facts) -> Markup | None:
    """The curve of evaluations with their intervals, and the yardsticks as levels."""
    curve = series(evaluated(facts), facts.axis, RETURN, band=(LOW, HIGH))
    return chart([curve], x_label=facts.axis.replace("_", " "), y_label="return", marks=marks_of(facts))


def evaluations(facts: Facts) -> Block | None:
    """The curve of evaluations, and a table of them."""
    found, picture = evaluated(facts), evaluation_chart(facts)
    if picture is None:
        return None
    marks, words = marks_of(facts), facts.axis.replace("_", " ")
    episodes = facts.setting("eval.episodes")
    each = f"{plural(episodes, 'episode')} each, " if isinstance(episodes, int) else ""
    intro = tag("p", f"{each}on seeds of their own; the band is a bootstrap interval of 95% for the mean.")
    best = max(found, key=lambda record: record[RETURN])
    names = sorted({name for record in found for name in record if name.startswith("eval/env/")})
    header = [words, "updates", "return", "95% interval", "length"]
    header += ["of greedy"] if share(0.0, marks) is not None else []
    header += [name.removeprefix("eval/env/") for name in names]
    rows = []
    for record in found[-ROWS:]:
        part = share(record[RETURN], marks)
        row = [
            figure(record.get(facts.axis, 0)),
            figure(record.get("updates", 0)),
            figure(record[RETURN]) + (" (best)" if record is best else ""),
            f"{figure(record.get(LOW, record[RETURN]))} to {figure(record.get(HIGH, record[RETURN]))}",
            figure(record.get("eval/episode_length", 0.0)),
        ]
        row += [f"{part:.0%}"] if part is not None else []
        rows.append(row + [figure(record[name]) if name in record else "" for name in names])
    skipped = f"The newest {ROWS} of {len(found)}." if len(found) > ROWS else None
    body = join(
        intro,
        tag("figure", picture, class_="wide"),
        tag("p", skipped, class_="quiet") if skipped else None,
        table(header, rows, left=0),
    )
    return Block("Evaluation", body)
