"""Q-networks: the encoder of policies, LayerNorm after each layer, one value per action; and several of them at once.

A network may have memory, the LSTM or GRU of policies between encoder and output. Its state is part of what it acts on.

N observations   a networks evaluated together   T steps   B sequences   S state vectors (lstm 2, gru 1, none 0)   H hidden
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.learners.flat_parameters import FlatParameters
from millpond.policies.cores import GRU, LSTM
from millpond.policies.encoders.observation import EncoderKind, ObservationEncoder
from millpond.policies.encoders.vector import VectorEncoder
from millpond.policies.policy import Act, CoreKind

CORES: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}


class LearnerError(MillpondError):
    """A learner does not fit its environment, config or saved state."""


class QNetwork(nn.Module):
    """Q(s, a) of every action. It has the interface of a policy, so that evaluation and playing work with it.

    An encoder without convolutions is followed by one more hidden layer, as in PQN on plain vectors, or by the core.
    """

    def __init__(
        self,
        encoder: ObservationEncoder,
        observation_shape: tuple[int, ...],
        actions: int,
        hidden_size: int,
        core: LSTM | GRU | None = None,
        quantiles: int = 1,
    ) -> None:
        super().__init__()
        self.observation_shape, self.actions, self.hidden_size = observation_shape, actions, hidden_size
        self.quantiles = quantiles  # of the return of each action; Q is their mean
        self.encoder, self.core = encoder, core
        self.hidden: nn.Module = nn.Identity()
        if core is None and "pixels" not in encoder.kinds:
            self.hidden = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.LayerNorm(hidden_size), nn.ReLU())
        self.output = nn.Linear(hidden_size, actions * quantiles)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights, as for policies; the initial values are small."""
        self.encoder.reset_parameters(generator)
        if isinstance(self.hidden, nn.Sequential):
            linear = self.hidden[0]
            assert isinstance(linear, nn.Linear)
            nn.init.orthogonal_(linear.weight, 2**0.5, generator=generator)
            nn.init.zeros_(linear.bias)
        if self.core is not None:
            self.core.reset_parameters(generator)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.output.weight, 0.1, generator=generator)
        nn.init.zeros_(self.output.bias)

    def forward(self, observation: Tensor) -> Tensor:
        """observation [N, *obs] -> Q [N, actions]; with memory, at the start of an episode."""
        features = self.encoder(observation)
        if self.core is not None:
            features, _ = self.core.step(features, self.initial_state(len(features), features.device))
        q: Tensor = self.output(self.hidden(features))
        return q if self.quantiles == 1 else q.view(len(q), self.actions, self.quantiles).mean(-1)

    def of_quantiles(self, observation: Tensor) -> Tensor:
        """observation [N, *obs] -> quantiles of the return of each action [N, actions, quantiles]."""
        q: Tensor = self.output(self.hidden(self.encoder(observation)))
        return q.view(len(q), self.actions, self.quantiles)

    @torch.no_grad()
    def pull(self, other: QNetwork, weight: float = 1.0) -> None:
        """Move the parameters to those of another network, by this share of the way.

        One of the two may have quantiles: Q of a network with their mean weights is the mean of the quantiles.
        """
        theirs = dict(other.named_parameters())
        for name, own in self.named_parameters():
            value: Tensor = theirs[name]
            if name.startswith("output.") and other.quantiles > self.quantiles:
                value = value.view(self.actions, other.quantiles, *value.shape[1:]).mean(1)
            elif name.startswith("output.") and other.quantiles < self.quantiles:
                value = value.repeat_interleave(self.quantiles, 0)
            own.lerp_(value, weight)

    def without_quantiles(self) -> QNetwork:
        """Return a network with the same Q, one output per action, which shares the other layers."""
        mean = QNetwork(self.encoder, self.observation_shape, self.actions, self.hidden_size)
        mean.hidden = self.hidden
        mean.to(self.output.weight.device)
        mean.pull(self)
        return mean

    # -- with memory

    @property
    def states(self) -> int:
        """Number of state vectors of an env; 0: no memory."""
        return 0 if self.core is None else self.core.states

    @torch.no_grad()
    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """observation [N, *obs], state [N, S, H] -> Q [N, actions], state after the step."""
        if self.core is None:
            return self(observation), state
        features, after = self.core.step(self.encoder(observation), state)
        return self.output(features), after

    @torch.no_grad()
    def play(self, observation: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """observation [T, B, *obs], state [B, S, H], reset [T, B] -> Q [T, B, actions], states after each step [T, B, S, H].

        Where `reset`, the state is zeroed before the step.
        """
        assert self.core is not None
        features = self.encoder(observation.flatten(0, 1)).unflatten(0, reset.shape)
        hidden, states = torch.empty_like(features), state.new_empty(*reset.shape, *state.shape[1:])
        for t in range(len(reset)):
            state = state.masked_fill(reset[t].view(-1, 1, 1), 0)
            hidden[t], state = self.core.step(features[t], state)
            states[t] = state
        return self.output(hidden), states

    def unroll(self, observation: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """Return Q [T, B, actions] of `play`, with gradients."""
        assert self.core is not None
        features = self.encoder(observation.flatten(0, 1)).unflatten(0, reset.shape)
        q: Tensor = self.output(self.core.unroll(features, state, reset))
        return q

    # -- as a policy

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return zeros [B, S, H]: the state at the start of an episode. Without memory it is empty, [B, 0, 0]."""
        return torch.zeros(batch, self.states, self.hidden_size if self.states else 0, device=device)

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
        q, after = self.step(observation, state)
        value, action = with_mask(q, action_mask).max(-1)
        return Act(action.int(), torch.zeros_like(value), value, after)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """Return the largest Q [B]."""
        return self.step(observation, state)[0].amax(-1)


def build_q_network(
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    encoder: EncoderKind = "auto",
    hidden_size: int = 128,
    core: CoreKind = "none",
    quantiles: int = 1,
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
    if core != "none" and core not in CORES:
        raise LearnerError(f"policy.core={core}: Q-networks have one of {', '.join(CORES)}, or none")
    reader = ObservationEncoder(observation, hidden_size, encoder, False, cell_kinds, layer_norm=True)
    if core != "none" and quantiles > 1:
        raise LearnerError(f"policy.core={core} with quantiles={quantiles}: quantiles are for networks without memory")
    memory = None if core == "none" else CORES[core](hidden_size)
    network = QNetwork(reader, observation.shape, action.sizes[0], hidden_size, memory, quantiles)
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
        only_vectors = set(networks[0].encoder.kinds) == {"vector"} and networks[0].core is None
        if batched and networks[0].core is not None:
            raise LearnerError("batched=True is for networks without memory; these have a core")
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
