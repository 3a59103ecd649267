from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from millpond.envs.check import CheckResult, check_env
from millpond.envs.env_batch import spawn_seeds
from millpond.envs.random_play import play
from millpond.envs.registry import make_env_batch
from tests.support import custom_envs

OWN = custom_envs.__name__


def wrong(findings: list[CheckResult]) -> dict[str, CheckResult]:
    return {finding.rule: finding for finding in findings if finding.status != "ok"}


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("grid", {"max_steps": 60}),
        ("recall", {}),
        ("truncation", {}),
        pytest.param(
            "mettagrid",
            {"max_steps": 60},
            marks=pytest.mark.skipif(
                find_spec("mettagrid") is None, reason="MettaGrid has wheels for Python 3.11 and 3.12 only"
            ),
        ),
        ("minatar:breakout", {}),
        ("gymnasium:CartPole-v1", {}),
        (f"{OWN}:Counter", {}),
        (f"{OWN}:Masked", {}),
        (f"{OWN}:Leaving", {}),
        (f"{OWN}:make_constant_env", {"kwargs": {"length": 3}}),
    ],
)
def test_good_envs_pass_every_rule(env_id, options):
    findings = check_env(env_id, options, steps=120)
    assert wrong(findings) == {}
    assert len(findings) >= 10


def test_the_real_emulator_passes_every_rule():
    findings = check_env("atari:breakout", {"num_threads": 1, "max_steps": 60}, num_envs=2, steps=100)
    assert wrong(findings) == {}


def test_unseeded_generator_and_values_outside_the_space_are_detected():
    found = wrong(check_env(f"{OWN}:Unseeded", {}, steps=40))
    assert "observation of env 0 differs first at step 0" in found["repeats from the same seed"].what
    assert "self.np_random" in found["repeats from the same seed"].fix
    assert "an env depends on its own seed and actions alone" in found
    assert "float32 (2,), from 3" in found["observations are in the declared space"].what


def test_missing_final_observation_and_terminating_limit_are_detected():
    found = wrong(check_env(f"{OWN}:make_forgetful_env", {}, steps=40))
    assert found["an ended episode shows its final observation"].status == "error"
    assert "bootstrap" in found["the step limit truncates"].fix


def test_env_that_raises_is_reported_with_file_and_line():
    found = wrong(check_env(f"{OWN}:Raising", {}, steps=40))
    assert "RuntimeError: the wheel came off" in found["steps without raising"].what
    assert "3 steps into its episode" in found["steps without raising"].what


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("gird", "did you mean 'grid'"),
        (f"{OWN}:OldApi", "old gym API"),
        (f"{OWN}:make_nothing", "neither a gymnasium.Env .* nor a PettingZoo ParallelEnv"),
        (f"{OWN}:not_callable", "not a function or class"),
    ],
)
def test_env_that_cannot_be_made_gives_one_result_with_the_reason(env_id, message):
    findings = check_env(env_id, {})
    assert [finding.status for finding in findings] == ["error"]
    assert re.search(message, findings[0].what)


def test_errors_come_first():
    statuses = [finding.status for finding in check_env(f"{OWN}:Unseeded", {}, steps=40)]
    assert statuses == sorted(statuses, key=("error", "warning", "ok").index)


def test_slow_env_is_played_for_fewer_steps_unless_a_number_is_set(monkeypatch):
    monkeypatch.setattr("millpond.envs.check.SECONDS", 0.0)
    played = []
    found = wrong(check_env("recall", {}, watch=lambda what, done=0, total=None: played.append((what, done, total))))
    assert "each play stopped after 1 steps" in found["steps fast enough for a whole check"].what
    assert "--steps N" in found["steps fast enough for a whole check"].fix
    assert ("repeats from the same seed", 1, 1) in played
    whole = check_env("recall", {}, steps=40)
    assert "steps fast enough for a whole check" not in {finding.rule for finding in whole}


def test_check_records_few_observations_and_compares_all(monkeypatch):
    monkeypatch.setattr("millpond.envs.random_play.MAX_OBSERVATION_BYTES", 1)
    env_batch = make_env_batch("recall", 2, {})
    one, again = (play(env_batch, spawn_seeds(0, 2), 50) for _ in range(2))
    assert len(one.observation) == 2
    assert one.checksum.shape == (51, 2, 1)
    assert one.differs_from(again) is None
    other = play(env_batch, spawn_seeds(1, 2), 50)
    assert "observation of env" in (one.differs_from(other) or "")


def test_missing_module_of_an_env_is_named_with_its_install_command(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("def make_env():\n    import no_such_physics.core\n")
    (tmp_path / "lacking_zoo.py").write_text("import no_such_physics\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = check_env("lacking:make_env", {})
    assert "perhaps with: pip install no_such_physics (lacking.py:2, in make_env)" in found.what
    (found,) = check_env("pettingzoo:lacking_zoo", {})
    assert found.what.endswith("install it with: pip install no_such_physics")
