"""Schemas of records."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from millpond.replay import LakeError, Schema


def test_schemas_of_gymnasium_spaces() -> None:
    spaces = gymnasium.spaces
    observation = spaces.Dict(
        {"image": spaces.Box(0, 255, (32, 32, 3), np.uint8), "arm": spaces.Dict({"joint": spaces.Box(-1, 1, (7,))})}
    )
    schema = Schema.from_spaces(observation, spaces.Box(-1, 1, (4,), np.float32))
    fields = {field.name: (field.shape, field.dtype, field.storage) for field in schema.observation}
    assert fields == {"arm.joint": ((7,), "float32", "fixed"), "image": ((32, 32, 3), "uint8", "lz4")}
    assert (schema.action.shape, schema.action.dtype) == ((4,), "float32")
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_spaces(spaces.Discrete(5), spaces.Discrete(3)).single
    with pytest.raises(LakeError, match="only one array of actions"):
        Schema.from_spaces(spaces.Discrete(5), spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}))
    with pytest.raises(LakeError, match="no fixed shape"):
        Schema.from_spaces(spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(3))
