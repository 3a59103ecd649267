"""A paper estimate of a recipe's speed on a GPU: from counts on the emulated device, and assumptions about a card.

    host      launches x time per launch + copies x time per copy
    device    operations of products / (share x peak) + bytes of kernels / (share x bandwidth)
    a unit    max(host, device), and for a group step the way of the actions back to the host

Launches and copies do not depend on the batch; operations and bytes are counted on small batches with the recipe's own
network and horizon, and scaled by the sizes of its plan. The world's own time is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import lcm
from typing import Any

import torch

from millpond.bench.emulated import EmulatedRun, count_run
from millpond.bench.gpu.hardware import ReportEffort, measure_launches
from millpond.bench.run import KindBench, PlannedWork
from millpond.config import load
from millpond.config.check import flatten
from millpond.devices.emulated import register
from millpond.formatting import sentence, table
from millpond.kinds import KINDS
from millpond.planner import Planned, plan

SHARE = 0.5  # of a card's peak that products and kernels reach
DRIVER = 3.0  # microseconds that the driver takes to launch, besides torch's own time
COPY = 8.0  # microseconds of the host to start a copy
RETURN = 15.0  # microseconds until the host sees what it has waited for


@dataclass(frozen=True)
class Card:
    """Peak rates of a card, from its data sheet."""

    name: str
    products: float  # operations per second of float32 products; TF32 where the card has it
    memory: float  # bytes per second


CARDS = (
    Card("T4", 8.1e12, 320e9),
    Card("RTX 4090", 82.6e12, 1_008e9),
    Card("A100", 156e12, 1_555e9),
    Card("H100", 494e12, 3_350e9),
)


@dataclass(frozen=True)
class UnitEstimate:
    """Milliseconds of one unit of work."""

    launches: float
    host: float
    device: float
    total: float
    per_iteration: float  # how many of it an iteration has; 0 if that is not known


def estimate(
    card: Card, run: EmulatedRun, sizes: Mapping[str, tuple[float, float, float]], launch: float
) -> dict[str, Any]:
    """Return the units of a recipe on a card. `sizes`: items of a unit in `run`, items of the recipe, units per iteration."""
    units = {}
    for name, unit in run.units.items():
        if name not in sizes or not unit.count:
            continue
        counted, wanted, times = sizes[name]
        each, work = run.per_unit(name), run.counts.work(unit.phase)
        copies = each["upload"] + each["blocking upload"] + each["download"]
        host = each["launch"] * launch + copies * COPY + each["sync"] * RETURN
        scale = wanted / counted / unit.count
        device = 1e6 * scale * (work["operations"] / (SHARE * card.products) + work["bytes"] / (SHARE * card.memory))
        total = max(host, device) + (RETURN if each["download"] else 0.0)
        units[name] = UnitEstimate(each["launch"], host / 1e3, device / 1e3, total / 1e3, times)
    seconds = sum(unit.total * unit.per_iteration for unit in units.values()) / 1e3
    return {"card": asdict(card), "units": {name: asdict(unit) for name, unit in units.items()}, "seconds": seconds}


def estimate_recipe(recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Count a recipe on the emulated device with its own network and horizon, and estimate it on all cards."""
    register()  # before torch first goes backward: it makes a queue per device then
    launch = host_microseconds() + DRIVER
    settings = [*overrides, *overrides_of(recipe, overrides)]
    run = count_run(recipe, settings, trust=True)
    own, small = planned_work(plan(recipe, overrides)), planned_work(plan(recipe, settings, preset="debug"))
    sizes = {name: (small.units[name][0], *wanted) for name, wanted in own.units.items()}
    cards = [estimate(card, run, sizes, launch) for card in CARDS]
    for found in cards:
        found["agent_steps_per_second"] = (
            own.agent_steps / found["seconds"] if own.agent_steps and found["seconds"] else None
        )
    assumptions = {
        "host_microseconds_per_launch": launch,
        "of which the driver (assumed)": DRIVER,
        "microseconds_per_copy": COPY,
        "microseconds_to_return": RETURN,
        "share_of_peak": SHARE,
    }
    return {"recipe": recipe, "assumptions": assumptions, "cards": cards}


def overrides_of(recipe: str, overrides: Sequence[str] = ()) -> list[str]:
    """Return overrides of the preset `debug` that give it the recipe's own network and horizon."""
    own, small = (flatten(load(recipe, overrides, preset).recipe) for preset in (None, "debug"))
    found = {key: value for key, value in own.items() if key.startswith("policy.") and small[key] != value}
    if "trainer.bptt_horizon" in own:
        horizon, before = own["trainer.bptt_horizon"], small["trainer.bptt_horizon"]
        found["trainer.bptt_horizon"] = horizon
        for key in ("trainer.batch_size", "trainer.minibatch_size"):
            found[key] = small[key] // before * horizon
        found["trainer.total_timesteps"] = lcm(found["trainer.batch_size"], found["trainer.minibatch_size"])
        found["trainer.max_minibatch_size"] = None
    return [f"{key}={'null' if value is None else value}" for key, value in found.items()]


def planned_work(planned: Planned) -> PlannedWork:
    """Return the work of an iteration (round) of a plan."""
    bench: KindBench = KINDS[planned.loaded.recipe.kind].bench.load()
    return bench.work(planned.plan)


def host_microseconds() -> float:
    """Return the time that torch takes on this host for a small operation, without a driver's share."""
    found = measure_launches(torch.device("cpu"), ReportEffort(launches=500))
    return max(found["in place"], found["to a new tensor"])


def show_estimate(found: Mapping[str, Any]) -> list[str]:
    """Return an estimate as text, with its assumptions."""
    rows = []
    for one in found["cards"]:
        speed = one["agent_steps_per_second"]
        each = "  ".join(f"{name} {unit['total']:.2f} ms" for name, unit in one["units"].items())
        rows.append((one["card"]["name"], each, "-" if speed is None else f"{speed:,.0f}"))
    assumed = found["assumptions"]
    launch = assumed["host_microseconds_per_launch"]
    note = (
        f"On paper: {launch:.1f} us of the host per launch ({DRIVER:.0f} of them the driver's, assumed), {COPY:.0f} us per "
        f"copy, {RETURN:.0f} us until actions are back, and {SHARE:.0%} of a card's peak, that of TF32 where there is one "
        "(trainer.matmul_precision=high). Without the time of the world, and without graphs, which save launches. No GPU has "
        "run this."
    )
    return [
        f"{found['recipe']}, estimated on paper",
        "",
        *table(("card", "each", "agent steps/s"), rows),
        "",
        *sentence(note),
    ]
