"""Q-networks: the encoder of policies, LayerNorm after each layer, one value per action; and several of them at once.

N observations   a networks evaluated together
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.learners.flat_parameters import FlatParameters
from millpond.policies.encoders.observation import EncoderKind, ObservationEncoder
from millpond.policies.encoders.vector import VectorEncoder
from millpond.policies.policy import Act


class LearnerError(MillpondError):
    """A learner does not fit its environment, config or saved state."""


class QNetwork(nn.Module):
    """Q(s, a) of every action. It has the interface of a policy, so that evaluation and playing work with it.

    An encoder without convolutions is followed by one more hidden layer, as in PQN on plain vectors.
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
        """Draw orthogonal weights, as for policies; the initial values are small."""
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
        """Return an empty state [B, 0, 0]: the network is not recurrent."""
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
        """Return the greedy action; exploration is separate (`epsilon_greedy`)."""
        value, action = with_mask(self(observation), action_mask).max(-1)
        return Act(action.int(), torch.zeros_like(value), value, state)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """Return the largest Q [B]."""
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
    """Build the Q-network for an environment; `generator` draws its weights (None: torch's default generator)."""
    if action.kind != "discrete":
        raise LearnerError(
            f"Q-learning needs discrete actions, but this environment's are {action.kind}; "
            "use an environment with discrete actions, or train it with ppo (or with sac, if they are continuous)"
        )
    if normalize_observations:
        raise LearnerError(
            "policy.normalize_observations=true, but Q-networks normalise after each layer (LayerNorm) and keep no "
            "running statistics; set it to false"
        )
    if hidden_size < 1:
        raise LearnerError(f"policy.hidden_size={hidden_size} must be at least 1")
    reader = ObservationEncoder(observation, hidden_size, encoder, False, cell_kinds, layer_norm=True)
    network = QNetwork(reader, observation.shape, action.sizes[0], hidden_size)
    network.reset_parameters(generator)
    return network


def check_spec(spec: EnvSpec) -> None:
    """Refuse environments that PQN and DQN cannot play."""
    if spec.num_agents != 1:
        raise LearnerError(f"{spec.id} has {spec.num_agents} agents per env; PQN and DQN act for one: env.num_agents=1")


def with_mask(q: Tensor, mask: Tensor | None) -> Tensor:
    """Return Q [..., actions] in which actions that the mask [..., actions] forbids have the lowest finite number.

    A mask that allows nothing is one that is not known, and forbids nothing. None: there are no masks.
    """
    if mask is None:
        return q
    return q.masked_fill(~mask & mask.any(-1, keepdim=True), torch.finfo(q.dtype).min)


class StackedQNetworks:
    """Q of several equal networks: in one operation per layer for all of them, or one network after the other.

    One operation for all saves the fixed cost per operation, which dominates for small networks on plain vectors.
    Convolutions and embeddings of grids and tokens are bound by arithmetic, and gain nothing
    (benchmarks/learning/side_by_side.py). `slices`: networks that are evaluated together, all of them or each alone.
    """

    def __init__(self, networks: Sequence[QNetwork], parameters: FlatParameters, batched: bool | None) -> None:
        self.networks, self.parameters = list(networks), parameters
        only_vectors = set(networks[0].encoder.kinds) == {"vector"}
        if batched and not only_vectors:
            kinds = ", ".join(sorted(networks[0].encoder.kinds))
            raise LearnerError(f"batched=True is for plain vectors; these observations are read as {kinds}")
        self.batched = only_vectors and len(networks) > 1 if batched is None else batched
        if self.batched:
            self.slices = [slice(0, len(networks))]
            self.stacked = parameters.stacked()
        else:
            self.slices = [slice(agent, agent + 1) for agent in range(len(networks))]

    def __call__(self, which: slice, observation: Tensor) -> Tensor:
        """Return Q [a, N, actions] of one of `slices` for observation [a, N, *obs]."""
        if not self.batched:
            q: Tensor = self.networks[which.start](observation[0])
            return q.unsqueeze(0)
        return self._forward_all(observation)

    def backward(self, which: slice, loss: Tensor) -> None:
        """Compute the gradients of the networks of one of `slices` from their losses [a]."""
        if self.batched:
            self.parameters.put_gradients(torch.autograd.grad(loss.sum(), list(self.stacked.values())))
        else:
            self.parameters.backward(loss.sum(), which.start)

    def _forward_all(self, observation: Tensor) -> Tensor:
        """Apply the layers of `QNetwork` on plain vectors, for all networks at once."""
        one, (agents, count) = self.networks[0], observation.shape[:2]
        hidden = self.stacked["encoder.bias"].unsqueeze(1)
        for part, (reader, encoder) in enumerate(zip(one.encoder.readers, one.encoder.encoders, strict=True)):
            assert isinstance(encoder, VectorEncoder)
            inputs = encoder.scaled(reader(observation.flatten(0, 1))).view(agents, count, -1)
            weight = self.stacked[f"encoder.encoders.{part}.linear.weight"]
            hidden = torch.baddbmm(hidden, inputs, weight.transpose(1, 2))
        hidden = self._norm("encoder.norm", hidden).relu_()
        if isinstance(one.hidden, nn.Sequential):
            hidden = self._norm("hidden.1", self._linear("hidden.0", hidden)).relu_()
        return self._linear("output", hidden)

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        weight, bias = self.stacked[f"{name}.weight"], self.stacked[f"{name}.bias"]
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))

    def _norm(self, name: str, inputs: Tensor) -> Tensor:
        weight, bias = self.stacked[f"{name}.weight"], self.stacked[f"{name}.bias"]
        normalized = F.layer_norm(inputs, inputs.shape[-1:])
        return torch.addcmul(bias.unsqueeze(1), normalized, weight.unsqueeze(1))
