"""A mixture with its agents on two ranks equals the mixture of one process, also after a rank was killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from millpond.config import ConfigError, load
from millpond.distributed import RankError, Ranks
from millpond.loop import Address
from millpond.replay import Lake, Schema
from millpond.store import Checkpoints, Run, read_status
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes
from millpond.trainers.common.envs import make_spec
from millpond.trainers.common.session import begin_on_all_ranks, resume_run, start_run
from millpond.trainers.mixture import measures as mixture_measures
from millpond.trainers.mixture import trainer as module
from millpond.trainers.mixture.ranks import refresh_together
from millpond.trainers.mixture.trainer import MixtureTrainer
from tests.support.mixture_runs import LIVE, SMALL, assert_same_run, finish, lake_contents, start, watch, weights
from tests.support.rank_processes import run_ranks, run_torchrun, start_and_signal
from tests.support.records import records

# Name -> settings that differ from `SMALL`, whose two agents have one rank each.
MIXTURES: dict[str, dict[str, Any]] = {
    "rounds": {"mixture.agents": 4, "mixture.total_frames": 8 * 128, "mixture.epsilon_ladder": [0.4, 0.3, 0.2, 0.1]},
    "live": LIVE,
    "no-resets": {"mixture.mode": "no-resets"},
}
LONG = {"mixture.collections_per_round": 2, "mixture.total_frames": 10 * 64, "log.console_seconds": 0.01}


def train(ranks: Ranks, root: str, name: str, changes: dict[str, Any], stops: tuple[int, ...] = ()) -> bytes:
    """Train, stopped by one of the ranks after so many portions and resumed each time; return the BigAgent's state."""
    settings = {**SMALL, "run_dir": root, **changes}

    def begin() -> Any:
        loaded = load("mixture", settings)
        return loaded, start_run(loaded, name, ranks=ranks.count)

    found = begin_on_all_ranks(ranks, begin)
    for rank, stop in enumerate((*stops, None)):
        trainer = MixtureTrainer(*found, ranks=ranks)
        if stop is not None and rank % ranks.count == ranks.rank:
            watch(trainer, stop_at(trainer, stop))
        finish(trainer)
        if stop is not None:
            found = begin_on_all_ranks(ranks, lambda: resume_run(name, [], root, ranks=ranks.count))
    assert trainer.loop.done
    assert trainer.big is not None
    return tree_to_bytes(trainer.big.state_dict())


def stop_at(trainer: MixtureTrainer, stop: int) -> Callable[[Address], None]:
    def see(at: Address) -> None:
        if trainer.loop.count + 1 == stop:
            trainer.loop.stop("the test says so")

    return see


def train_all(ranks: Ranks, root: str) -> dict[str, Any]:
    """Compute everything that the tests compare, in one pair of processes."""
    train(ranks, root, "uncut", LONG)  # with as many threads as under torchrun
    torch.set_num_threads(1)
    module.UPDATES_PER_PORTION = 2  # type: ignore[misc]
    mixture_measures.DIVERSITY_OBSERVATIONS = 16  # type: ignore[misc]
    found = {name: train(ranks, root, name, changes) for name, changes in MIXTURES.items()}
    train(ranks, root, "stopped", MIXTURES["rounds"], (1, 4, 8))
    train(ranks, root, "live-stopped", LIVE, (2, 5))
    return {**found, "begun": begin_from(ranks, root, "rounds"), "refused": see_other_lakes(ranks, f"{root}/lakes")}


def begin_from(ranks: Ranks, root: str, other: str) -> bytes:
    """Return the initial weights of a rank's agents and of the BigAgent, for a run that starts from another run's weights."""
    loaded = load("mixture", {**SMALL, "run_dir": root, **MIXTURES[other]})
    run = begin_on_all_ranks(ranks, lambda: (loaded, start_run(loaded, "next", ranks=ranks.count)))[1]
    source = Run.open(Path(root), other) if ranks.first else None
    trainer = MixtureTrainer(loaded, run, weights_from=source, ranks=ranks)
    trainer.close()
    assert trainer.big is not None
    networks = [*trainer.group.networks, trainer.big.dqn.network, trainer.big.dqn.target]
    return tree_to_bytes([dict(network.state_dict()) for network in networks])


