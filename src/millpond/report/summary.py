"""The first thing to see: what was trained, how well, how fast, when and where."""

from __future__ import annotations

import re
import shlex
import time

from millpond.planner.lines import size
from millpond.plurals import plural
from millpond.record import show_seconds
from millpond.report.chart import figure
from millpond.report.evaluation import HIGH, LOW, RETURN, evaluated, marks_of, share
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag


def summary(facts: Facts) -> Block | None:
    """Cards with the figures that matter, and a table of the circumstances."""
    description = facts.setting("description")
    return Block(
        "Summary",
        join(
            tag("p", str(description), class_="lead") if description else None,
            tag("div", *_cards(facts), class_="cards"),
            table([], _circumstances(facts), left=2),
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
    found = evaluated(facts)
    if found:
        record = found[-1]
        interval = (
            f"95% interval {figure(record.get(LOW, record[RETURN]))} to {figure(record.get(HIGH, record[RETURN]))}"
        )
        cards.append(_card("return, last evaluation", figure(record[RETURN]), interval))
        marks = marks_of(facts)
        part = share(record[RETURN], marks)
        if part is not None:
            players = ", ".join(f"{name} {figure(value)}" for name, value in marks.items())
            cards.append(_card("of the way from random to greedy", f"{part:.0%}", players))
    elif not facts.acts and (learned := _newest(facts, facts.score_name)) is not None:
        name = facts.score_name.removeprefix("held_out/")
        pattern = re.compile(rf"held_out/(\w+)/{re.escape(name)}")  # the same figure of the baselines
        beside = {match[1]: value for key, value in last.items() if (match := pattern.fullmatch(key))}
        words = ", ".join(f"{baseline} {figure(value)}" for baseline, value in beside.items())
        held_out = "on held-out episodes; " if name != facts.score_name else ""
        cards.append(_card(name.replace("_", " "), figure(learned), f"{held_out}{words}"))
    elif "episode_return" in last:
        cards.append(_card("return, in training", figure(last["episode_return"]), "mean of the last record's episodes"))
    counted = (name for name in ("agent_steps", "updates", "episodes") if last.get(name))
    cards += [_card(name.replace("_", " "), figure(last[name])) for name in counted]
    seconds = last.get("seconds", 0.0)
    if seconds:
        cards.append(_card("time", show_seconds(seconds), "resumed parts included"))
        if last.get("agent_steps"):
            speed = figure(round(last["agent_steps"] / seconds))
            cards.append(_card("agent steps per second", speed, "everything included"))
    return cards


def _newest(facts: Facts, name: str) -> float | None:
    return next((record[name] for record in reversed(facts.records) if name in record), None)


def _subject(facts: Facts) -> list[list[str]]:
    """What was trained on what, as far as the config says; only settings that this kind of run uses."""
    rows = []
    if facts.acts and facts.setting("env.id"):
        agents = facts.plan.get("num_agents", facts.setting("env.num_agents"))
        each = f", {plural(agents, 'agent')} per env" if isinstance(agents, int) else ""
        rows.append(["world", f"{facts.setting('env.id')}{each}"])
    if facts.kind_report is not None:
        rows += facts.kind_report.trained(facts)
    return rows


def _circumstances(facts: Facts) -> list[list[str]]:
    host, status = facts.host, facts.status
    rows = [["kind", facts.kind]]
    rows += _subject(facts)
    if status is not None:
        told = f" ({status.note})" if status.note else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(status.since))
        rows.append(["state", f"{status.state} since {since}{told}"])
    best = facts.best
    if best is not None:
        score = "" if best.score is None else f", {facts.score_name} {figure(best.score)}"
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
        rows.append(
            [
                "versions",
                ", ".join(f"{name} {versions[name]}" for name in ("millpond", "torch", "numpy") if name in versions),
            ]
        )
        git = host.get("git")
        if git:
            rows.append(["source", f"{git['commit'][:12]}{', with changes' if git.get('changed') else ''}"])
        if host.get("command"):
            rows.append(["command", shlex.join(["millpond", *map(str, host["command"][1:])])])
    return rows
