"""The first section of a report: what was trained, how well, how fast, when and where."""

from __future__ import annotations

import re
import shlex
import time

from millpond.formatting import plural, size
from millpond.record import show_seconds
from millpond.report.chart import format_number
from millpond.report.evaluation import RETURN, evaluation_records, interval_text, normalized_return, run_baselines
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag

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
        pattern = re.compile(rf"held_out/(\w+)/{re.escape(name)}")  # the same metric of the baselines
        baselines = {match[1]: value for key, value in last.items() if (match := pattern.fullmatch(key))}
        remark = ", ".join(f"{baseline} {format_number(value)}" for baseline, value in baselines.items())
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
