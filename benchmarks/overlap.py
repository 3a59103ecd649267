"""Show that one group steps while the policy has the other: a timeline, and the speed-up over waiting for each.

    python benchmarks/overlap.py

A step of a group takes 5 ms and the policy's work on a batch takes 5 ms (both sleep, so that even one core shows it).
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from hardware import processor
from millpond.vector import Vector, group_name, make_vector
from timed_envs import SPEC, STEP_SECONDS, timed

POLICY_SECONDS = 0.005
TURNS = 100
SHOWN_MS = 64
Phase = tuple[str, float, float]  # group, began, ended


def run(vector: Vector, wait: bool) -> tuple[float, list[Phase], list[list[Phase]]]:
    """Return the median seconds per turn, and the timelines of the policy and of each worker.

    With `wait`, the policy does nothing until the group that was sent has stepped.
    """
    vector.reset(0)
    share = vector.num_envs // vector.groups // vector.num_workers
    policy: list[Phase] = []
    workers: list[list[Phase]] = [[] for _ in range(vector.num_workers)]
    moments = [time.monotonic()]
    for _ in range(TURNS):
        batch = vector.recv()
        name = group_name(batch.group)
        if batch.stepped:
            for worker, phases in enumerate(workers):
                began, ended = batch.observation[worker * share, 0]
                phases.append((name, float(began), float(ended)))
        began = time.monotonic()
        time.sleep(POLICY_SECONDS)
        policy.append((name, began, time.monotonic()))
        batch.action[...] = 0
        vector.send()
        if wait:
            vector.drain()
        moments.append(time.monotonic())
    return float(np.median(np.diff(moments))), policy, workers


def draw(title: str, phases: list[Phase], origin: float) -> None:
    """Print one character per millisecond: the group in work, or a dot."""
    line = np.full(SHOWN_MS, ".")
    for name, began, ended in phases:
        low, high = (round((moment - origin) * 1000) for moment in (began, ended))
        line[max(low, 0) : max(high, 0)] = name
    print(f"  {title:<9} {''.join(line)}")


def show(backend: Literal["threads", "processes"]) -> None:
    with make_vector(SPEC, timed, num_envs=64, groups=2, num_workers=2, threads=2, backend=backend) as vector:
        waiting, *timeline = run(vector, wait=True)
        print(f"{backend}, waiting for each group to step: {waiting * 1000:.2f} ms per turn")
        draw_all(*timeline)
        overlapped, *timeline = run(vector, wait=False)
        print(f"{backend}, one group steps while the policy has the other: {overlapped * 1000:.2f} ms per turn")
        draw_all(*timeline)
        best = (STEP_SECONDS + POLICY_SECONDS) / max(STEP_SECONDS, POLICY_SECONDS)
        print(f"{backend}: {waiting / overlapped:.2f} times as fast (at best {best:.2f})\n")


def draw_all(policy: list[Phase], workers: list[list[Phase]]) -> None:
    origin = policy[10][1]  # after the start
    draw("policy", policy, origin)
    for worker, phases in enumerate(workers):
        draw(f"worker {worker}", phases, origin)


if __name__ == "__main__":
    print(f"{processor()}; a character is a millisecond\n")
    show("processes")
    show("threads")
