"""Sizes that the compiled code works in, for the planner too: this module imports neither numba nor torch."""

from __future__ import annotations

from millpond.envs.spec import ObservationSpec

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
MIN_LOOKUPS_PER_THREAD = 512  # observations that are read by table lookup

MIN_PACKED_OBSERVATIONS = 64  # for which packing a layer's weights is worth it


def compiles_encoder(observation: ObservationSpec) -> bool:
    """True if the encoder of these observations is compiled throughout, without torch in between."""
    if len(observation.parts) > 1:
        return False
    part = observation.parts[0]
    return part.kind == "tokens" or (part.kind == "vector" and part.dtype == "float32")
