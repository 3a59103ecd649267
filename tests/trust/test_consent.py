"""Code that a stranger's recipe or run names runs only if the user agrees: real commands, with and without a terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import millpond
from millpond.config.code import NamedCode
from millpond.errors import MillpondError
from millpond.trainers.common.session import resume_run
from millpond.trust import TrustError, require_trust
from millpond.trust.consent import shown
from tests.support.terminal import run_on_terminal

TINY = (
    "trainer.num_envs=4", "trainer.num_workers=1", "trainer.bptt_horizon=4", "trainer.batch_size=16",
    "trainer.minibatch_size=16", "trainer.total_iterations=1", "trainer.update_epochs=1", "policy.hidden_size=8",
    "eval.episodes=1", "log.tensorboard=false",
)  # fmt: skip

ENV = """
import gymnasium, numpy as np, pathlib

pathlib.Path({marker!r}).touch()

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == self.length, False, {{}}
"""


class Scene:
    """A user's empty project; a library outside of it, whose import leaves a marker; and the user's state folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.marker, self.library = root, root / "work", root / "marker", root / "library"
        self.work.mkdir()
        self.library.mkdir()
        (self.library / "outside_env.py").write_text(ENV.format(marker=str(self.marker)))
        self.environment = {"PYTHONPATH": os.pathsep.join([str(self.library), *sys.path[1:]])}
        self.recipe = self.work / "recipe.yaml"
        self.hostile = {"id": "subprocess:getoutput", "options": {"cmd": f"touch {self.marker}"}}
        self.write(self.hostile)

    def write(self, env: dict[str, object]) -> None:
        self.recipe.write_text(yaml.safe_dump({"extends": "grid", "env": env}))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "millpond", *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.work,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment, **environment},
        )

    def ran(self) -> bool:
        """True if the code ran since the last call."""
        ran = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        return ran


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that this user trained with code outside of the project, named on the command line: nothing is asked."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    done = scene.run("train", "grid", "env.id=outside_env:Env", *TINY, "--run", "own")
    assert done.returncode == 0, done.stderr
    assert scene.ran()
    return scene.work / "runs" / "own"


@pytest.fixture
def own(trained: Path, scene: Scene) -> Path:
    """A copy of that run, in another folder."""
    return Path(shutil.copytree(trained, scene.work / "runs" / "own"))


def name_other_code(folder: Path, env: dict[str, object]) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["env"].update(env)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("command", [("train",), ("train", "--debug"), ("bench", "--quick"), ("bench", "--iteration")])
def test_recipe_file_without_a_terminal_is_refused_with_exit_code_2(scene: Scene, command: tuple[str, ...]) -> None:
    done = scene.run(command[0], "recipe.yaml", *command[1:])
    assert not scene.ran()
    assert done.returncode == 2
    assert "add --trust (in Python: trust=True)" in done.stderr
    assert "env.id=subprocess:getoutput (from " in done.stderr
    assert "subprocess.py)" in done.stderr
    assert str(scene.recipe) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (scene.work / "runs").exists()


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "maybe\n"])
def test_any_answer_but_yes_imports_nothing(scene: Scene, answer: str) -> None:
    code, printed = run_on_terminal(scene.work, "train", "recipe.yaml", answer=answer, environment=scene.environment)
    assert not scene.ran()
    assert code == 2
    for words in (
        f"{scene.recipe} names code",
        "env.id = subprocess:getoutput",
        "subprocess.py",
        f"with cmd='touch {scene.marker}'",
        "[y/N]",
        "not trusted",
    ):
        assert words in printed


def test_yes_runs_the_code(scene: Scene) -> None:
    scene.write({"id": "outside_env:Env"})
    code, printed = run_on_terminal(
        scene.work, "train", "recipe.yaml", *TINY, answer="y\n", environment=scene.environment
    )
    assert code == 0, printed
    assert scene.ran()
    assert scene.run("eval", "recipe-1", "--episodes", "1").returncode == 0  # the user's own run now


def test_a_terminal_on_which_the_question_cannot_be_seen_is_none(scene: Scene) -> None:
    ours, theirs = os.openpty()
    os.write(ours, b"y\n")
    done = subprocess.run(
        [sys.executable, "-m", "millpond", "train", "recipe.yaml"],
        stdin=theirs,
        capture_output=True,
        text=True,
        check=False,
        cwd=scene.work,
        env={**os.environ, **scene.environment},
    )
    os.close(ours)
    os.close(theirs)
    assert not scene.ran()
    assert "add --trust" in done.stderr


def test_trust_runs_the_code_also_in_worker_processes(scene: Scene) -> None:
    scene.write({"id": "outside_env:Env", "options": {"length": 2}})
    done = scene.run("train", "recipe.yaml", *TINY, "vector.backend=processes", "--trust")
    assert done.returncode == 0, done.stderr
    assert scene.ran()


