"""The first sections of a report: the return with an animated episode, the summary, evaluations next to scripted players.

The summary says what was trained, how well, how fast, when and where.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from base64 import b64encode
from functools import cache

from millpond.config import load
from millpond.config.env_options import env_options
from millpond.config.recipe import EnvConfig
from millpond.errors import MillpondError
from millpond.formatting import plural, size
from millpond.record import Record, show_seconds
from millpond.report.chart import FULL, HEIGHT, WIDE, WIDTH, Series, chart, format_number, legend, series
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag

AGENT_RETURN = re.compile(r"eval/(?!env/).+/episode_return")
RETURN, LOW, HIGH = "eval/episode_return", "eval/episode_return_low", "eval/episode_return_high"
MAX_ROWS = 40  # of the table, the newest evaluations
BASELINE_EPISODES = 64

TableRow = list[str]  # name, value


def summary(facts: Facts) -> Block | None:
    """Return cards with the most important numbers, and a table of everything else that identifies the run."""
    description = facts.setting("description")
    return Block(
        "Summary",
        join(
            tag("p", str(description), class_="lead") if description else None,
            tag("div", *_cards(facts), class_="cards"),
            table([], _table_rows(facts), left=2),
        ),
    )


def _card(name: str, value: str, remark: str = "") -> Markup:
    return tag(
        "div",
        tag("span", name, class_="name"),
        tag("strong", value),
        tag("span", remark, class_="remark") if remark else None,
        class_="card",
    )


def _cards(facts: Facts) -> list[Markup]:
    last, cards = facts.last, []
    evaluations = evaluation_records(facts)
    if evaluations:
        record = evaluations[-1]
        cards.append(
            _card("return, last evaluation", format_number(record[RETURN]), f"95% interval {interval_text(record)}")
        )
        baselines = run_baselines(facts)
        normalized = normalized_return(record[RETURN], baselines)
        if normalized is not None:
            players = ", ".join(f"{name} {format_number(value)}" for name, value in baselines.items())
            cards.append(_card("of the way from random to greedy", f"{normalized:.0%}", players))
    elif not facts.has_agent and (learned := _newest(facts, facts.score_name)) is not None:
        name = facts.score_name.removeprefix("held_out/")
        remark = ", ".join(f"{baseline} {format_number(value)}" for baseline, value in score_baselines(facts).items())
        held_out = "on held-out episodes; " if name != facts.score_name else ""
        cards.append(_card(name.replace("_", " "), format_number(learned), f"{held_out}{remark}"))
    elif "episode_return" in last:
        remark = "mean of the last record's episodes"
        cards.append(_card("return, in training", format_number(last["episode_return"]), remark))
    counters = (name for name in ("agent_steps", "updates", "episodes") if last.get(name))
    cards += [_card(name.replace("_", " "), format_number(last[name])) for name in counters]
    seconds = last.get("seconds", 0.0)
    if seconds:
        cards.append(_card("time", show_seconds(seconds), "including before resumes"))
        if last.get("agent_steps"):
            speed = format_number(round(last["agent_steps"] / seconds))
            cards.append(_card("agent steps per second", speed, "everything included"))
    return cards


def _newest(facts: Facts, name: str) -> float | None:
    return next((record[name] for record in reversed(facts.records) if name in record), None)


def _subject(facts: Facts) -> list[TableRow]:
    """Return what was trained on which environment or data; only settings that this kind of run uses."""
    rows = []
    if facts.has_agent and facts.setting("env.id"):
        agents = facts.plan.get("num_agents", facts.setting("env.num_agents"))
        each = f", {plural(agents, 'agent')} per env" if isinstance(agents, int) else ""
        rows.append(["environment", f"{facts.setting('env.id')}{each}"])
    if facts.kind_report is not None:
        rows += facts.kind_report.subject(facts)
    return rows


def _table_rows(facts: Facts) -> list[TableRow]:
    host, status = facts.host, facts.status
    rows = [["kind", facts.kind], *_subject(facts)]
    if status is not None:
        note = f" ({status.note})" if status.note else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(status.since))
        rows.append(["state", f"{status.state} since {since}{note}"])
    best = facts.best
    if best is not None:
        score = "" if best.score is None else f", {facts.score_name} {format_number(best.score)}"
        rows.append(["best checkpoint", f"{best.path.name} after {plural(best.updates, 'update')}{score}"])
    if host:
        rows.append(["began", str(host.get("started", "?"))])
        if host.get("resumes"):
            rows.append(["resumed", ", ".join(str(resume.get("started", "?")) for resume in host["resumes"])])
        devices = ", ".join(map(str, host.get("devices", ())))
        rows.append(
            [
                "host",
                f"{host.get('host', '?')}: {host.get('processor', '?')}, {host.get('cores_allowed', '?')} cores, "
                f"{size(float(host.get('memory_bytes', 0)))} of memory; devices {devices}; "
                f"{host.get('torch_threads', '?')} torch threads",
            ]
        )
        versions = host.get("versions", {})
        named = (f"{name} {versions[name]}" for name in ("millpond", "torch", "numpy") if name in versions)
        rows.append(["versions", ", ".join(named)])
        git = host.get("git")
        if git:
            rows.append(["source", f"{git['commit'][:12]}{', with changes' if git.get('changed') else ''}"])
        if host.get("command"):
            rows.append(["command", shlex.join(["millpond", *map(str, host["command"][1:])])])
    return rows


def baseline_returns(env: EnvConfig) -> dict[str, float]:
    """Return the mean returns of the scripted players `random` and `greedy`; empty if the environment has no players."""
    if env.id != "grid":
        return {}
    returns_as_they_are = {"stagger": False, "reward_scale": 1.0, "reward_clip": None, "episodic": False}
    _, options = env_options(env.model_copy(update=returns_as_they_are))
    return dict(_play_baselines(json.dumps(options, sort_keys=True)))


def normalized_return(learned: float, baselines: dict[str, float]) -> float | None:
    """Return (learned - random) / (greedy - random): 0 is the random player, 1 the greedy one."""
    if not {"random", "greedy"} <= baselines.keys() or baselines["greedy"] == baselines["random"]:
        return None
    return (learned - baselines["random"]) / (baselines["greedy"] - baselines["random"])


@cache
def _play_baselines(options: str) -> tuple[tuple[str, float], ...]:
    from millpond.envs.grid.envs import play_baseline

    settings = json.loads(options)
    return tuple(
        (player, float(play_baseline(player, settings, num_envs=BASELINE_EPISODES)["episode_return"]))
        for player in ("random", "greedy")
    )


def run_baselines(facts: Facts) -> dict[str, float]:
    """Return the baselines of this run's environment; empty if nothing was evaluated or the config cannot be loaded."""
    if not facts.config_text or not evaluation_records(facts):
        return {}
    try:
        return baseline_returns(load(facts.folder / "config.yaml").recipe.env)
    except MillpondError as error:
        problem = f"no scripted players to compare with: {error}"
        if problem not in facts.problems:
            facts.problems.append(problem)
        return {}


