"""Custom policies by dotted path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import Policy, PolicyError, build_policy, check_policy, load_policy_factory
from tests.support.parts_policy import Parts

OBSERVATION = ObservationSpec.single((4,), "float32", "vector")
ACTION = ActionSpec.discrete(2)


def nothing(observation: ObservationSpec, action: ActionSpec, **settings: object) -> str:
    return "a policy"


def unnormalised(observation: ObservationSpec, action: ActionSpec, **settings: object) -> nn.Module:
    policy = build_policy(observation, action)
    policy.update_normalizer = None  # type: ignore[assignment]
    return policy


def headless(observation: ObservationSpec, action: ActionSpec, **settings: object) -> nn.Module:
    module = nn.Linear(4, 2)
    module.act = print  # type: ignore[assignment]
    return module


number = 3


def test_built_in_policy_can_be_named_by_path() -> None:
    build = load_policy_factory("millpond.policies:build_policy")
    policy = build(OBSERVATION, ACTION, core="gru", hidden_size=8)
    assert policy.initial_state(3, "cpu").shape == (3, 1, 8)  # type: ignore[operator]


def test_custom_policy_is_imported_from_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from millpond.policies import build_policy\ndef small(observation, action, **settings):\n"
    (tmp_path / "my_policies.py").write_text(text + "    return build_policy(observation, action, hidden_size=5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = load_policy_factory("my_policies:small")(OBSERVATION, ACTION, hidden_size=128)
    monkeypatch.delitem(sys.modules, "my_policies")
    acted = policy.act(torch.zeros(2, 4), policy.initial_state(2, "cpu"))  # type: ignore[operator]
    assert acted.state.shape == (2, 2, 5)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("build_policy", "must be written package.module:name"),
        ("no_such_package.here:build", "there is no module 'no_such_package'; it must be on the Python path"),
        ("millpond.policies:build", "module millpond.policies has no 'build'"),
        (f"{__name__}:number", "is a int, not a function"),
        (f"{__name__}:nothing", "returned a str; it must be a torch.nn.Module"),
        (f"{__name__}:headless", "a Linear without initial_state, value, unroll; .*docs/policies.md"),
    ],
)
def test_wrong_path_is_an_error_with_its_reason(path: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_policy_factory(path)(OBSERVATION, ACTION)


def test_custom_policy_without_a_normalizer_cannot_normalise() -> None:
    build = load_policy_factory(f"{__name__}:unnormalised")
    build(OBSERVATION, ACTION)
    with pytest.raises(PolicyError, match="has no update_normalizer"):
        build(OBSERVATION, ACTION, normalize_observations=True)


def test_custom_policy_gets_the_parts_of_an_observation() -> None:
    spec = ObservationSpec.packed([("kind", "vector", (3,), "uint8"), ("speed", "vector", (1,), "float32")])
    policy: Any = load_policy_factory("tests.support.parts_policy:build_policy")(spec, ACTION)
    stored = torch.zeros(5, 6, *spec.shape, dtype=torch.uint8)
    state, action = policy.initial_state(5), torch.zeros(5, 6, dtype=torch.int32)
    policy.act(stored[:, 0], state)
    policy.act(stored[:1, 0], state[:1], deterministic=True)
    policy.value(stored[:, 0], state)
    policy.update_normalizer(stored[:, 0], None)
    unrolled = policy.unroll(stored, state, torch.zeros(5, 6, dtype=torch.bool), action)
    batches = [(5,), (1,), (5,), (5,), (5, 6)]
    assert policy.policy.observed == [
        {"kind": (torch.uint8, (*batch, 3)), "speed": (torch.float32, (*batch, 1))} for batch in batches
    ]
    unrolled.log_prob.sum().backward()
    assert policy.policy.layer.weight.grad is not None
    policy.value_trains_core = False
    assert policy.policy.value_trains_core is False


def test_built_in_policy_named_by_path_is_not_wrapped() -> None:
    spec = ObservationSpec.packed([("kind", "vector", (3,), "uint8"), ("speed", "vector", (1,), "float32")])
    assert type(load_policy_factory("millpond.policies:build_policy")(spec, ACTION)) is Policy


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "returned NoneType; it must be a float32 tensor of shape"),
        (torch.zeros(1, 2, 8), r"returned torch.float32 \(1, 2, 8\); it must be"),
        (torch.zeros(2, 8, dtype=torch.int64), "returned torch.int64"),
        (torch.ones(2, 8), "must be zeros"),
    ],
)
def test_state_that_rows_cannot_store_is_refused(state: Any, says: str) -> None:
    policy = Parts()
    policy.initial_state = lambda batch, device="cpu": state  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=says):
        check_policy(policy, "mine:build")