def test_recipe_that_names_code_of_the_project_is_not_asked_about(scene: Scene) -> None:
    shutil.copy(scene.library / "outside_env.py", scene.work / "own_env.py")
    scene.write({"id": "own_env:Env"})
    done = scene.run("train", "recipe.yaml", *TINY)
    assert done.returncode == 0, done.stderr
    assert scene.ran()


def test_missing_module_of_an_own_recipe_has_its_usual_error(scene: Scene) -> None:
    scene.write({"id": "no_such_module:make_env"})
    done = scene.run("train", "recipe.yaml")
    assert done.returncode == 2
    assert "there is no module 'no_such_module'" in done.stderr


@pytest.mark.parametrize(
    "recipe",
    [
        {"policy": {"target": "subprocess:getoutput"}},
        {"presets": {"debug": {"env.id": "subprocess:getoutput"}}},
        {"env": {"id": "gymnasium:outside_env:Env-v0"}},
        {"env": {"id": "pettingzoo:outside_env"}},
        {"env": {"id": "mettagrid", "mettagrid": {"config": "outside_env:Env"}}},
        {"env": {"id": "mettagrid", "mettagrid": {"config": "../elsewhere.yaml"}}},
        {"env": {"id": "millpond:train", "options": {"recipe": "x.yaml", "trust": True}}},
        {"env": {"id": "millpond.cli:os.system", "options": {"command": "touch marker"}}},
    ],
)
def test_every_key_that_names_code_is_refused(scene: Scene, recipe: dict[str, object]) -> None:
    scene.recipe.write_text(yaml.safe_dump({"extends": "grid", **recipe}))
    done = scene.run("train", "recipe.yaml", "--debug")
    assert done.returncode == 2
    assert "add --trust" in done.stderr
    assert not scene.ran()


@pytest.mark.parametrize("command", [("eval", "own"), ("train", "--resume", "own", "trainer.total_iterations=2")])
def test_own_run_is_not_asked_about_wherever_it_is_moved(scene: Scene, own: Path, command: tuple[str, ...]) -> None:
    config = own / "config.yaml"
    config.write_text(config.read_text().replace("save_metrics: 1", "save_metrics: 2"))
    done = scene.run(*command)
    assert done.returncode == 0, done.stderr
    assert scene.ran()


@pytest.mark.parametrize("command", [("eval", "own"), ("train", "--resume", "own", "trainer.total_iterations=2")])
def test_run_of_a_stranger_is_refused_without_a_terminal(scene: Scene, own: Path, command: tuple[str, ...]) -> None:
    done = scene.run(*command, XDG_STATE_HOME=str(scene.root / "someone"))
    assert done.returncode == 2
    assert f"run folder {own} names code" in done.stderr
    assert "env.id=outside_env:Env" in done.stderr
    assert "--trust" in done.stderr
    assert not scene.ran()
    done = scene.run(*command, "--trust", XDG_STATE_HOME=str(scene.root / "someone"))
    assert done.returncode == 0, done.stderr
    assert scene.ran()


@pytest.mark.parametrize(
    "env", [{"id": "subprocess:getoutput", "options": {"cmd": "touch ../marker"}}, {"options": {"length": 9}}]
)
@pytest.mark.parametrize("command", [("eval", "own"), ("train", "--resume", "own")])
def test_own_run_whose_config_was_edited_to_run_other_code_is_asked_about(
    scene: Scene, own: Path, env: dict[str, object], command: tuple[str, ...]
) -> None:
    name_other_code(own, env)
    done = scene.run(*command)
    assert done.returncode == 2
    assert "--trust" in done.stderr
    assert not scene.ran()


def test_yes_about_a_run_is_remembered_and_no_is_not(scene: Scene, own: Path) -> None:
    someone = {**scene.environment, "XDG_STATE_HOME": str(scene.root / "someone")}
    evaluate = ("eval", "own", "--episodes", "1")
    assert run_on_terminal(scene.work, *evaluate, answer="n\n", environment=someone)[0] == 2
    assert scene.run(*evaluate, **someone).returncode == 2
    assert not scene.ran()
    code, printed = run_on_terminal(scene.work, *evaluate, answer="yes\n", environment=someone)
    assert code == 0, printed
    assert "You did not start this run here" in printed
    assert scene.run(*evaluate, **someone).returncode == 0


def test_resumed_run_is_the_users_own_and_trust_of_an_evaluation_is_not_remembered(scene: Scene, own: Path) -> None:
    someone = {"XDG_STATE_HOME": str(scene.root / "someone")}
    assert scene.run("eval", "own", "--trust", **someone).returncode == 0
    assert scene.run("eval", "own", **someone).returncode == 2
    assert scene.run("train", "--resume", "own", "trainer.total_iterations=2", "--trust", **someone).returncode == 0
    assert scene.run("eval", "own", **someone).returncode == 0


