"""The live display of a run: a page of lines that fits a terminal of any size.

title                    name, kind, environment; cores and memory in use
progress                 bar, share, time left; steps, speed, time, position in every level
return                   first, with its curve; if no agent acts, the figure of the learned reward
players                  one line per agent, if the run has several
metrics                  losses first, each with its curve, in as many columns as fit
time                     share of each phase
warnings                 at the bottom
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from millpond.formatting import printable, short_number, size
from millpond.record.history import ASCII_BLOCKS, BLOCKS, Curve, History, sparkline
from millpond.record.jsonlines import HEADLINES, RETURNS
from millpond.record.pace import show_seconds
from millpond.record.recorder import COUNTERS
from millpond.record.usage import Usage

LABELS = {"episode_return": "return", "eval/episode_return": "return, evaluated"}
# Metrics of a player, in order, and the heading of their columns.
PLAYER_COLUMNS = {
    "episode_return": "return",
    "eval/episode_return": "evaluated",
    "episode_length": "length",
    "q_loss": "q_loss",
    "policy_loss": "policy_loss",
    "value_loss": "value_loss",
    "q_value": "q_value",
    "grad_norm": "grad_norm",
    "epsilon": "epsilon",
    "updates": "updates",
}
PLAYER_MARKS = ("/episode_return", "/q_loss", "/policy_loss")
NOT_PLAYERS = {"eval", "env", "time", "held_out"}
# The first of these that a metric's name contains decides its place; within one, metrics keep their order.
ORDER = (
    "loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "grad_norm",
    "epsilon",
    "held_out",
    "episode_length",
)
HIDDEN = {"agent_steps_per_second"}  # the display has one speed
CELL, WIDE_CELL = 40, 53  # width of a metric, and where all fit
COLUMN = 10  # width of a column of players
MAX_WARNING_LINES = 3  # of one warning
BAR, ASCII_BAR = ("━", "─"), ("=", "-")  # done, and left


@dataclass
class ScreenView:
    """What the display shows."""

    title: str
    axis: str
    history: History
    usage: Usage | None = None
    cores: int = 1
    memory: int = 0
    share: float | None = None  # of the run that is done
    seconds_left: float | None = None
    seconds: float = 0.0
    count: float = 0.0
    per_second: float | None = None
    position: list[tuple[str, int, int | None]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def page(view: ScreenView, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
    """Return the lines of the display: at most `height` of at most `width` columns."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    head = [_title(view, width), _bar(view, width, ASCII_BAR if ascii_only else BAR), _position(view, width)]
    returns = list(_returns(view.history, width, blocks))
    phases = [_phases(view, width)] if view.phases else []
    warnings = _warnings(view.warnings, width, max(1, height // 4))
    room = height - len(head) - len(returns) - len(phases) - len(warnings) - 4  # and a blank line between parts
    players = _players(view.history, width, room - 2, blocks) if room > 4 else []
    room -= len(players) + bool(players)
    metrics = _metrics(view.history, width, room, blocks) if room > 0 else []
    parts = [part for part in (head, returns, players, metrics, phases, warnings) if part]
    lines = [line for part in parts for line in (Text(), *part)][1:]
    if len(lines) > height:  # a very low terminal: no blank lines, then only the first parts
        lines = [line for part in parts for line in part][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        if ascii_only:
            line.plain = line.plain.replace("…", "~").replace("·", "-").encode("ascii", "replace").decode()
    return lines


def headline_names(history: History) -> list[str]:
    """Return the metrics that come first: returns; without any, what a learned reward is judged by, and its loss."""
    present = [name for name in HEADLINES if history.get(name) is not None]
    returns = [name for name in reversed(RETURNS) if name in present]
    if returns:
        return returns
    return [*present[:1], *(["R_loss"] if "R_loss" in present[1:] else [])]


def label(name: str) -> str:
    """Return a metric's name for the display."""
    if name.startswith("held_out/"):
        return f"{printable(name.removeprefix('held_out/'))}, held out"
    return LABELS.get(name, printable(name))


def _title(view: ScreenView, width: int) -> Text:
    used = ""
    if view.usage is not None:
        used = f"{view.usage.cores:.1f} of {view.cores} {'core' if view.cores == 1 else 'cores'}"
        if view.usage.memory is not None:
            used += f" · {size(view.usage.memory)}" + (f" of {size(view.memory)}" if view.memory else "")
    line = Text(printable(view.title), style="bold")
    line.truncate(max(1, width - len(used) - 2), overflow="ellipsis")
    return Text.assemble(line, " " * max(2, width - line.cell_len - len(used)), (used, "dim"))


def _bar(view: ScreenView, width: int, characters: tuple[str, str]) -> Text:
    if view.share is None:
        return Text(f"{show_seconds(view.seconds_left)} left", style="cyan")
    after = f" {view.share:4.0%}  {show_seconds(view.seconds_left)} left"
    room = max(1, width - max(len(after), 18))
    done = min(room, int(view.share * room))
    full, empty = characters
    return Text.assemble((full * done, "cyan"), (empty * (room - done), "bright_black"), (after, "bold"))


def _position(view: ScreenView, width: int) -> Text:
    speed = "?" if view.per_second is None else short_number(view.per_second)
    unit = view.axis.replace("_", " ")
    parts = [f"{short_number(view.count)} {unit}", f"{speed}/s", show_seconds(view.seconds)]
    levels = [f"{name.replace('_', ' ')} {index}/{'?' if of is None else of}" for name, index, of in view.position]
    while levels and len("  ".join([*parts, *levels])) > width:
        levels.pop()  # the innermost one changes fastest and says least
    return Text.assemble("  ".join(parts), ("  " + "  ".join(levels) if levels else "", "dim"))


def _returns(history: History, width: int, blocks: str) -> Iterator[Text]:
    names = headline_names(history)
    wide = min(max((len(label(name)) for name in names), default=0), width // 3) + 1
    for name in names:
        curve = history.get(name)
        assert curve is not None
        best = f"lowest {short_number(curve.lowest)}" if name == "R_loss" else f"best {short_number(curve.highest)}"
        low, high = history.get(f"{name}_low"), history.get(f"{name}_high")
        if low is not None and high is not None:
            best = f"({short_number(low.newest)} to {short_number(high.newest)})  {best}"
        room = max(0, width - wide - 9 - len(best) - 4)
        spark = sparkline(curve.points(), room, blocks)
        yield Text.assemble(
            (f"{label(name)[:wide]:<{wide}}", "bold"),
            (f"{short_number(curve.newest):>9}", "bold green"),
            "  ",
            (f"{spark:<{room}}", "green"),
            "  ",
            (best, "dim"),
        )


def player_names(history: History) -> list[str]:
    """Return the prefixes of metrics that belong to one of several players, such as agent0 and big."""
    prefixes = (name.partition("/") for name in history.names() if name.endswith(PLAYER_MARKS))
    return list(dict.fromkeys(first for first, _, rest in prefixes if first not in NOT_PLAYERS and "/" not in rest))


def _players(history: History, width: int, room: int, blocks: str) -> list[Text]:
    """Return a table with a line for each player, as many as there is room for."""
    names = player_names(history)
    if not names or room < 2:
        return []
    present = [key for key in PLAYER_COLUMNS if any(history.get(f"{name}/{key}") for name in names)]
    first = max(6, *(len(printable(name)) for name in names)) + 1
    keys = present[: max(1, (width - first - COLUMN) // COLUMN)]
    spark = min(32, width - first - COLUMN * len(keys) - 2) if keys[0].endswith("return") else 0
    spark = spark if spark >= 6 else 0
    header = Text(" " * first, style="dim")
    for k, key in enumerate(keys):
        header.append(f"{PLAYER_COLUMNS[key]:>{COLUMN}}" + (" " * (spark + 2) if k == 0 and spark else ""))
    shown = names if len(names) <= room - 1 else names[: max(1, room - 2)]
    lines = [header]
    for name in shown:
        line = Text(f"{printable(name):<{first}}", style="")
        for k, key in enumerate(keys):
            curve = history.get(f"{name}/{key}")
            line.append(f"{'-' if curve is None else short_number(curve.newest):>{COLUMN}}")
            if k == 0 and spark:
                points = [] if curve is None else curve.points()
                line.append(f"  {sparkline(points, spark, blocks):<{spark}}", style="green")
        lines.append(line)
    if len(shown) < len(names):
        lines.append(Text(f"and {len(names) - len(shown)} more", style="dim"))
    return lines


def _metrics(history: History, width: int, room: int, blocks: str) -> list[Text]:
    """Return all other metrics in columns, the most telling first; those that do not fit are left out."""
    names = metric_names(history)
    columns, most = max(1, min(2, width // CELL), width // WIDE_CELL), max(1, width // CELL)
    while columns < most and columns * room < len(names):
        columns += 1
    cell = width // columns
    count = min(room, -(-len(names) // columns))
    left_out = len(names) - count * columns
    if left_out > 0 and count > 1:
        count, left_out = count - 1, len(names) - (count - 1) * columns
    lines = []
    for row in range(count):
        cells = [names[row + k * count] for k in range(columns) if row + k * count < len(names)]
        lines.append(Text.assemble(*(_cell(name, history.get(name), cell, blocks) for name in cells)))
    if left_out > 0:
        lines.append(Text(f"and {left_out} more in metrics.jsonl", style="dim"))
    return lines


def metric_names(history: History) -> list[str]:
    """Return the metrics of the third part, the most telling first."""
    players = {f"{player}/{key}" for player in player_names(history) for key in PLAYER_COLUMNS}
    taken = {*headline_names(history), *COUNTERS, *HIDDEN, *players}
    names = [
        name
        for name in history.names()
        if name not in taken
        and not name.startswith(("time/", "eval/episode_return_"))
        and not (name.startswith("held_out/") and name.count("/") > 1)  # baselines
    ]
    return sorted(names, key=_rank)


def _rank(name: str) -> tuple[bool, bool, int]:
    place = next((k for k, word in enumerate(ORDER) if word in name), len(ORDER))
    return name.startswith(("eval/", "replayed/")), "/" in name and not name.startswith("held_out/"), place


def _cell(name: str, curve: Curve | None, width: int, blocks: str) -> Text:
    assert curve is not None
    spark = min(24, max(6, width // 5))
    room = width - spark - 12  # for the name
    shown = printable(name)
    shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
    drawn = sparkline(curve.points(), spark, blocks)
    return Text.assemble(
        (f"{shown:<{room}}", "dim"), f"{short_number(curve.newest):>9} ", (f"{drawn:<{spark}}  ", "cyan")
    )


def _phases(view: ScreenView, width: int) -> Text:
    line = Text("time  ", style="dim")
    for name, share in sorted(view.phases.items(), key=lambda phase: -phase[1]):
        if share >= 0.005 and line.cell_len + len(name) + 6 <= width:
            line.append(f"{printable(name)} {share:.0%}  ", style="")
    return line


def _warnings(warnings: Sequence[str], width: int, room: int) -> list[Text]:
    """Return the newest warnings, each on some lines; those before them are counted."""
    lines: list[Text] = []
    for number, text in enumerate(reversed(warnings)):
        wrapped = textwrap.wrap(printable(text), max(10, width - 2), max_lines=MAX_WARNING_LINES, placeholder=" ...")
        rest = len(warnings) - number
        if len(lines) + len(wrapped) + (rest > 1) > room and (lines or room < len(wrapped)):
            if len(lines) < room and lines:
                more = f"! and {rest} more: see the report"
                return [*lines, Text(more, style="yellow")]
            return lines or [Text(f"! {wrapped[0]}", style="yellow")]
        lines += [Text(f"{'!' if k == 0 else ' '} {line}", style="yellow") for k, line in enumerate(wrapped)]
    return lines
