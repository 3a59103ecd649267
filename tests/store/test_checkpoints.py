import shutil

import pytest
import torch

from millpond.store import CheckpointError, Checkpoints, Parts, Run, load_weights
from millpond.store.status import write_status


def saved(folder, updates, scores=None, **options):
    checkpoints = Checkpoints(folder, **options)
    counter = Cursor()
    for number in updates:
        counter.position = number
        checkpoints.save(number, Parts(state={"cursor": counter}), (scores or {}).get(number))
    return checkpoints


class Cursor:
    def __init__(self):
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_folders_are_named_by_updates(tmp_path):
    saved(tmp_path, [32, 64])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000032", "000000000064"]


def test_newest_periodic_and_best_checkpoints_are_kept(tmp_path):
    scores = {40: 1.0, 72: 9.0, 160: 5.0}
    checkpoints = saved(tmp_path, range(8, 208, 8), scores, keep_last=2, keep_every=50)
    # 56, 104 and 152 are the first at or after 50, 100 and 150; 200 is a multiple itself
    assert checkpoints.updates() == [56, 72, 104, 152, 192, 200]
    assert checkpoints.best().updates == 72


def test_lower_score_can_be_better(tmp_path):
    checkpoints = saved(tmp_path, [1, 2, 3, 4], {1: 0.5, 2: 0.1, 3: 0.3}, keep_last=1, better="lower")
    assert checkpoints.updates() == [2, 4]
    assert checkpoints.best().score == 0.1


def test_best_checkpoint_survives_a_resume(tmp_path):
    saved(tmp_path, [1, 2, 3], {1: 0.5, 2: 0.9, 3: 0.3}, keep_last=1)
    again = Checkpoints(tmp_path, keep_last=1)
    cursor = Cursor()
    assert again.restore(Parts(state={"cursor": cursor}))
    assert cursor.position == 3
    again.save(4, Parts(), 0.6)
    assert again.updates() == [2, 4]
    assert Checkpoints(tmp_path).best().updates == 2
    unrestored = Checkpoints(tmp_path, keep_last=1)
    unrestored.save(5, Parts(), 0.7)
    assert unrestored.updates() == [2, 5]


def damage(path):
    data = bytearray((path / "state.pt").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (path / "state.pt").write_bytes(data)


def test_damaged_newest_checkpoint_is_named_and_the_previous_one_used(tmp_path):
    checkpoints = saved(tmp_path, [1, 2, 3])
    damage(checkpoints.path(3))
    cursor = Cursor()
    parts = Parts(state={"cursor": cursor})
    with pytest.warns(
        UserWarning, match=r"checkpoint 000000000003 is damaged and not used: .*state\.pt is not as it was written"
    ):
        assert Checkpoints(tmp_path).restore(parts)
    assert cursor.position == 2
    assert checkpoints.updates() == [1, 2]
    assert (tmp_path / "000000000003.damaged").is_dir()
    checkpoints.save(3, parts)
    damage(checkpoints.path(3))
    with pytest.warns(UserWarning, match="000000000003 is damaged"):
        Checkpoints(tmp_path).restore(parts)
    assert (tmp_path / "000000000003.damaged2").is_dir()


def test_missing_newest_checkpoint_is_named_and_the_previous_one_used(tmp_path):
    write_status(tmp_path, "running")
    checkpoints = saved(tmp_path / "checkpoints", [1, 2, 3])
    shutil.rmtree(checkpoints.path(3))
    cursor = Cursor()
    with pytest.warns(
        UserWarning, match="checkpoint 000000000003 was written and is gone: the run goes on from 000000000002"
    ):
        assert Checkpoints(tmp_path / "checkpoints").restore(Parts(state={"cursor": cursor}))
    assert cursor.position == 2


def test_error_if_all_checkpoints_are_damaged(tmp_path):
    checkpoints = saved(tmp_path, [1, 2])
    damage(checkpoints.path(1))
    damage(checkpoints.path(2))
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged \(000000000002, 000000000001\)"),
    ):
        checkpoints.restore(Parts(state={"cursor": Cursor()}))


def test_restore_without_a_checkpoint_returns_false(tmp_path):
    assert not Checkpoints(tmp_path / "none").restore(Parts(state={"cursor": Cursor()}))


def test_checkpoint_with_other_parts_is_refused(tmp_path):
    checkpoints = saved(tmp_path, [1])
    with pytest.raises(CheckpointError, match=r"the checkpoint's state are \['cursor'\], this run's are \['sampler'\]"):
        checkpoints.restore(Parts(state={"sampler": Cursor()}))


def test_numbers_to_keep_are_validated(tmp_path):
    with pytest.raises(CheckpointError, match="keep_last=0"):
        Checkpoints(tmp_path, keep_last=0)


def test_weights_of_another_run_are_loaded(tmp_path):
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    run = Run.start(tmp_path, "first", config_yaml="", plan={})
    Checkpoints(run.checkpoints_path).save(5, Parts(weights={"policy": model}), score=1.0)
    weights = Run.open(tmp_path, "first").weights()
    load_weights({"policy": other}, weights, "run 'first'")
    assert torch.equal(model.weight, other.weight)
    assert Run.open(tmp_path, "first").weights(best=True).keys() == {"policy"}
    with pytest.raises(CheckpointError, match=r"run 'first' has no weights of \['target'\]; it has \['policy'\]"):
        load_weights({"target": other}, weights, "run 'first'")
    with pytest.raises(CheckpointError, match=r"run 'first': weights of 'policy' do not fit: [^$]*size mismatch"):
        load_weights({"policy": torch.nn.Linear(2, 3)}, weights, "run 'first'")
