"""The network of Q-learning: the encoder that policies have, LayerNorm behind each layer, and one number an action.

N observations  H hidden
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.learners.errors import LearnerError
from millpond.learners.flat_parameters import FlatParameters
from millpond.policies.encoder import EncoderKind, ObservationEncoder
from millpond.policies.policy import Act
from millpond.policies.vector import VectorEncoder


class QNetwork(nn.Module):
    """Q(s, a) of every action at once. It acts like a policy, so that whatever plays a policy can play it.

    Behind an encoder without convolutions comes one more hidden layer, as for PQN on plain vectors.
    """

    def __init__(
        self, encoder: ObservationEncoder, observation_shape: tuple[int, ...], actions: int, hidden_size: int
    ) -> None:
        super().__init__()
        self.observation_shape, self.actions = observation_shape, actions
        self.encoder = encoder
        self.hidden: nn.Module = nn.Identity()
        if "pixels" not in encoder.kinds:
            self.hidden = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.LayerNorm(hidden_size), nn.ReLU())
        self.output = nn.Linear(hidden_size, actions)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal, as policies are; the values begin small."""
        self.encoder.reset_parameters(generator)
        if isinstance(self.hidden, nn.Sequential):
            linear = self.hidden[0]
            assert isinstance(linear, nn.Linear)
            nn.init.orthogonal_(linear.weight, 2**0.5, generator=generator)
            nn.init.zeros_(linear.bias)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.output.weight, 0.1, generator=generator)
        nn.init.zeros_(self.output.bias)

    def forward(self, observation: Tensor) -> Tensor:
        """observation [N, *obs] -> Q [N, actions]."""
        q: Tensor = self.output(self.hidden(self.encoder(observation)))
        return q

    # -- as a policy

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """It remembers nothing: [B, 0, 0]."""
        return torch.zeros(batch, 0, 0, device=device)

    @torch.no_grad()
    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = True,
    ) -> Act:
        """The greedy action, always; whoever explores draws the other actions himself (`epsilon_greedy`)."""
        q = self(observation)
        if action_mask is not None:
            q = q.masked_fill(~action_mask, torch.finfo(q.dtype).min)
        value, action = q.max(-1)
        return Act(action.int(), torch.zeros_like(value), value, state)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """The largest Q [B]."""
        largest: Tensor = self(observation).amax(-1)
        return largest


def build_q_network(
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    encoder: EncoderKind = "auto",
    hidden_size: int = 128,
    normalize_observations: bool = False,
    cell_kinds: int = 16,
    generator: torch.Generator | None = None,
) -> QNetwork:
    """The Q-network for an environment. Its weights are drawn from `generator` (torch's default one without)."""
    if action.kind != "discrete":
        raise LearnerError(
            f"Q-learning chooses one of some actions, but this environment's are {action.kind}; "
            "take an environment with discrete actions, or train it with ppo (or sac, where they are continuous)"
        )
    if normalize_observations:
        raise LearnerError(
            "policy.normalize_observations=true, but Q-networks normalise behind each layer (LayerNorm) and keep no "
            "running statistics; set it to false"
        )
    if hidden_size < 1:
        raise LearnerError(f"policy.hidden_size={hidden_size} must be at least 1")
    reader = ObservationEncoder(observation, hidden_size, encoder, False, cell_kinds, layer_norm=True)
    network = QNetwork(reader, observation.shape, action.sizes[0], hidden_size)
    network.reset_parameters(generator)
    return network


def check_env_batch(spec: EnvSpec) -> None:
    """That PQN and DQN can play it."""
    if spec.num_agents != 1:
        raise LearnerError(f"{spec.id} has {spec.num_agents} agents an env; PQN and DQN act for one: env.num_agents=1")
    if spec.action_masks:
        raise LearnerError(f"{spec.id} forbids actions by masks, which PQN and DQN do not know; train it with ppo")


# -- Q of several equal networks: in one operation a layer for all of them, or one network after the other.
#
# One operation for all saves the fixed cost of an operation, which is what small networks on plain vectors spend their
# time with. Convolutions and tables of grids and tokens are busy with numbers instead, and gain nothing
# (benchmarks/learning/side_by_side.py).
#
# a networks of a unit   N observations of each   H hidden


class SideBySide:
    """`units` are the slices of networks that are asked together: all of them, or each for itself."""

    def __init__(self, networks: Sequence[QNetwork], parameters: FlatParameters, batched: bool | None) -> None:
        self.networks, self.parameters = list(networks), parameters
        can = set(networks[0].encoder.kinds) == {"vector"}
        if batched and not can:
            kinds = ", ".join(sorted(networks[0].encoder.kinds))
            raise LearnerError(f"batched=True is for plain vectors; these observations are read as {kinds}")
        self.batched = can and len(networks) > 1 if batched is None else batched
        if self.batched:
            self.units = [slice(0, len(networks))]
            self.stacked = parameters.stacked()
        else:
            self.units = [slice(agent, agent + 1) for agent in range(len(networks))]

    def __call__(self, unit: slice, observation: Tensor) -> Tensor:
        """observation [a, N, *obs] -> Q [a, N, actions]."""
        if not self.batched:
            q: Tensor = self.networks[unit.start](observation[0])
            return q.unsqueeze(0)
        return self._all(observation)

    def backward(self, loss: Tensor) -> None:
        """From the losses [a] of one unit to the gradients of its networks."""
        if self.batched:
            self.parameters.put_gradients(torch.autograd.grad(loss.sum(), list(self.stacked.values())))
        else:
            loss.sum().backward()  # type: ignore[no-untyped-call]

    def _all(self, observation: Tensor) -> Tensor:
        """The layers of `QNetwork` on plain vectors, for all networks at once."""
        one, (agents, count) = self.networks[0], observation.shape[:2]
        hidden = self.stacked["encoder.bias"].unsqueeze(1)
        for part, (reader, encoder) in enumerate(zip(one.encoder.readers, one.encoder.encoders, strict=True)):
            assert isinstance(encoder, VectorEncoder)
            numbers = encoder.scaled(reader(observation.flatten(0, 1))).view(agents, count, -1)
            weight = self.stacked[f"encoder.encoders.{part}.linear.weight"]
            hidden = torch.baddbmm(hidden, numbers, weight.transpose(1, 2))
        hidden = self._norm("encoder.norm", hidden).relu_()
        if isinstance(one.hidden, nn.Sequential):
            hidden = self._norm("hidden.1", self._linear("hidden.0", hidden)).relu_()
        return self._linear("output", hidden)

    def _linear(self, name: str, numbers: Tensor) -> Tensor:
        weight, bias = self.stacked[f"{name}.weight"], self.stacked[f"{name}.bias"]
        return torch.baddbmm(bias.unsqueeze(1), numbers, weight.transpose(1, 2))

    def _norm(self, name: str, numbers: Tensor) -> Tensor:
        weight, bias = self.stacked[f"{name}.weight"], self.stacked[f"{name}.bias"]
        normal = F.layer_norm(numbers, numbers.shape[-1:])
        return torch.addcmul(bias.unsqueeze(1), normal, weight.unsqueeze(1))
