"""Random shifts against a hand-worked table and a loop over pixels."""

from __future__ import annotations

import torch

from millpond.learners.augment import random_shift


def test_shift_repeats_the_edge() -> None:
    image = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    images = image.repeat(3, 1, 1)
    shift = torch.tensor([[0, 0], [1, 0], [-1, 2]])
    assert random_shift(images, shift).tolist() == [
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        [[4, 5, 6], [7, 8, 9], [7, 8, 9]],
        [[3, 3, 3], [3, 3, 3], [6, 6, 6]],
    ]


def test_planes_and_frames_of_an_image_are_shifted_together() -> None:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 2, 3, 6, 4), generator=rng, dtype=torch.uint8)
    shift = torch.randint(-2, 3, (5, 2), generator=rng)
    found = random_shift(images, shift)
    assert found.dtype == torch.uint8
    for b, (down, right) in enumerate(shift.tolist()):
        for y in range(6):
            for x in range(4):
                source = images[b, ..., min(max(y + down, 0), 5), min(max(x + right, 0), 3)]
                assert torch.equal(found[b, ..., y, x], source)