def evaluation_records(facts: Facts) -> list[Record]:
    """Return the records that have an evaluation."""
    return [record for record in facts.records if RETURN in record]


def interval_text(record: Record) -> str:
    """Return the 95% interval of a record's evaluation, `LOW to HIGH`."""
    low, high = record.get(LOW, record[RETURN]), record.get(HIGH, record[RETURN])
    return f"{format_number(low)} to {format_number(high)}"


def returns(facts: Facts) -> Block | None:
    """Return the first section: the curve of the return, in training and in evaluations, beside an episode of the policy.

    Of a run that learns a reward, it is the curve of its score.
    """
    shown = _episode(facts)
    broad = return_chart(facts, WIDE if shown is not None else FULL)
    if broad is None:
        return None if shown is None else Block("An episode", shown)
    figure = tag(
        "figure",
        tag("div", broad, class_="broad"),
        tag("div", return_chart(facts, (WIDTH, HEIGHT)), class_="narrow"),
        legend([curve.name for curve in return_curves(facts)]),
        tag("figcaption", _caption(facts)),
        data_chart="return",
    )
    title = "Return" if facts.has_agent else facts.score_name.removeprefix("held_out/").replace("_", " ").capitalize()
    if shown is None:
        return Block(title, figure)
    return Block(title, tag("div", figure, shown, class_="pair"))


