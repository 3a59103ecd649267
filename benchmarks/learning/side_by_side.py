"""Compare four PQN agents side by side with one: CPU time per agent's frame of collecting and learning.

    python benchmarks/learning/side_by_side.py [cartpole breakout ...] [--agents 4] [--rounds 5] [--threads 1]

`looped` takes one agent after the other, `batched` all in one operation per layer (plain vectors only). A ratio of 1 means
that a frame costs as much as with a single agent; below 1 it is cheaper. The last table shows why images are looped: forward
and backward of one minibatch of every agent, looped and through torch.func.vmap. CPU time of one thread is
compared, so that other load disturbs it little; the variants alternate, and the best of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from pqn import make_group, setting
from torch.func import functional_call, stack_module_state, vmap

from millpond.learners import AgentGroup


def fastest(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return CPU seconds of each, the best of `rounds` alternating rounds."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.process_time()
            function()
            best[name] = min(best[name], time.process_time() - start)
    return best


def group_of(name: str, agents: int, batched: bool | None) -> AgentGroup:
    env, config, hidden_size = setting(name)
    return make_group(env, config, hidden_size, list(range(1, agents + 1)), 1_000, batched)


def compare_groups(name: str, agents: int, rounds: int) -> None:
    groups = {"one agent": group_of(name, 1, None), f"{agents} looped": group_of(name, agents, False)}
    if groups["one agent"].networks[0].encoder.kinds == {"vector"}:
        groups[f"{agents} batched"] = group_of(name, agents, True)
    calls = {}
    for variant, group in groups.items():
        calls[f"{variant}, collect"] = group.collect
        calls[f"{variant}, learn"] = group.learn
    taken = fastest(calls, rounds)
    print(f"{name}: microseconds of CPU time for a frame of one agent (ratio to one agent)")
    frames = groups["one agent"].env_steps_per_collection
    single = taken["one agent, collect"] + taken["one agent, learn"]
    for variant, group in groups.items():
        collect, learn = (taken[f"{variant}, {phase}"] / group.agents / frames * 1e6 for phase in ("collect", "learn"))
        ratio = (collect + learn) / (single / frames * 1e6)
        print(
            f"  {variant:<12} collect {collect:6.1f}   learn {learn:6.1f}   both {collect + learn:6.1f}   ({ratio:.2f})"
        )


def compare_vmap(name: str, agents: int, rounds: int) -> None:
    """Compare looped and vmapped forward and backward of one minibatch of every agent."""
    group = group_of(name, agents, None)
    config, networks = group.config, group.networks
    size = config.num_envs * config.num_steps // config.num_minibatches
    group.collect()
    observations = group.storage.observation.flatten(1, 2)[:, :size]
    stacked, buffers = stack_module_state(networks)  # type: ignore[arg-type]

    def looped() -> None:
        for agent, network in enumerate(networks):
            group.parameters.backward(network(observations[agent]).square().mean(), agent)

    def vmapped() -> None:
        def one(parameters: dict[str, torch.Tensor], own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(networks[0], (parameters, own), (x,))

        loss = vmap(one)(stacked, buffers, observations).square().mean((1, 2)).sum()
        torch.autograd.grad(loss, list(stacked.values()))

    taken = fastest({"looped": looped, "vmap": vmapped}, rounds * 4)
    ratio = taken["vmap"] / taken["looped"]
    print(
        f"{name}, {agents} minibatches of {size}: looped {taken['looped'] * 1e3:.2f} ms, "
        f"vmap {taken['vmap'] * 1e3:.2f} ms ({ratio:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["cartpole", "breakout"])
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.names:
        compare_groups(name, arguments.agents, arguments.rounds)
    for name in arguments.names:
        compare_vmap(name, arguments.agents, arguments.rounds)


if __name__ == "__main__":
    main()
