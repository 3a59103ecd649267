"""Environments of other libraries as `EnvBatch`: Gymnasium, PettingZoo, Atari and MinAtar."""
