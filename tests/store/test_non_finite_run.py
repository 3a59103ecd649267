"""A non-finite value in a real training run."""

import pytest
from safetensors.torch import load_file

from millpond.loop import NonFiniteError
from millpond.store import Checkpoints, read_status
from tests.support import tiny_training


def test_batch_of_nan_is_in_the_run_folder_and_the_checkpoint_is_older(tmp_path):
    with pytest.raises(
        NonFiniteError, match=r"^epoch 0 cycle 2 iteration 1 batch 3: loss = nan; the batch is in "
    ) as found:
        tiny_training.train(tmp_path, nan_at=(0, 2, 1, 3))
    folder = tmp_path / tiny_training.NAME
    assert found.value.batch_path == folder / "non_finite" / "batch.safetensors"
    assert 3 <= len(load_file(found.value.batch_path)["indices"]) <= 20
    checkpoints = Checkpoints(folder / "checkpoints")
    assert checkpoints.updates()[-1] == 25  # the iteration before
    assert checkpoints.load(25).values["loop"]["indices"] == [0, 2, 1, 0]
    assert read_status(folder).state == "failed"
    tiny_training.train(tmp_path, resume=True)
    assert read_status(folder).state == "finished"
