"""Files of experiments: methods x worlds x seeds, and errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.experiments import file
from millpond.experiments.file import packaged_experiments, read_experiment
from millpond.experiments.mixture_budget import MixtureBudget

TWO = """
description: Does a wider network help?
recipe: gymnasium:CartPole-v1
worlds:
  pole: {}
  short: {env.max_steps: 100}
seeds: 2
overrides: {trainer.total_timesteps: 8192}
methods:
  narrow: {overrides: {policy.hidden_size: 32}}
  wide: {label: the wide network, overrides: {policy.hidden_size: 128}}
  memory: {recipe: grid, on_request: true}
"""


def written(folder: Path, text: str = TWO) -> str:
    path = folder / "width.yaml"
    path.write_text(text)
    return str(path)


def test_an_experiment_is_methods_times_worlds_times_seeds(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path), ["ppo.gamma=0.98"])
    experiment.check()
    jobs = experiment.jobs()
    assert [job.name for job in jobs] == [
        "pole.narrow.seed1", "pole.wide.seed1", "short.narrow.seed1", "short.wide.seed1",
        "pole.narrow.seed2", "pole.wide.seed2", "short.narrow.seed2", "short.wide.seed2",
    ]  # fmt: skip
    assert jobs[-1].recipe == "gymnasium:CartPole-v1"
    assert jobs[-1].overrides == (
        "trainer.total_timesteps=8192", "ppo.gamma=0.98", "env.max_steps=100", "policy.hidden_size=128", "seed=2",
    )  # fmt: skip
    assert (experiment.baseline, experiment.label("wide"), experiment.label("narrow")) == (
        "narrow",
        "the wide network",
        "narrow",
    )


def test_the_command_line_replaces_what_the_file_says(tmp_path: Path) -> None:
    one = read_experiment(
        written(tmp_path), seeds=1, worlds=["short"], methods=["wide", "memory"], episodes=7, recipe="gym"
    )
    assert [(job.name, job.recipe) for job in one.jobs()] == [
        ("short.wide.seed1", "gym"),
        ("short.memory.seed1", "grid"),
    ]
    assert (one.file.episodes, one.baseline) == (7, "wide")


def test_without_worlds_the_recipe_has_the_env(tmp_path: Path) -> None:
    text = TWO.replace("worlds:\n  pole: {}\n  short: {env.max_steps: 100}\n", "")
    assert [job.name for job in read_experiment(written(tmp_path, text)).jobs()][:2] == ["narrow.seed1", "wide.seed1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 2", "seeds: 0", r"seeds=0: input should be greater than or equal to 1"),
        ("seeds: 2", "seed: 2", r"seed is not a known key; did you mean seeds\?"),
        ("label: the wide", "lable: the wide", r"methods\.wide\.lable is not a known key"),
        ("recipe: gymnasium:CartPole-v1\n", "", r"recipe is missing: recipe of all methods"),
        ("seeds: 2", "baseline: big", r"baseline=big is unknown; there are narrow, wide, memory"),
    ],
)
def test_a_wrong_file_is_refused_with_key_value_and_rule(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(MillpondError, match=message):
        read_experiment(written(tmp_path, TWO.replace(old, new)))


def test_runs_that_cannot_start_are_refused_before_anything_runs(tmp_path: Path) -> None:
    text = TWO.replace("policy.hidden_size: 128", "policy.hiden_size: 128")
    with pytest.raises(MillpondError, match=r"method wide in pole: .*did you mean policy.hidden_size"):
        read_experiment(written(tmp_path, text)).check()
    with pytest.raises(MillpondError, match="minatar:chess: there is no such game"):
        read_experiment("mixture-vs-single", worlds=["minatar:chess"]).check()


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        MillpondError, match=r"there is no experiment 'mixture-vs-singel'; did you mean mixture-vs-single"
    ):
        read_experiment("mixture-vs-singel")
    with pytest.raises(MillpondError, match=r"methods=magic is unknown; there are mixture, single"):
        read_experiment("mixture-vs-single", methods=["mixture", "magic"])
    with pytest.raises(MillpondError, match=r"worlds=far are unknown; .* has pole, short"):
        read_experiment(written(tmp_path), worlds=["far"])
    with pytest.raises(MillpondError, match=r"--frames: .* has no mixture_budget"):
        read_experiment(written(tmp_path), budget={"frames": 9, "rounds": None})


def test_packaged_experiments_are_valid() -> None:
    assert "mixture-vs-single" in packaged_experiments()
    for name in packaged_experiments():
        experiment = read_experiment(name)
        experiment.check()
        assert len(experiment.jobs()) == experiment.file.seeds * len(experiment.worlds) * len(experiment.methods)


def test_every_key_is_on_the_page_and_used() -> None:
    """A key that nothing reads would be accepted in silence."""
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    source = "".join(path.read_text() for path in Path(file.__file__).parent.glob("*.py"))
    for model in (file.ExperimentFile, file.Method, MixtureBudget):
        for key in model.model_fields:
            assert f"`{key}`" in page, key
            assert key == "description" or f".{key}" in source, key
