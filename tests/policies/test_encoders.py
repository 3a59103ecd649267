"""Each encoder against a plain formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from millpond.envs.spec import ObservationSpec, Part, PartKind
from millpond.policies import PolicyError
from millpond.policies.encoders.grid import GridEncoder, grid_sum
from millpond.policies.encoders.observation import ObservationEncoder, kind_of
from millpond.policies.encoders.pixels import PixelEncoder
from millpond.policies.encoders.tokens import TokenEncoder, token_sum
from millpond.policies.encoders.vector import VectorEncoder
from millpond.policies.parts import PartReader, join_parts, observation_parts
from tests.support.policy_inputs import H, cells_and_table, tokens_and_tables


def test_grid_encoder_equals_a_linear_layer_over_one_hot_cells() -> None:
    cells, table = cells_and_table()
    one_hot = nn.functional.one_hot(cells.long(), 8)[:, :, 1:].flatten(1).float()  # the empty kind has no column
    expected = one_hot @ table.flatten(0, 1)
    torch.testing.assert_close(grid_sum(cells, table), expected, rtol=1e-4, atol=1e-4)


def test_token_encoder_equals_the_formula() -> None:
    tokens, where, low, high = tokens_and_tables(20)
    expected = torch.zeros(20, H)
    for n, observation in enumerate(tokens.tolist()):
        for place, feature, value in observation:
            if place != 0xFF:
                expected[n] += where[place] * (low[feature * 16 + value % 16] + high[feature * 16 + value // 16])
    torch.testing.assert_close(token_sum(tokens, where, low, high), expected, rtol=1e-4, atol=1e-4)
    assert not token_sum(tokens, where, low, high)[0].any()


def test_token_operation_passes_opcheck() -> None:
    torch.library.opcheck(token_sum, tokens_and_tables(9))


def test_gradients_of_tokens_equal_those_of_the_formula() -> None:
    """Compare with autograd through plain lookups."""
    tokens, where, low, high = tokens_and_tables()
    n, m = (tokens[:, :, 0] != 0xFF).nonzero(as_tuple=True)
    place, feature, value = tokens[n, m].long().unbind(1)
    shares = where[place] * (low[feature * 16 + value % 16] + high[feature * 16 + value // 16])
    expected, ours = torch.zeros(len(tokens), H).index_add(0, n, shares), token_sum(tokens, where, low, high)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9))
    for left, right in zip(
        *(torch.autograd.grad((summed * weight).sum(), [where, low, high]) for summed in (ours, expected)), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def test_cell_of_an_unknown_kind_is_an_error_with_a_fix() -> None:
    encoder = GridEncoder(Part("cells", "grid", (3, 3), "uint8"), H, cell_kinds=8)
    cells = torch.zeros(2, 3, 3, dtype=torch.uint8)
    cells[1, 2, 2] = 8
    with pytest.raises(PolicyError, match=r"has code 8, but the policy was built for codes 0\.\.7; .*cell_kinds=9"):
        encoder(cells)
    cells[1, 2, 2] = 7
    encoder(cells)


def test_token_of_an_unknown_feature_is_an_error_and_padding_is_not() -> None:
    encoder = TokenEncoder(Part("tokens", "tokens", (3, 3), "uint8", high=19), H)
    assert encoder.low.shape == encoder.high.shape == (20 * 16, H)
    tokens = torch.full((2, 3, 3), 0xFF, dtype=torch.uint8)
    tokens[1, 0] = torch.tensor([0, 19, 255])
    encoder(tokens)
    tokens[1, 0, 1] = 20
    with pytest.raises(PolicyError, match=r"feature 20, but the policy was built for features 0\.\.19"):
        encoder(tokens)


def reading(kind: PartKind, shape: tuple[int, ...], dtype: str) -> Part:
    return Part("part", kind, shape, dtype)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GridEncoder(reading("grid", (3, 3), "int32"), H, 8), "grid of int32; cells must be uint8"),
        (lambda: GridEncoder(reading("grid", (3, 3), "uint8"), H, 300), "300 kinds of cells; there must be 2 to 256"),
        (lambda: TokenEncoder(reading("tokens", (3, 4), "uint8"), H), r"shape \(3, 4\); tokens must be uint8 of shape"),
        (
            lambda: TokenEncoder(Part("part", "tokens", (3, 3), "uint8", high=256), H),
            "257 features; there must be 1 to",
        ),
        (lambda: PixelEncoder(reading("pixels", (4,), "uint8"), H), r"shape \(4,\); pixels must be"),
        (lambda: PixelEncoder(reading("pixels", (4, 2, 9), "uint8"), H), "at least 3 pixels per side"),
        (lambda: VectorEncoder(reading("vector", (3,), "float128"), H, None), "dtype 'float128', which torch does not"),
    ],
)
def test_unsupported_observations_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


def test_parts_are_read_at_their_offsets() -> None:
    spec = ObservationSpec.packed(
        [("flags", "vector", (3,), "bool"), ("speed", "vector", (2,), "float32"), ("view", "pixels", (2, 3), "uint8")]
    )
    stored = np.zeros((4, spec.shape[0]), np.uint8)
    speed = np.arange(8, dtype=np.float32).reshape(4, 2) / 3
    stored[:, :3] = [1, 0, 1]
    stored[:, 4:12] = speed.view(np.uint8)  # aligned to four bytes
    stored[:, 12:18] = range(6)
    flags, fast, view = (PartReader(spec, part)(torch.from_numpy(stored)) for part in spec.parts)
    assert flags.tolist() == [[True, False, True]] * 4
    np.testing.assert_array_equal(fast.numpy(), speed)
    assert view.shape == (4, 2, 3)
    assert view[3].tolist() == [[0, 1, 2], [3, 4, 5]]
    together = ObservationSpec.packed([("a", "vector", (2,), "float32"), ("b", "vector", (3,), "float32")])
    assert together.dtype == "float32"
    numbers = torch.arange(5.0)[None]
    assert PartReader(together, together.parts[1])(numbers).tolist() == [[2.0, 3.0, 4.0]]


UNALIGNED = ObservationSpec(  # as packed by earlier versions: 7 bytes, floats not on multiples of four
    (7,), "uint8", (Part("kind", "vector", (3,), "uint8"), Part("speed", "vector", (1,), "float32", offset=3))
)


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize(
    "spec",
    [UNALIGNED, ObservationSpec.packed([("kind", "vector", (3,), "uint8"), ("speed", "vector", (1,), "float32")])],
)
def test_parts_are_read_for_every_batch_size_and_alignment(spec: ObservationSpec, batch: int) -> None:
    speed, kind = torch.arange(float(batch))[:, None], torch.eye(3, dtype=torch.uint8)[torch.arange(batch) % 3]
    stored = join_parts(spec, {"speed": speed, "kind": kind})
    assert stored.shape == (batch, *spec.shape)
    split = observation_parts(spec)
    for start in range(batch):  # also if memory does not start at a multiple of four
        parts = split(stored[start:])
        assert torch.equal(parts["speed"], speed[start:])
        assert torch.equal(parts["kind"], kind[start:])
    rows = split(stored[:, None].expand(batch, 4, -1))
    assert rows["speed"].shape == (batch, 4, 1)
    assert torch.equal(rows["speed"][:, 3], speed)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"speed": np.zeros((2, 1))}, "has the parts speed; it must have kind, speed"),
        ({"kind": np.zeros((2, 3)), "speed": np.zeros(2)}, r"'speed' has shape \(2,\); it must be \(2, 1\)"),
    ],
)
def test_parts_that_cannot_be_joined_are_named(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        join_parts(UNALIGNED, parts)


def bounded(name: str, kind: PartKind, shape: tuple[int, ...], dtype: str) -> Part:
    """Return a part with a declared maximum."""
    return Part(name, kind, shape, dtype, high=6.0)


def test_integers_are_scaled_and_floats_are_not() -> None:
    def read(part: Part, numbers: Tensor) -> list[float]:
        encoder = VectorEncoder(part, 2, None)
        with torch.no_grad():
            encoder.linear.weight.copy_(torch.eye(2))
            return [round(number, 4) for number in encoder(numbers)[0].tolist()]

    counts = torch.tensor([[0, 15]], dtype=torch.uint8)
    assert read(Part("n", "vector", (2,), "uint8"), counts) == [0.0, 1.0]
    assert read(bounded("n", "vector", (2,), "uint8"), torch.tensor([[3, 6]], dtype=torch.uint8)) == [0.5, 1.0]
    assert read(Part("n", "vector", (2,), "int32"), torch.tensor([[-15, 255]], dtype=torch.int32)) == [-1.0, 2.0]
    assert read(Part("n", "vector", (2,), "bool"), torch.tensor([[False, True]])) == [0.0, 1.0]
    assert read(Part("n", "vector", (2,), "float32"), torch.tensor([[-3.0, 40.0]])) == [-3.0, 40.0]


def test_pixels_are_divided_by_their_maximum() -> None:
    image = torch.full((1, 2, 10, 10), 6, dtype=torch.uint8)
    bytes_, known = (
        PixelEncoder(reading("pixels", (2, 10, 10), "uint8"), H),
        PixelEncoder(bounded("n", "pixels", (2, 10, 10), "uint8"), H),
    )
    known.load_state_dict(bytes_.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(known(image), bytes_(image.float() * 255 / 6))
    names = [type(layer).__name__ for layer in bytes_.convolutions]
    assert names == ["Conv2d", "ReLU", "Flatten"]
    nature = PixelEncoder(reading("pixels", (4, 84, 84), "uint8"), H)
    assert nature.linear.in_features == 64 * 7 * 7


def test_number_of_cell_kinds_comes_from_the_env() -> None:
    assert GridEncoder(bounded("cells", "grid", (3, 3), "uint8"), H, 16).table.shape == (9, 6, H)
    assert GridEncoder(Part("cells", "grid", (3, 3), "uint8"), H, 16).table.shape == (9, 15, H)


@pytest.mark.parametrize(
    ("own", "asked", "alone", "read"),
    [
        ("grid", "auto", True, "grid"),
        ("grid", "vector", False, "vector"),
        ("grid", "pixels", False, "pixels"),
        ("vector", "pixels", False, "vector"),
        ("vector", "pixels", True, "pixels"),
    ],
)
def test_encoder_setting_applies_to_parts_that_are_not_vectors(
    own: PartKind, asked: PartKind, alone: bool, read: str
) -> None:
    assert kind_of(Part("part", own, (9,), "uint8"), asked, alone) == read


def test_joined_parts_equal_one_linear_layer_over_all_inputs() -> None:
    spec = ObservationSpec.packed([("a", "vector", (2,), "float32"), ("b", "vector", (3,), "float32")])
    encoder = ObservationEncoder(spec, H, "auto", False, 16)
    encoder.reset_parameters()
    seen = torch.randn(5, 5)
    weight = torch.cat([part.linear.weight for part in encoder.encoders], 1)  # type: ignore[union-attr]
    torch.testing.assert_close(encoder(seen), torch.tanh(seen @ weight.t() + encoder.bias))


def test_initial_features_have_unit_scale() -> None:
    """For every kind of part, so that gates start neither closed nor saturated."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(1, 7, (500, 11, 11), generator=generator) * (
        torch.rand(500, 11, 11, generator=generator) < 0.3
    )
    tokens = torch.randint(0, 30, (500, 200, 3), generator=generator, dtype=torch.uint8)
    tokens[:, 24:] = 0xFF
    inputs: dict[PartKind, tuple[Tensor, Part]] = {
        "grid": (cells.to(torch.uint8), replace(Part("", "grid", (11, 11), "uint8"))),
        "tokens": (tokens, Part("", "tokens", (200, 3), "uint8")),
        "pixels": (torch.rand(500, 4, 10, 10, generator=generator), Part("", "pixels", (4, 10, 10), "float32")),
        "vector": (torch.randn(500, 8, generator=generator), Part("", "vector", (8,), "float32")),
    }
    for kind, (seen, part) in inputs.items():
        encoder = ObservationEncoder(ObservationSpec(part.shape, part.dtype, (part,)), 128, "auto", False, 16)
        encoder.reset_parameters(generator)
        with torch.no_grad():
            features = encoder.encoders[0](seen)
        assert 0.2 < features.std() < 3, kind
