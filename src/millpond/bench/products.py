"""The products of a network alone: its matrix products and convolutions in plain PyTorch, and nothing else.

The plain definition of an update (or of acting) runs once, and every product that torch computes in it, forward and backward,
is recorded with its sizes and memory layout. Timed are those products again, one after the other, on ready operands: without
environments, replay, activations, norms, losses, optimisers and Python around them. So the seconds do not depend on how fast
the code of a learner is; real seconds / products is what remains to be gained by computing the same with torch's products.

B transitions
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from millpond.bench.measure import Progress, Spread, timed
from millpond.learners import DQN, SAC, QNetwork
from millpond.learners.dqn import TransitionBatch, td_loss
from millpond.loop import LevelEnd
from millpond.policies import cores, mingru

aten = torch.ops.aten
PRODUCTS = (
    aten.mm, aten.addmm, aten.addmm_, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward,
)  # fmt: skip
# Operators of cores with memory, and the Python functions that they are defined by, in whose place torch sees no products.
DEFINITIONS: dict[Any, Callable[..., Any]] = {
    one._opoverload.overloadpacket: one._init_fn
    for one in (
        cores.lstm_unroll, cores.lstm_backward, cores.gru_unroll, cores.gru_backward,
        mingru.mingru_unroll, mingru.mingru_backward,
    )
}  # fmt: skip

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]  # shape, strides


class Products:
    """Products that were recorded. Operands of the same layout share memory, so that large networks fit, too."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self._operands: dict[Layout, Tensor] = {}

    @staticmethod
    def of(work: Callable[[], object]) -> Products:
        """Run `work`, plain PyTorch, and record its products."""
        products = Products()
        with _Recording(products):
            work()
        return products

    def add(self, product: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Add a call of a product, with other operands of the same layout."""
        self.calls.append(
            partial(
                product,
                *tree_map_only(Tensor, self._operand, arguments),
                **tree_map_only(Tensor, self._operand, options),
            )
        )

    def _operand(self, tensor: Tensor) -> Tensor:
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
        if layout not in self._operands:
            reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            memory = torch.randn(max(1, reach), device=tensor.device).to(tensor.dtype)
            self._operands[layout] = memory.as_strided(tensor.shape, tensor.stride())
        return self._operands[layout]

    def __call__(self) -> None:
        """Compute all products once."""
        with torch.no_grad():
            for call in self.calls:
                call()
        if any(layout[-1].type == "cuda" for layout in self._operands):  # it runs asynchronously
            torch.cuda.synchronize()


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, products: Products) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = products

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function.overloadpacket in PRODUCTS:
            self.products.add(function, args, options)
            return function(*args, **options)
        with self:  # what an operator consists of, where that is defined
            if function.overloadpacket in DEFINITIONS:
                return DEFINITIONS[function.overloadpacket](*args, **options)
            result = function.decompose(*args, **options)
        return function(*args, **options) if result is NotImplemented else result


@dataclass(frozen=True)
class Repeated:
    """Products that a phase of an iteration (round, cycle) computes `times` times; a few of them are timed."""

    phase: str
    products: Products
    times: float
    repeats: int

    def seconds(self) -> float:
        """Return the seconds of all of them."""

        def repeat() -> None:
            for _ in range(self.repeats):
                self.products()

        return timed(repeat) * self.times / self.repeats


@dataclass
class BetweenRounds:
    """Times the products at the end of each iteration (round, cycle), so that both run in the same minutes."""

    make: Callable[[], list[Repeated]]  # called after the first one, when there is data
    progress: Progress
    repeated: list[Repeated] = field(default_factory=list)
    by_phase: list[dict[str, float]] = field(default_factory=list)  # seconds of each time
    spent: list[float] = field(default_factory=list)  # seconds that measuring itself took

    def __call__(self, ended: LevelEnd) -> None:
        self.spent.append(timed(self._measure))

    def _measure(self) -> None:
        self.progress("products of the networks")
        if not self.repeated:
            self.repeated = self.make()
            for one in self.repeated:
                one.products()  # a warm-up
        seconds = dict.fromkeys((one.phase for one in self.repeated), 0.0)
        for one in self.repeated:
            seconds[one.phase] += one.seconds()
        self.by_phase.append(seconds)

    def summary(self) -> dict[str, Spread]:
        """Return the seconds of each phase, over all iterations but the first."""
        counted = self.by_phase[1:]
        return {name: Spread.of([one[name] for one in counted]) for name in counted[0]} if counted else {}


def q_acting(network: QNetwork, observation: Tensor) -> Products:
    """Return the products of choosing actions for observations [N, ...]."""
    plain = copy.deepcopy(network)
    with torch.no_grad():
        return Products.of(lambda: plain(observation))


def pqn_update(network: QNetwork, observation: Tensor) -> Products:
    """Return the products of one update of a PQN agent on observations [B, ...]."""
    plain = copy.deepcopy(network)
    return Products.of(lambda: plain(observation).square().mean().backward())


def dqn_update(dqn: DQN, batch: TransitionBatch) -> Products:
    """Return the products of one update of DQN."""
    online, target = copy.deepcopy(dqn.network), copy.deepcopy(dqn.target)
    now, following = (
        each.reshape(len(each), *online.observation_shape) for each in (batch.observation, batch.next_observation)
    )

    def update() -> None:
        with torch.no_grad():
            future = target(following)
            if dqn.config.double:
                online(following)
        td_loss(online(now) - future, dqn.config.loss).backward()  # type: ignore[no-untyped-call]

    return Products.of(update)


def sac_acting(sac: SAC, observation: Tensor) -> Products:
    """Return the products of choosing actions for observations [N, ...]."""
    actor = copy.deepcopy(sac.actor)
    with torch.no_grad():
        return Products.of(lambda: actor(observation))


def sac_update(sac: SAC, batch: TransitionBatch) -> Products:
    """Return the products of one update of SAC: targets, critics, actor."""
    actor = copy.deepcopy(sac.actor)
    critics = [copy.deepcopy(network) for network in sac.critics.networks]
    now, following = batch.observation.flatten(1), batch.next_observation.flatten(1)

    def q(observation: Tensor, action: Tensor) -> Tensor:
        pairs = torch.cat([observation, action], 1)
        return torch.stack([critic(pairs) for critic in critics])

    def update() -> None:
        with torch.no_grad():
            target = q(following, actor.sample(batch.next_observation, None)[0])
        (q(now, batch.action) - target).square().mean().backward()  # type: ignore[no-untyped-call]
        for critic in critics:
            critic.requires_grad_(False)  # the actor's loss needs gradients of their inputs only
        q(now, actor.sample(batch.observation, None)[0]).mean().backward()  # type: ignore[no-untyped-call]

    return Products.of(update)


def loss_update(network: nn.Module, loss: Callable[[], Tensor]) -> Products:
    """Return the products of a loss and its gradients; the gradients of `network` are removed again."""
    products = Products.of(lambda: loss().backward())  # type: ignore[no-untyped-call]
    network.zero_grad(set_to_none=True)
    return products
