"""Exported policies: the same numbers as the policy, in the environment's own format, without Millpond."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from torch import nn

import millpond
from millpond.envs.spaces import ActionLayout, ObservationLayout
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.learners.q_network import build_q_network
from millpond.learners.sac import SACActor
from millpond.policies import build_policy
from millpond.policies.parts import observation_parts
from millpond.policies.policy import Act
from millpond.trainers.common.export import ExportError, export_policy, read_description
from millpond.trainers.common.export.files import _plain_copy
from millpond.trainers.common.export.step import PolicyStep
from tests.support.ball_env import TINY, Ball
from tests.support.custom_envs import Teams
from tests.support.policy_inputs import cells_and_table, tokens_and_tables

onnxruntime = pytest.importorskip("onnxruntime")
REAL = onnxruntime.InferenceSession
BOX = gs.Box(-1, 1, (4,), np.float32)
DICT = gs.Dict(
    camera=gs.Box(0, 255, (40, 36), np.uint8),
    gear=gs.Discrete(3, start=-1),
    place=gs.Box(-9, 9, (2, 2), np.float64),
    rest=gs.Tuple((gs.MultiBinary(3), gs.Box(0, 9, (), np.int32), gs.MultiDiscrete([2, 4], start=[1, 0]))),
)
MOVES = gs.Dict(
    aim=gs.Box(-2, 2, (1, 2), np.float32),
    go=gs.Discrete(3, start=1),
    keys=gs.MultiBinary(2),
    turn=gs.MultiDiscrete([2, 3]),
)

# name -> observation, action, masks, settings of the policy
CASES: dict[str, tuple[Any, Any, bool, dict[str, Any]]] = {
    "vector, lstm, discrete": (BOX, gs.Discrete(3, start=2), False, {"core": "lstm"}),
    "vector, gru, box": (
        BOX,
        gs.Box(np.float32([-1, 0]), np.float32([1, 5])),
        False,
        {"core": "gru", "normalize_observations": True, "normalize_values": True, "separate_critic": True},
    ),
    "number, none, multidiscrete with masks": (gs.Discrete(5), gs.MultiDiscrete([2, 3]), True, {"core": "none"}),
    "image, lstm, discrete": (gs.Box(0, 255, (48, 40, 3), np.uint8), gs.Discrete(2), False, {"core": "lstm"}),
    "small image, none, discrete": (gs.Box(0, 255, (10, 10, 4), np.uint8), gs.Discrete(2), False, {"core": "none"}),
    "dict, gru, dict": (DICT, MOVES, False, {"core": "gru", "normalize_observations": True}),
    "vector, mingru, discrete": (BOX, gs.Discrete(3), False, {"core": "mingru"}),
    "dict, two layers of mingru, dict": (DICT, MOVES, False, {"core": "mingru", "num_layers": 2}),
    "vector, none, far box": (BOX, gs.Box(np.float32([-1e3]), np.float32([5e3])), False, {"core": "none"}),
    "grid, lstm, discrete": (
        ObservationSpec.single((5, 5), "uint8", "grid", high=7),
        ActionSpec.discrete(5),
        False,
        {"core": "lstm"},
    ),
    "tokens, none, multidiscrete": (
        ObservationSpec.single((20, 3), "uint8", "tokens", high=9),
        ActionSpec.multidiscrete((5, 2)),
        False,
        {"core": "none"},
    ),
}


class Case:
    """A policy with weights that are no longer those of the start, its spec and its layouts."""

    def __init__(self, observation: Any, action: Any, masks: bool, settings: dict[str, Any]) -> None:
        spaces = not isinstance(observation, ObservationSpec)
        self.observations = ObservationLayout(observation, "x") if spaces else None
        self.actions = ActionLayout(action, "x", clip=True) if spaces else None
        seen, done = (self.observations.spec, self.actions.spec) if spaces else (observation, action)
        self.spec = EnvSpec("x", seen, done, action_masks=masks)
        generator = torch.Generator().manual_seed(0)
        self.policy: Any = build_policy(seen, done, hidden_size=16, generator=generator, **settings)
        for parameter in self.policy.parameters():
            # In proportion, so that sums over thousands of pixels stay as large as those of a trained network: where they
            # reach hundreds, float32 itself differs by more than 1e-5 between two orders of adding.
            size = float(parameter.std(correction=0)) or 0.1
            parameter.data += 0.3 * size * torch.randn(parameter.shape, generator=generator)
        if settings.get("normalize_observations"):
            stored = torch.from_numpy(self.store(self.draw(64, np.random.default_rng(1), observation)))
            self.policy.update_normalizer(stored)
        if settings.get("normalize_values"):
            self.policy.update_value_scale(torch.linspace(5, 60, 9), torch.ones(9, dtype=torch.bool))
        self.observation_space = observation

    @staticmethod
    def draw(count: int, rng: np.random.Generator, space: Any) -> list[Any]:
        space.seed(int(rng.integers(1_000)))
        return [space.sample() for _ in range(count)]

    def store(self, values: list[Any]) -> Any:
        into = np.zeros((len(values), *self.spec.observation.shape), self.spec.observation.dtype)
        assert self.observations is not None
        for value, row in zip(values, into, strict=True):
            self.observations.write(value, row)
        return into

    def inputs(self, values: list[Any]) -> dict[str, torch.Tensor]:
        """Return the environment's own observations as a caller of an exported policy passes them."""
        assert self.observations is not None
        step = PolicyStep(self.policy, self.spec, self.observations, self.actions)
        result = {}
        for leaf, named in zip(self.observations.leaves, step.inputs, strict=False):
            parts = []
            for value in values:
                part = value
                for key in leaf.path:
                    part = part[key]
                parts.append(part)
            result[named.name] = torch.from_numpy(np.array(parts).astype(named.dtype))
        return result

    def export(self, path: Path) -> Path:
        return export_policy(
            self.policy, self.spec, path, observations=self.observations, actions=self.actions, about={"run": "tried"}
        )


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*CASES[request.param])


