"""Rules for several ranks: all sizes are totals, and every rank gets the same share of each."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any

from millpond.config.mixture import SINGLE
from millpond.config.ppo import (
    BATCH,
    ENVS,
    GROUPS,
    HORIZON,
    LARGEST,
    MINIBATCH,
    TARGET,
    WORKERS,
    batch_fixes,
    batch_size,
    batch_step,
)
from millpond.config.rules import Rule, Values, Violation
from millpond.sizes import divisors, nearest_divisors, nearest_multiples

THREADS = "vector.threads"
BIG_BATCH = "dqn.batch_size"


def rank_rules(ranks: int) -> Rule:
    """Return the rules of kind `ppo` for this many ranks, as one rule. The recipe itself must be valid."""

    def rule(values: Values) -> Iterator[Violation]:
        yield from _device(values, ranks)
        yield from _workers(values, ranks)
        yield from _rows(values, ranks)
        if values["ppo.reward_model"] is not None:
            yield Violation(
                ("ppo.reward_model",),
                f"ppo.reward_model={values['ppo.reward_model']} is learned by one process, and there are {ranks} ranks; start "
                "it without torchrun",
                ({"ppo.reward_model": None},),
            )

    return rule


def mixture_rank_rules(ranks: int) -> Rule:
    """Return the rules of kind `mixture`: agents are divided among the ranks; sizes of one agent stay unchanged."""

    def rule(values: Values) -> Iterator[Violation]:
        yield from _device(values, ranks)
        yield from _agents_and_batch(values, ranks)

    return rule


def _agents_and_batch(values: Values, ranks: int) -> Iterator[Violation]:
    mode, agents, batch = values["mixture.mode"], values["mixture.agents"], values[BIG_BATCH]
    if mode in SINGLE:
        yield Violation(
            ("mixture.mode",),
            f"mixture.mode={mode} trains one agent, which one process does and not {ranks} ranks; start it without "
            f"torchrun",
        )
    elif agents % ranks:
        fewer = "".join(f", or {count} ranks" for count in divisors(agents)[1:-1])
        yield Violation(
            ("mixture.agents",),
            f"mixture.agents={agents}, which {ranks} ranks cannot share equally; start one rank per agent{fewer}: "
            f"torchrun --nproc-per-node={agents} -m -- millpond train ...",
        )
    elif values["policy.core"] != "none":
        yield Violation(
            ("policy.core",),
            f"policy.core={values['policy.core']}: one process trains a mixture of agents with memory, not {ranks} ranks; "
            "start it without torchrun",
            ({"policy.core": "none"},),
        )
    elif values["dqn.priority_exponent"]:
        yield Violation(
            ("dqn.priority_exponent",),
            f"dqn.priority_exponent={values['dqn.priority_exponent']:g}: {ranks} ranks might not draw the same batches, since "
            f"their priorities are rounded differently; start it without torchrun",
            ({"dqn.priority_exponent": 0},),
        )
    elif batch % ranks:
        yield _share(BIG_BATCH, batch, ranks, tuple({BIG_BATCH: size} for size in nearest_multiples(batch, ranks)))


def _device(values: Values, ranks: int) -> Iterator[Violation]:
    device = values["device"]
    if device not in ("cpu", "cuda"):
        yield Violation(
            ("device",),
            f"device={device} is one device for {ranks} ranks; with device=cuda each rank uses the GPU of its number",
            ({"device": "cpu" if device == "mps" else "cuda"},),
        )


def _workers(values: Values, ranks: int) -> Iterator[Violation]:
    workers, groups, envs, threads = values[WORKERS], values[GROUPS], values[ENVS], values[THREADS]
    if workers % ranks:
        yield _share(WORKERS, workers, ranks, tuple({WORKERS: count} for count in nearest_multiples(workers, ranks)))
    elif envs is not None and values[TARGET] is None and envs % lcm(workers, groups * ranks):
        unit = lcm(workers, groups * ranks)
        fixes = tuple({ENVS: count} for count in nearest_multiples(envs, unit))
        yield Violation(
            (ENVS, WORKERS, GROUPS),
            f"{ENVS}={envs:,} does not give each of {ranks} ranks whole workers and {GROUPS}={groups:,} equal groups",
            fixes,
        )
    if threads is not None and threads % ranks:
        yield _share(THREADS, threads, ranks, tuple({THREADS: count} for count in nearest_multiples(threads, ranks)))


def _rows(values: Values, ranks: int) -> Iterator[Violation]:
    batch, minibatch, largest, horizon = batch_size(values), values[MINIBATCH], values[LARGEST], values[HORIZON]
    unit, rows = horizon * ranks, f" in whole rows of {HORIZON}={horizon:,} steps"
    if batch is None:
        return
    if batch % unit:
        if values[BATCH] == "auto":  # one round of all envs, which divides if the envs do
            return
        step = batch_step(values)
        fixes = tuple(batch_fixes(batch, lcm(step, unit), minibatch, unit)) if step is not None else ()
        yield _share(BATCH, batch, ranks, fixes, rows)
    elif minibatch % unit:
        near = nearest_divisors(minibatch, batch, unit)
        yield _share(
            MINIBATCH,
            minibatch,
            ranks,
            tuple({MINIBATCH: size} for size in near),
            f" in whole rows of {HORIZON}={horizon:,} steps",
        )
    elif largest is not None and largest < minibatch and largest % unit:
        near = nearest_divisors(largest, minibatch, unit)
        yield _share(
            LARGEST,
            largest,
            ranks,
            tuple({LARGEST: size} for size in near),
            f" in whole rows of {HORIZON}={horizon:,} steps",
        )


def _share(key: str, value: int, ranks: int, fixes: tuple[dict[str, Any], ...], how: str = "") -> Violation:
    return Violation((key,), f"{key}={value:,} is a total that {ranks} ranks cannot share equally{how}", fixes)
