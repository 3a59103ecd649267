from __future__ import annotations

import os
import sys
from dataclasses import fields

import numpy as np
import pytest

from millpond.envs.env_batch import Buffers
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.vector import VectorError
from millpond.vector.layout import Layout
from millpond.vector.shared_memory import ALIGNMENT, Arena
from tests.support.vector_envs import counting_spec

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="worker processes as Linux has them; test_spawned.py is for other systems"
)
LAYOUT = Layout.of(6, 2, 3)


@pytest.mark.parametrize("masks", [False, True])
def test_two_mappings_show_the_same_arrays_and_no_two_arrays_overlap(masks: bool) -> None:
    spec = counting_spec(action=ActionSpec.multidiscrete((3, 4)), action_masks=masks)
    one = Arena.shared(spec, LAYOUT)
    two = Arena.attach(os.dup(one.fd), spec, LAYOUT)
    names = [field.name for field in fields(Buffers)]
    arrays = [getattr(one.buffers, name) for name in names] + [one.seeds, one.progress]
    others = [getattr(two.buffers, name) for name in names] + [two.seeds, two.progress]
    assert one.buffers.action_mask.shape == (6, 2, 7 if masks else 0)
    for number, array in enumerate(arrays):
        assert array.ctypes.data % ALIGNMENT == 0 or not array.size
        array[...] = number % 2 if array.dtype == bool else number
    for number, array in enumerate(others):
        assert (array == (number % 2 if array.dtype == bool else number)).all()
        assert array.flags.c_contiguous
    one.close(), two.close()


def test_shared_memory_has_no_name() -> None:
    arena = Arena.shared(counting_spec(), LAYOUT)
    assert os.readlink(f"/proc/self/fd/{arena.fd}").endswith("(deleted)")
    arena.close()
    arena.buffers.observation[...] = 1  # the views live on


def test_more_memory_than_the_machine_has_is_refused() -> None:
    spec = counting_spec(observation=ObservationSpec.single((2**44,), "uint8", "vector"))
    with pytest.raises(
        VectorError, match=r"6 envs of counting need [\d,]+ bytes of shared memory, and [\d,]+ are free"
    ):
        Arena.shared(spec, LAYOUT)


def test_local_arrays_have_the_same_shapes() -> None:
    local, shared = Arena.local(counting_spec(), LAYOUT), Arena.shared(counting_spec(), LAYOUT)
    for field in fields(Buffers):
        one, two = getattr(local.buffers, field.name), getattr(shared.buffers, field.name)
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        assert not np.shares_memory(one, two)
    assert local.fd == -1
    shared.close()
