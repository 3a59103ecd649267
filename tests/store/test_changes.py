import pytest

from millpond.store import ResumeError, check_changes

OLD = {"seed": 1, "trainer.gamma": 0.99, "trainer.total_iterations": 10, "log.wandb": False}


def test_lengths_and_logging_may_change():
    new = {**OLD, "trainer.total_iterations": 20, "log.tensorboard": True}
    changed = check_changes(OLD, new, lambda key: key.startswith("log.") or key == "trainer.total_iterations")
    assert changed == {"trainer.total_iterations": (10, 20), "log.tensorboard": (None, True)}
    assert check_changes(OLD, dict(OLD), set()) == {}


def test_the_others_are_refused_by_name():
    new = {**OLD, "trainer.gamma": 0.9, "seed": 2, "trainer.total_iterations": 20}
    del new["log.wandb"]
    with pytest.raises(ResumeError) as refused:
        check_changes(OLD, new, {"trainer.total_iterations"})
    lines = str(refused.value).splitlines()
    assert lines[1:4] == ["  log.wandb: False -> absent", "  seed: 1 -> 2", "  trainer.gamma: 0.99 -> 0.9"]
    assert "trainer.total_iterations" in lines[4]