def run_onnx(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, {k: v.numpy() for k, v in inputs.items()}), strict=True))


def assert_same(got: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        found = torch.as_tensor(got[name])
        assert found.dtype == tensor.dtype, name
        torch.testing.assert_close(found, tensor, rtol=1e-5, atol=1e-5)


def test_a_step_in_the_formats_of_the_spaces_is_what_the_policy_does(case: Case) -> None:
    if case.observations is None or case.actions is None:
        pytest.skip("an environment without spaces")
    values = case.draw(5, np.random.default_rng(0), case.observation_space)
    step = PolicyStep(case.policy, case.spec, case.observations, case.actions)
    inputs = {**step.draw(5, torch.Generator().manual_seed(0)), **case.inputs(values)}
    state = inputs.get("state", case.policy.initial_state(5))
    mask = inputs.get("action_mask")
    with torch.no_grad():
        got = step(inputs)
    expected = case.policy.act(torch.from_numpy(case.store(values)), state, action_mask=mask, deterministic=True)
    torch.testing.assert_close(got["value"], expected.value)
    if step.has_state:
        torch.testing.assert_close(got["next_state"], expected.state)
    stored = expected.action.numpy().astype(case.spec.action.dtype)
    if case.spec.action.low:
        stored[:, len(case.spec.action.sizes) :] = np.clip(
            stored[:, len(case.spec.action.sizes) :], case.spec.action.low, case.spec.action.high
        )
    for row, action in enumerate(case.actions.read(one) for one in stored):
        for leaf, named in zip(case.actions.leaves, step.outputs(got), strict=False):
            wanted = action
            for key in leaf.path:
                wanted = wanted[key]
            np.testing.assert_allclose(got[named.name][row].numpy(), wanted, rtol=1e-6)


def test_plain_sums_of_grids_and_tokens_equal_the_usual_ones() -> None:
    from millpond.policies.encoders.grid import grid_sum, plain_grid_sum
    from millpond.policies.encoders.tokens import plain_token_sum, token_sum

    cells, tokens = cells_and_table(), tokens_and_tables()
    torch.testing.assert_close(plain_grid_sum(*cells), grid_sum(*cells), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain_token_sum(*tokens), token_sum(*tokens), rtol=1e-4, atol=1e-4)


def check_onnx(case: Case, path: Path) -> None:
    """Compare a written file with the policy over three steps, in batches of two sizes."""
    step = PolicyStep(_plain_copy(case.policy), case.spec, case.observations, case.actions)
    generator = torch.Generator().manual_seed(5)
    for batch in (1, 4):
        carried: dict[str, torch.Tensor] = {}
        for _ in range(3):
            inputs = step.draw(batch, generator) | carried
            with torch.no_grad():
                expected = step(inputs)
            assert_same(run_onnx(path, inputs), expected)
            carried = {"state": expected["next_state"]} if step.has_state else {}


def test_onnx_gives_what_the_policy_gives_and_describes_itself(tmp_path: Path) -> None:
    case = Case(*CASES["vector, lstm, discrete"])
    path = case.export(tmp_path / "policy.onnx")
    check_onnx(case, path)
    described = read_description(path)
    assert described["run"] == "tried"
    assert [one["name"] for one in described["inputs"]] == ["observation", "state"]
    assert described["inputs"][1]["shape"] == ["batch", 2, 16]
    assert described["outputs"][0] == {
        "name": "action", "dtype": "int64", "shape": ["batch"], "meaning": "Discrete(3, start=2)"
    }  # fmt: skip
    assert [one["name"] for one in described["outputs"]] == ["action", "value", "logits", "next_state"]


@pytest.mark.slow
def test_onnx_of_every_encoder_core_and_head(case: Case, tmp_path: Path) -> None:
    check_onnx(case, case.export(tmp_path / "policy.onnx"))


LOAD = """
import json, sys
sys.modules["millpond"] = None  # cannot be imported
import torch
files = {"millpond.json": ""}
step = torch.export.load(sys.argv[1], extra_files=files).module()
inputs, expected = torch.load(sys.argv[2])
got = step(inputs)
for name, tensor in expected.items():
    torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5)
print([one["name"] for one in json.loads(files["millpond.json"])["outputs"]])
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if place else ()) for place, name in enumerate(CASES)]
)
def test_a_program_of_torch_runs_without_millpond_and_has_no_pickled_weights(name: str, tmp_path: Path) -> None:
    import zipfile

    case = Case(*CASES[name])
    path = case.export(tmp_path / "policy.pt2")
    step = PolicyStep(_plain_copy(case.policy), case.spec, case.observations, case.actions)
    inputs = step.draw(3, torch.Generator().manual_seed(7))
    with torch.no_grad():
        torch.save((inputs, step(inputs)), tmp_path / "expected.pt")
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(path), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'value'" in done.stdout
    assert read_description(path)["run"] == "tried"
    with zipfile.ZipFile(path) as archive:
        configs = [json.loads(archive.read(one)) for one in archive.namelist() if one.endswith("_config.json")]
    pickled = [entry["use_pickle"] for config in configs for entry in config["config"].values()]
    assert pickled
    assert not any(pickled)


class Features(nn.Module):
    """A custom network that gives features."""

    def __init__(self, observation: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observation.shape[0], 12), nn.LayerNorm(12), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class LogitsAndValue(nn.Module):
    """A custom network that is a whole policy."""

    def __init__(self, observation: Any, action: Any) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(observation.shape[0], action.sizes[0]), nn.Linear(observation.shape[0], 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(x), self.critic(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "core"), [(Features, "none"), (Features, "lstm"), (Features, "mingru"), (LogitsAndValue, "none")]
)
def test_plain_custom_networks_are_exported(tmp_path: Path, network: Any, core: str) -> None:
    settings = {**TINY, "policy.core": core, "trainer.total_iterations": 1, "run_dir": str(tmp_path)}
    run = millpond.train(env=Ball, policy=network, run="pond", overrides=settings)
    policy = millpond.load(run)
    path, rng, state = policy.export(tmp_path / "policy.onnx"), np.random.default_rng(0), None
    given: dict[str, torch.Tensor] = {}
    for _ in range(4):
        seen = rng.uniform(-2, 2, (3, 1)).astype(np.float32)
        action, state = policy.predict(seen, state)
        if core != "none":
            given.setdefault("state", torch.zeros(3, *np.shape(state)[1:]))
        got = run_onnx(path, {"observation": torch.from_numpy(seen), **given})
        assert got["action"].tolist() == action.tolist()
        if state is not None:
            np.testing.assert_allclose(got["next_state"], state, rtol=1e-5, atol=1e-5)
            given["state"] = torch.from_numpy(got["next_state"])


@pytest.mark.slow
def test_agents_with_different_spaces_play_from_one_file(tmp_path: Path) -> None:
    sizes = {
        **TINY,
        "trainer.batch_size": 96,
        "trainer.minibatch_size": 48,
        "policy.core": "lstm",
        "run_dir": str(tmp_path),
    }
    run = millpond.train(env=Teams, run="pond", overrides=sizes)
    policy, env = millpond.load(run), Teams()
    path = policy.export(tmp_path / "policy.onnx")
    described = read_description(path)
    assert [one["name"] for one in described["inputs"]][-3:] == ["observation/agent", "state", "action_mask"]
    split = observation_parts(policy.spec.observation)
    observations, _ = env.reset(seed=1)
    state, states = None, dict.fromkeys(observations, torch.zeros(1, 2, 8))
    for _ in range(3):
        actions, state = policy.predict(observations, state)
        for name, observation in observations.items():
            encoded = policy.format.encode_agent(name, observation, None)
            parts = split(torch.from_numpy(encoded.observation))
            inputs = {f"observation/{part}": tensor for part, tensor in parts.items()} | {"state": states[name]}
            got = run_onnx(path, inputs | {"action_mask": torch.from_numpy(encoded.mask)})
            states[name] = torch.from_numpy(got["next_state"])
            taken = policy.format.decode_agent(name, got["action"])
            np.testing.assert_allclose(taken, actions[name], rtol=1e-5, atol=1e-5)
        observations, *_ = env.step(actions)


@pytest.mark.slow
def test_q_networks_and_sac_are_exported(tmp_path: Path) -> None:
    seen = ObservationSpec.single((4,), "float32", "vector")
    network = build_q_network(seen, ActionSpec.discrete(3), hidden_size=16)
    inputs = {"observation": torch.randn(5, 4)}
    export_policy(network, EnvSpec("x", seen, ActionSpec.discrete(3)), tmp_path / "q.onnx")
    got = run_onnx(tmp_path / "q.onnx", inputs)
    np.testing.assert_allclose(got["q_values"], network(inputs["observation"]).detach(), rtol=1e-5, atol=1e-5)
    assert got["action"].tolist() == got["q_values"].argmax(1).tolist()
    reach = ActionSpec.continuous((-2.0,), (2.0,))
    actor = SACActor(seen, reach, 16)
    export_policy(actor, EnvSpec("x", seen, reach), tmp_path / "sac.onnx")
    wanted = actor.act(inputs["observation"], actor.initial_state(5), deterministic=True)
    np.testing.assert_allclose(run_onnx(tmp_path / "sac.onnx", inputs)["action"], wanted.action, rtol=1e-5, atol=1e-5)


class Branching(nn.Module):
    """A policy whose Python code depends on a value."""

    def initial_state(self, batch: int, device: str = "cpu") -> torch.Tensor:
        return torch.zeros(batch, 0)

    def act(self, observation: torch.Tensor, state: torch.Tensor, **options: Any) -> Act:
        value = observation.sum(1)
        action = torch.zeros(observation.shape[0], dtype=torch.int32)
        return Act(action if value[0] > 0 else action + 1, value, value, state)


def test_bad_requests_name_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(*CASES["vector, lstm, discrete"])
    for path, form, message in (
        (tmp_path / "policy.pt", None, r"ends in \.pt: .*onnx \(FILE\.onnx\) or torch \(FILE\.pt2\)"),
        (tmp_path / "policy", "tflite", "format='tflite'"),
        (tmp_path / "none" / "policy.onnx", None, "there is no folder"),
    ):
        with pytest.raises(ExportError, match=message):
            export_policy(case.policy, case.spec, path, form)
    with pytest.raises(ExportError, match="cannot trace this policy"):
        export_policy(Branching(), case.spec, tmp_path / "policy.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ExportError, match=r"pip install 'millpond\[export\]'"):
        case.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_numbers_are_compared_in_the_units_in_which_the_policy_scales_them() -> None:
    case = Case(*CASES["vector, gru, box"])
    step = PolicyStep(case.policy, case.spec, case.observations, case.actions)
    units = step.units()
    assert units["action"].tolist() == units["mean"].tolist() == [1.0, 2.5]
    assert float(units["value"]) == pytest.approx(float(case.policy.value_scale.deviation()), rel=1e-6)
    assert float(units["value"]) > 1
    wide = Case(*CASES["dict, gru, dict"])
    units = PolicyStep(wide.policy, wide.spec, wide.observations, wide.actions).units()
    assert units["action/aim"].tolist() == [[2.0, 2.0]]
    assert "action/go" not in units


class Wrong:
    """A session of onnxruntime whose value is wrong by a share of itself."""

    share = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.session = REAL(*arguments, **options)

    def run(self, names: list[str], inputs: Any) -> Any:
        results = self.session.run(names, inputs)
        at = names.index("value")
        results[at] = results[at] + self.share
        return results


@pytest.mark.slow
@pytest.mark.parametrize(("share", "refused"), [(0.8e-5, False), (4e-5, True), (float("nan"), True)])
def test_a_value_that_is_off_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, refused: bool
) -> None:
    monkeypatch.setattr("onnxruntime.InferenceSession", Wrong)
    monkeypatch.setattr(Wrong, "share", share)
    case = Case(*CASES["vector, lstm, discrete"])
    if not refused:
        assert case.export(tmp_path / "policy.onnx").is_file()
        return
    with pytest.raises(
        ExportError, match=r"onnxruntime computes another value than the policy: .* are allowed; nothing"
    ):
        case.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.trainers.common.export.files.TOLERANCE", -1.0)
    case = Case(*CASES["vector, lstm, discrete"])
    with pytest.raises(ExportError, match="nothing was written"):
        case.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
