"""Sizes that the compiled code works in, for the planner too: this module imports neither numba nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from millpond.envs.spec import ObservationSpec
from millpond.sizes import convolutions

LSTM_BLOCK = (
    384  # sequence steps whose gates are computed together: they stay in the cache, and products are long enough
)
GRU_BLOCK = 1_024  # the same for a GRU
FEEDFORWARD_BLOCK = 512  # steps of a policy without memory that go forward and backward together

# Work that is worth waking another thread for.
MIN_STEPS_PER_THREAD = 1_024  # sequence steps of an update in which torch computes some part
MIN_FEEDFORWARD_STEPS_PER_THREAD = 512  # steps of an update of a policy without memory that is compiled throughout
MIN_SEQUENCES_PER_THREAD = 4  # sequences of an update, or of an LSTM, that is compiled throughout
MIN_OBSERVATIONS_PER_THREAD = 32  # of acting
MIN_IMAGES_PER_THREAD = 4  # of acting, if observations are images
MIN_IMAGE_NUMBERS_PER_THREAD = 300_000  # of an update: numbers of images and of their first convolution, together
MIN_LOOKUPS_PER_THREAD = 512  # observations that are read by table lookup

MIN_PACKED_OBSERVATIONS = 64  # for which packing a layer's weights is worth it
UNEVEN = 0.85  # share of the threads' time that is used, from which threads share rows rather than images
IMAGE_BLOCK_NUMBERS = 1_400_000  # numbers of images, and of their first convolution, that are computed together


def compiles_encoder(observation: ObservationSpec) -> bool:
    """True if the encoder of these observations is compiled throughout, without torch in between."""
    if len(observation.parts) > 1:
        return False
    part = observation.parts[0]
    return part.kind == "tokens" or (part.kind == "vector" and part.dtype == "float32")


def image_block(image: tuple[int, ...]) -> int:
    """Return the number of images that are convolved together."""
    return max(1, IMAGE_BLOCK_NUMBERS // _image_numbers(image))


def min_images_per_thread(image: tuple[int, ...]) -> int:
    """Return the number of images of an update that is worth waking another thread for."""
    return max(1, MIN_IMAGE_NUMBERS_PER_THREAD // _image_numbers(image))


def _image_numbers(image: tuple[int, ...]) -> int:
    return prod(image) + convolutions(image)[0].outputs


def image_row_threads(images: Sequence[tuple[int, ...]], rows: int, steps_per_row: int, threads: int) -> int:
    """Return the number of threads that share the rows of an update with images.

    It is one if rows do not divide well among all threads: these then share images instead, in the encoder.
    """
    most = min(threads, rows * steps_per_row // min(map(min_images_per_thread, images)))
    largest_share = -(-rows // most) if most > 0 else rows
    return most if most > 1 and rows >= UNEVEN * largest_share * most else 1
