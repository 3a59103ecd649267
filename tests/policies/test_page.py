"""The custom policy of docs/policies.md works as described there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import load_policy_factory

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_custom_policy_of_the_docs_acts_and_unrolls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "page_policies.py").write_text(blocks[-1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    build = load_policy_factory("page_policies:build_policy")
    policy = build(ObservationSpec.single((4,), "float32", "vector"), ActionSpec.discrete(3), core="none")
    monkeypatch.delitem(sys.modules, "page_policies")
    seen, state = torch.randn(5, 7, 4), policy.initial_state(5, "cpu")  # type: ignore[operator]
    acted = [policy.act(seen[:, t], state, generator=torch.Generator()) for t in range(7)]  # type: ignore[operator]
    action = torch.stack([one.action for one in acted], 1)
    unrolled = policy.unroll(seen, state, torch.zeros(5, 7, dtype=torch.bool), action)  # type: ignore[operator]
    torch.testing.assert_close(unrolled.log_prob, torch.stack([one.log_prob for one in acted], 1), rtol=0, atol=1e-5)
    torch.testing.assert_close(unrolled.value[:, 0], policy.value(seen[:, 0], state))  # type: ignore[operator]
    assert torch.equal(policy.act(seen[:, 0], state, deterministic=True).state, state)  # type: ignore[operator]