def see_other_lakes(ranks: Ranks, root: str) -> str:
    """Return the error that ranks raise if each has a separate lake."""
    recipe = load("mixture").recipe
    with Lake.create(Path(root) / str(ranks.rank), Schema.from_spec(make_spec(recipe.env, stacked=False))) as lake:
        lake.writer(f"agent{ranks.rank}", 1).close()
        try:
            refresh_together(ranks, lake)
        except RankError as error:
            return str(error)
    return "nothing was refused"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Folder of all runs of two ranks, and the results of each rank."""
    root = tmp_path_factory.mktemp("two")
    return root, run_ranks(2, train_all, str(root))


def close(ours: Any, theirs: Any, path: str = "") -> None:
    """Assert that two trees have the same numbers to 1e-5."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name, part in ours.items():
            close(part, theirs[name], f"{path}/{name}")
    elif isinstance(ours, torch.Tensor) and ours.is_floating_point():
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0, msg=path)
    else:
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs, path


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_two_ranks_train_the_same_mixture_as_one_process(
    two: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "UPDATES_PER_PORTION", 2)
    monkeypatch.setattr(mixture_measures, "DIVERSITY_OBSERVATIONS", 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = finish(start(tmp_path, name, MIXTURES[name]))
    torch.set_num_threads(threads)
    assert lake_contents(two[0] / name) == lake_contents(tmp_path / name)  # per agent, all rounds
    assert alone.big is not None
    first, second = (tree_from_bytes(found[name], name) for found in two[1])
    close(first, alone.big.state_dict())  # network, target, optimiser, sampler, replayed transitions
    for part, tensor in first["dqn"]["network"].items():
        assert torch.equal(tensor, second["dqn"]["network"][part])
        assert torch.equal(first["dqn"]["target"][part], second["dqn"]["target"][part])
    assert torch.equal(first["dqn"]["optimizer"]["second"], second["dqn"]["optimizer"]["second"])
    close(weights(two[0] / name), weights(tmp_path / name))  # of all agents, in the one checkpoint
    of_two, of_one = records(two[0] / name), records(tmp_path / name)
    assert len(of_two) == len(of_one)
    for ours, theirs in zip(of_two, of_one, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("name", ["rounds", "live"])
def test_stopped_and_resumed_ranks_train_the_same(two: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    assert_same_run(two[0] / name, two[0] / {"rounds": "stopped", "live": "live-stopped"}[name])


def test_all_ranks_start_with_the_weights_of_another_run(two: tuple[Path, list[dict[str, Any]]]) -> None:
    big = weights(two[0] / "rounds")["big"]
    for found in two[1]:
        networks = tree_from_bytes(found["begun"], "begun")
        assert len(networks) == 2 + 2
        for network in networks:
            assert all(torch.equal(network[name], tensor) for name, tensor in big.items())


def arguments(name: str) -> list[str]:
    settings = {**SMALL, **LONG, "log.tensorboard": "false"}
    return [
        "mixture",
        *(f"{key}={'null' if value is None else value}" for key, value in settings.items()),
        "--run",
        name,
    ]


def kill_and_resume(two: tuple[Path, list[dict[str, Any]]], root: Path, rank: int) -> str:
    """Assert that one line reports it, and that the resumed run equals the uninterrupted one, including the lake."""
    code, _, errors, killed = start_and_signal(root, "cut", arguments("cut"), rank, signal.SIGKILL)
    assert code == 1
    newest = Checkpoints(root / "runs" / "cut" / "checkpoints").updates()[-1]
    said = [line for line in errors.splitlines() if line.startswith("millpond: ")]
    assert len(said) == 1, errors
    assert said[0].endswith(
        f"rank {rank} (process {killed}) died, and training cannot continue without it. The newest checkpoint is after "
        f"{newest} updates; resume with: torchrun --nproc-per-node=2 -m -- millpond train --resume cut"
    )
    assert len(records(root / "runs" / "cut")) < len(records(two[0] / "uncut"))
    resumed = run_torchrun(root, 2, "--resume", "cut")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(two[0] / "uncut", root / "runs" / "cut")
    assert read_status(root / "runs" / "cut").state == "finished"
    return said[0]


def test_run_ends_when_a_rank_is_killed_and_resumes_exactly(
    two: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    assert kill_and_resume(two, tmp_path, 1).startswith("millpond: rank 1 (")


@pytest.mark.slow
def test_last_rank_alive_reports_that_rank_0_died(two: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    assert kill_and_resume(two, tmp_path, 0).startswith("millpond: rank 1: rank 0 (")


def test_number_of_ranks_that_does_not_divide_is_refused_before_a_folder_is_created(tmp_path: Path) -> None:
    loaded = load("mixture", {"run_dir": str(tmp_path / "runs")})
    with pytest.raises(ConfigError, match=r"mixture.agents=4, which 3 ranks .* torchrun --nproc-per-node=4"):
        start_run(loaded, "three", ranks=3)
    assert not (tmp_path / "runs").exists()


def test_lake_that_is_not_shared_is_detected(two: tuple[Path, list[dict[str, Any]]]) -> None:
    for found in two[1]:
        assert "do not see the same lake" in found["refused"]
        assert "run_dir must be on a disk that all ranks share" in found["refused"]