def test_without_a_home_folder_a_run_trains_with_a_report_and_is_asked_about_later(scene: Scene) -> None:
    nowhere = {"XDG_STATE_HOME": str(scene.recipe)}  # a file
    done = scene.run("train", "grid", "env.id=outside_env:Env", *TINY, "--run", "own", **nowhere)
    assert done.returncode == 0, done.stderr
    report = (scene.work / "runs" / "own" / "report.html").read_text()
    assert "it has no render()" in report  # the env was made again for the picture
    assert scene.run("eval", "own", **nowhere).returncode == 2


@pytest.mark.parametrize(
    "command",
    [
        ("report", "own"),
        ("runs",),
        ("plan", "runs/own/config.yaml"),
        ("plan", "recipe.yaml"),
        ("plan", "recipe.yaml", "--scale", "trainer.num_envs=64,128"),
        ("compare", "recipe.yaml", "runs/own/config.yaml"),
        ("train", "grid", "env.id=gymnasium:CartPole-v1", "--debug", "--from", "own"),
    ],
)
def test_commands_that_only_read_never_import_or_ask(scene: Scene, own: Path, command: tuple[str, ...]) -> None:
    name_other_code(own, scene.hostile)
    done = scene.run(*command)
    assert not scene.ran()
    assert "[y/N]" not in done.stdout + done.stderr
    code, printed = run_on_terminal(scene.work, *command, answer="y\n", environment=scene.environment)
    assert not scene.ran()
    assert "[y/N]" not in printed
    if command[0] != "train":  # there, the weights do not fit
        assert (done.returncode, code) == (0, 0), done.stderr


def test_report_of_a_strangers_run_says_why_it_has_no_picture(scene: Scene, own: Path) -> None:
    name_other_code(own, scene.hostile)
    done = scene.run("report", "own")
    assert "No picture: a report does not import code that a stranger's run names" in done.stdout
    assert "`millpond eval runs/own --trust --render FILE.gif`" in done.stdout
    assert "No picture: a report does not import code" in (own / "report.html").read_text()
    name_other_code(own, {"id": "outside_env:Env", "options": {}})
    assert scene.run("report", "own").stdout == "runs/own/report.html\n"  # the user's own run
    assert scene.ran()


def test_experiment_with_runs_of_a_stranger_is_refused(scene: Scene, own: Path) -> None:
    name_other_code(own, scene.hostile)
    folder = scene.work / "theirs"
    shutil.copytree(own, folder / "runs" / "recall.mixture.seed1")
    (folder / "experiment.json").write_text("{}")
    done = scene.run(
        "experiment", "mixture-vs-single", "--report", "--folder", "theirs", "--games", "recall", "--methods", "mixture",
        "--seeds", "1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "add --trust" in done.stderr
    assert not scene.ran()


def test_only_the_first_rank_refuses(scene: Scene) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--"]
    done = subprocess.run(
        [*command, "millpond", "train", "recipe.yaml", "--debug"],
        cwd=scene.work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **scene.environment},
    )
    assert done.returncode != 0
    assert done.stderr.count("add --trust") == 1
    assert not scene.ran()


def test_python_interface_refuses_and_trusts(
    scene: Scene, own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(scene.work)
    name_other_code(own, scene.hostile)
    for refuse in (
        lambda: millpond.train(scene.recipe, preset="debug", trust=False),
        lambda: millpond.load(own, trust=False),
        lambda: resume_run("own", [], trust=False),
    ):
        with pytest.raises(TrustError, match="trust=True"):
            refuse()
    assert not scene.ran()
    with pytest.raises(MillpondError, match="made a str"):
        millpond.load(own, trust=True)
    assert scene.ran()


def test_mapping_from_python_is_the_users_own_words(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.work)
    with pytest.raises(MillpondError, match="made a str"):
        millpond.train({"extends": "grid", "env": scene.hostile}, trust=False)
    assert scene.ran()


def test_question_shows_no_control_characters_of_a_stranger() -> None:
    assert shown("a\x1b[2J\n\u202eb") == "a\\x1b[2J\\n\\u202eb"
    assert shown("x" * 500) == "x" * 197 + "..."
    code = NamedCode("env.id", "sys\x1b[1A:exit", Path("/s/\x1b[2Kr.yaml"), ("sys\x1b[1A", "sys"), function="exit")
    with pytest.raises(TrustError) as caught:
        require_trust([code], trust=False)
    assert "\x1b" not in str(caught.value)


def test_configs_that_may_run_code_are_loaded_in_one_function() -> None:
    source = Path(millpond.__file__).parent
    users = [
        path.relative_to(source) for path in source.rglob("*.py") if "ask_env=" in path.read_text(encoding="utf-8")
    ]
    assert users == [Path("trainers/common/session.py")]
