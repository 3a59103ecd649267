"""Evaluations: episodes on seeds of their own, each with an interval, and the best checkpoint by them."""

from __future__ import annotations

from millpond.config import load
from millpond.errors import MillpondError
from millpond.plurals import plural
from millpond.record import Record
from millpond.report.chart import chart
from millpond.report.facts import Facts
from millpond.report.markup import Markup, join, table, tag
from millpond.report.section import Block
from millpond.report.series import series
from millpond.report.ticks import figure
from millpond.report.yardsticks import share, yardsticks

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
