"""Compare the speed of acting and training with that of a plain policy, in one process.

    python benchmarks/policies.py [--threads 1 2] [--seconds 2] [--core lstm]

The plain one has a linear layer over the flat bytes and nn.LSTM, which cannot reset inside a row. Ours
embeds cells by kind and resets where episodes start. Observations are those of the grid environment (121 cells, 3 counts),
a quarter of whose cells are not empty. Both alternate, and the best of each counts, so that other load
disturbs both alike. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn

from hardware import processor
from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.network import with_compiled_parts
from millpond.policies import build_policy, count_parameters

SIDE, COUNTS, ACTIONS, HIDDEN, HORIZON = 11, 3, 5, 128, 64
OBSERVATION = ObservationSpec.packed(
    [("cells", "grid", (SIDE, SIDE), "uint8"), ("inventory", "vector", (COUNTS,), "uint8")]
)


class Plain(nn.Module):
    """A linear layer over bytes, nn.LSTM (or nn.GRU), two heads."""

    def __init__(self, core: str) -> None:
        super().__init__()
        self.encoder = nn.Linear(SIDE * SIDE + COUNTS, HIDDEN)
        self.core = (nn.LSTM if core == "lstm" else nn.GRU)(HIDDEN, HIDDEN)
        self.logits, self.values = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, 1)

    def forward(self, observation: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """observation [T, B, bytes]."""
        hidden, state = self.core(torch.relu(self.encoder(observation.float() / 255)), state)
        return self.logits(hidden), self.values(hidden).squeeze(-1), state


def best_of(functions: list[Callable[[], object]], seconds: float) -> list[float]:
    """Return the shortest time of each; they alternate for about `seconds` in total, at least three times."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


def observations(*lead: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(1, 7, (*lead, SIDE * SIDE), generator=generator, dtype=torch.uint8)
    cells *= torch.rand(cells.shape, generator=generator) < 0.25
    counts = torch.randint(0, 4, (*lead, COUNTS), generator=generator, dtype=torch.uint8)
    return torch.cat((cells, counts), -1)


def acting(core: str, batch: int, seconds: float) -> tuple[float, float]:
    """Return steps per second of our policy and of the plain one, acting."""
    policy, plain = build_policy(OBSERVATION, ActionSpec.discrete(ACTIONS), core=core), Plain(core)
    observation, generator = observations(batch), torch.Generator().manual_seed(0)
    state = policy.initial_state(batch)
    zeros = torch.zeros(1, batch, HIDDEN)
    plain_state = (zeros, zeros) if core == "lstm" else zeros

    actor = fast.actor(policy)
    actor.freeze_weights()

    def ours() -> None:
        actor.act(observation.numpy(), state, None, generator)

    def theirs() -> None:
        with torch.no_grad():
            logits, _, _ = plain(observation[None], plain_state)
            log_probs = logits[0].log_softmax(-1)
            action = torch.multinomial(log_probs.exp(), 1, generator=generator)
            log_probs.gather(-1, action)

    own, other = best_of([ours, theirs], seconds)
    return batch / own, batch / other


def learning(core: str, batch: int, seconds: float) -> tuple[float, float]:
    """Return steps per second of both, forward and backward over rows of 64 steps."""
    policy, plain = build_policy(OBSERVATION, ActionSpec.discrete(ACTIONS), core=core), Plain(core)
    network, observation = with_compiled_parts(policy, autocast=False), observations(batch, HORIZON)
    state = policy.initial_state(batch)
    reset = torch.rand(batch, HORIZON) < 0.01
    action = torch.randint(0, ACTIONS, (batch, HORIZON), dtype=torch.int32)
    zeros = torch.zeros(1, batch, HIDDEN)
    plain_state = (zeros, zeros) if core == "lstm" else zeros

    def ours() -> None:
        policy.zero_grad()
        out = network.unroll(observation, state, reset, action)
        (out.log_prob + out.value + out.entropy).mean().backward()

    def theirs() -> None:
        plain.zero_grad()
        logits, value, _ = plain(observation.transpose(0, 1), plain_state)
        log_probs = logits.log_softmax(-1)
        log_prob = log_probs.gather(-1, action.t().long().unsqueeze(-1)).squeeze(-1)
        (log_prob + value - (log_probs.exp() * log_probs).sum(-1)).mean().backward()

    own, other = best_of([ours, theirs], seconds)
    return batch * HORIZON / own, batch * HORIZON / other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    parser.add_argument("--core", choices=["lstm", "gru"], default="lstm")
    options = parser.parse_args()
    size = count_parameters(build_policy(OBSERVATION, ActionSpec.discrete(ACTIONS), core=options.core))
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{processor()} ({capability}), torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    print(f"{options.core} {HIDDEN}, observations of {OBSERVATION.nbytes} bytes, {size:,} parameters")
    print(f"{'':34}{'ours':>12}{'plain':>12}{'ratio':>8}   steps/s")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for batch in (192, 4_080):
            own, other = acting(options.core, batch, options.seconds)
            print(f"act     {threads} thread(s), batch {batch:<8}{own:>12,.0f}{other:>12,.0f}{own / other:>8.2f}")
        for batch in (192, 768):
            own, other = learning(options.core, batch, options.seconds)
            print(f"unroll  {threads} thread(s), 64 x {batch:<9}{own:>12,.0f}{other:>12,.0f}{own / other:>8.2f}")


if __name__ == "__main__":
    main()