def _caption(facts: Facts) -> str:
    if not evaluation_records(facts):
        return "Mean of the episodes that ended in training." if facts.has_agent else "On held-out episodes."
    episodes = facts.setting("eval.episodes")
    each = f"{plural(episodes, 'episode')} each, " if isinstance(episodes, int) else ""
    return f"Evaluations: {each}on separate seeds; the band is a 95% bootstrap interval of the mean."


def _episode(facts: Facts) -> Markup | None:
    """Return the GIF of an episode, embedded in the page, or a sentence that says why there is none."""
    picture = facts.picture
    if picture is None:
        return None
    caption = tag("figcaption", picture.caption)
    if picture.gif is None:
        return tag("figure", caption, class_="episode")
    source = f"data:image/gif;base64,{b64encode(picture.gif).decode('ascii')}"
    return tag("figure", tag("img", src=source, alt="an episode of the policy, animated"), caption, class_="episode")


def return_curves(facts: Facts) -> list[Series]:
    """Return the curves of the return, those with points: evaluations, and the episodes of training; or that of the score."""
    if not facts.has_agent:
        return [series(facts.records, facts.axis, facts.score_name, name="learned")]
    curves = [
        series(evaluation_records(facts), facts.axis, RETURN, name="evaluations", band=(LOW, HIGH)),
        series(facts.records, facts.axis, "episode_return", name="training"),
    ]
    return [curve for curve in curves if curve.points]


def return_levels(facts: Facts) -> dict[str, float]:
    """Return the values to compare the return, or the score, with."""
    return run_baselines(facts) if facts.has_agent else score_baselines(facts)


def return_chart(facts: Facts, size: tuple[int, int] = WIDE) -> Markup | None:
    """Draw the return over the run's axis with the baselines as levels; or the score of a learned reward with its own."""
    label = "return" if facts.has_agent else facts.score_name.removeprefix("held_out/").replace("_", " ")
    return chart(
        return_curves(facts),
        x_label=facts.axis.replace("_", " "),
        y_label=label,
        levels=return_levels(facts),
        size=size,
    )


def score_baselines(facts: Facts) -> dict[str, float]:
    """Return the newest held-out figures of the baselines of a learned reward, by name."""
    name = facts.score_name.removeprefix("held_out/")
    pattern = re.compile(rf"held_out/(\w+)/{re.escape(name)}")
    return {match[1]: value for key, value in facts.last.items() if (match := pattern.fullmatch(key))}


def evaluations(facts: Facts) -> Block | None:
    """Return a table of the evaluations; their curve is in the first section."""
    records = evaluation_records(facts)
    if not records:
        return None
    skipped = f"The newest {MAX_ROWS} of {len(records)}." if len(records) > MAX_ROWS else None
    return Block("Evaluation", join(tag("p", skipped, class_="quiet") if skipped else None, _table(facts, records)))


def _table(facts: Facts, records: list[Record]) -> Markup:
    """Return one row per evaluation, the best one marked."""
    baselines = run_baselines(facts)
    best = max(records, key=lambda record: record[RETURN])
    infos = sorted({name for record in records for name in record if name.startswith("eval/env/")})
    agents = [name for name in records[-1] if AGENT_RETURN.fullmatch(name)]
    header = [facts.axis.replace("_", " "), "updates", "return", "95% interval", "length"]
    header += ["of greedy"] if normalized_return(0.0, baselines) is not None else []
    header += [name.split("/", 1)[1].removesuffix("/episode_return") for name in agents]
    header += [name.removeprefix("eval/env/") for name in infos]
    rows = []
    for record in records[-MAX_ROWS:]:
        normalized = normalized_return(record[RETURN], baselines)
        row = [
            format_number(record.get(facts.axis, 0)),
            format_number(record.get("updates", 0)),
            format_number(record[RETURN]) + (" (best)" if record is best else ""),
            interval_text(record),
            format_number(record.get("eval/episode_length", 0.0)),
        ]
        row += [f"{normalized:.0%}"] if normalized is not None else []
        rows.append(row + [format_number(record[name]) if name in record else "" for name in (*agents, *infos)])
    return table(header, rows, left=0)
