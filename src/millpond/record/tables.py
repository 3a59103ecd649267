"""Tables of records for logs."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.formatting import printable
from millpond.loop import Address
from millpond.record.jsonlines import Record
from millpond.record.recorder import COUNTERS


def cycle_rows(address: Address, sizes: Mapping[str, int | None], record: Record) -> dict[str, str]:
    """Return the rows of the table of a cycle: Epoch, Cycle, Episodes, Timesteps, TimeCost, then metrics.

    Timesteps are agent steps. The times are those of the phases `train` and `test` in the record.
    """
    rows = {
        level.capitalize(): f"{index}" if sizes.get(level) is None else f"{index}/{sizes[level]}"
        for level, index in address.items()
    }
    rows["Episodes"] = f"{record['episodes']:,}"
    rows["Timesteps"] = f"{record['agent_steps']:,}"
    for phase in ("train", "test"):
        rows[f"TimeCost(sec)/{phase}"] = f"{record.get(f'time/{phase}', 0.0):.2f}"
    metrics = {name: value for name, value in record.items() if name not in COUNTERS and not name.startswith("time/")}
    return rows | {name: show_number(value) for name, value in metrics.items()}


def show_table(rows: Mapping[str, str]) -> str:
    """Format two columns in a frame of ASCII characters, for log files."""
    rows = {printable(name): value for name, value in rows.items()}
    left = max(len(name) for name in rows)
    right = max(len(value) for value in rows.values())
    rule = f"+{'-' * (left + 2)}+{'-' * (right + 2)}+"
    return "\n".join([rule, *(f"| {name:<{left}} | {value:>{right}} |" for name, value in rows.items()), rule])


def show_number(value: float) -> str:
    """Format whole numbers with separators, others with five significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.5g}"
