"""Acting without torch in between: what it gives is what the policy gives in plain torch, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import Policy, build_policy
from millpond.threads import torch_threads

BATCH, HIDDEN = 70, 16  # enough for two threads
VECTOR = ObservationSpec.single((4,), "float32", "vector")
TOKENS = ObservationSpec.single((16, 3), "uint8", "tokens")
GRID = ObservationSpec.packed([("cells", "grid", (5, 5), "uint8"), ("inventory", "vector", (3,), "uint8")])


class Plain(Policy):
    """Acts in its own way, as far as anybody can see, and so step by step."""

    def act(self, *arguments: Any, **named: Any) -> Any:
        return super().act(*arguments, **named)


def plain(policy: Policy) -> Plain:
    made = Plain(policy.encoder, policy.core, policy.head, HIDDEN)  # type: ignore[arg-type]
    made.output.load_state_dict(policy.output.state_dict())
    return made


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("action", [ActionSpec.discrete(5), ActionSpec.multidiscrete((3, 2))])
@pytest.mark.parametrize("spec", [VECTOR, GRID, TOKENS], ids=["vector", "grid", "tokens"])
def test_it_acts_as_plain_torch_does(
    spec: ObservationSpec, action: ActionSpec, masked: bool, threads: int, settled: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    policy = build_policy(spec, action, hidden_size=HIDDEN, generator=draw)
    with torch.no_grad():
        policy.output.weight.mul_(30.0)  # far from uniform
    reference = plain(policy)
    assert reference.compiled_actor() is None
    actor = policy.compiled_actor()
    assert actor is not None
    if settled:
        actor.settle()
    state = torch.randn(BATCH, 2, HIDDEN, generator=draw)
    carried = state.numpy().copy()
    for step in range(3):
        observation = torch.randn(BATCH, 4, generator=draw)
        if spec is not VECTOR:
            observation = torch.randint(0, 9, (BATCH, *spec.shape), generator=draw, dtype=torch.uint8)
        mask = torch.rand(BATCH, sum(action.sizes), generator=draw) < 0.7 if masked else None
        with torch_threads(threads), torch.inference_mode():
            wanted = reference.act(observation, state, action_mask=mask, generator=torch.Generator().manual_seed(step))
            found = actor.act(
                observation.numpy(),
                carried,
                carried,
                None if mask is None else mask.numpy(),
                torch.Generator().manual_seed(step),
            )
            through = policy.act(observation, state, action_mask=mask, generator=torch.Generator().manual_seed(step))
        assert np.array_equal(found.action, wanted.action.numpy())
        assert torch.equal(through.action, wanted.action)
        for ours, theirs in ((found.log_prob, wanted.log_prob), (found.value, wanted.value), (carried, wanted.state)):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=2e-6)
        if settled:  # other products, in another order
            torch.testing.assert_close(through.state, torch.from_numpy(carried), rtol=1e-5, atol=2e-6)
        else:
            assert torch.equal(through.state, torch.from_numpy(carried))
        state = wanted.state.clone()
        carried[:] = state.numpy()


def test_it_follows_weights_that_change_in_place() -> None:
    policy = build_policy(VECTOR, ActionSpec.discrete(3), hidden_size=HIDDEN)
    actor, seen, state = policy.compiled_actor(), np.ones((2, 4), np.float32), np.zeros((2, 2, HIDDEN), np.float32)
    assert actor is not None
    before = actor.act(seen, state, np.empty_like(state), None, None).value.copy()
    with torch.no_grad():
        policy.output.bias.add_(1.0)
    after = actor.act(seen, state, np.empty_like(state), None, None).value
    np.testing.assert_allclose(after, before + 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("core", "action"), [("gru", ActionSpec.discrete(3)), ("lstm", ActionSpec.continuous((-1.0,), (1.0,)))]
)
def test_others_act_in_torch(core: Any, action: ActionSpec) -> None:
    assert build_policy(VECTOR, action, core=core, hidden_size=HIDDEN).compiled_actor() is None


def test_autocast_acts_in_torch() -> None:
    policy = build_policy(VECTOR, ActionSpec.discrete(3), hidden_size=HIDDEN)
    assert policy.compiled_actor() is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert policy.compiled_actor() is None
