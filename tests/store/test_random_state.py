import random

import numpy as np
import pytest
import torch

from millpond.store import Checkpoint, CheckpointError, RandomState, read_checkpoint, write_checkpoint


def make():
    return {
        "pcg": np.random.default_rng(1),
        "philox": np.random.Generator(np.random.Philox(2)),
        "legacy": np.random.RandomState(3),
        "python": random.Random(4),
        "torch": torch.Generator().manual_seed(5),
    }


def draw(generators):
    return [
        random.random(),
        random.gauss(),
        np.random.standard_normal(),  # noqa: NPY002
        torch.rand(3).tolist(),
        generators["pcg"].integers(0, 1 << 40, dtype=np.int64, size=3).tolist(),
        int(generators["pcg"].integers(0, 100, dtype=np.uint32)),
        generators["philox"].standard_normal(),
        generators["legacy"].standard_normal(),
        generators["python"].gauss(),
        torch.rand(3, generator=generators["torch"]).tolist(),
    ]


def test_all_generators_continue_after_a_restore(tmp_path):
    generators = make()
    draw(generators)  # gauss and standard_normal now each hold a second value back
    write_checkpoint(tmp_path / "c", Checkpoint(0, state={"random": RandomState(**generators).state_dict()}))
    expected = [draw(generators) for _ in range(3)]
    fresh = make()
    random.seed(99)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    RandomState(**fresh).load_state_dict(read_checkpoint(tmp_path / "c").state["random"])
    assert [draw(fresh) for _ in range(3)] == expected


def test_generators_must_match():
    state = RandomState(rows=np.random.default_rng(1)).state_dict()
    with pytest.raises(
        CheckpointError, match=r"the checkpoint has the generators \['rows'\], this run has \['noise'\]"
    ):
        RandomState(noise=np.random.default_rng(1)).load_state_dict(state)

    with pytest.raises(CheckpointError, match="rows is a int; a generator must be"):
        RandomState(rows=3)


def test_a_run_resumes_on_a_machine_with_another_number_of_gpus():
    generators = make()
    state = RandomState(**generators).state_dict()
    expected = draw(generators)
    state["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 17
    RandomState(**(fresh := make())).load_state_dict(state)
    assert draw(fresh) == expected
