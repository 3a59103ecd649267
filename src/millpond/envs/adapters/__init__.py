"""Environments of other libraries as `EnvBatch`: Gymnasium, PettingZoo, Atari, MinAtar and custom envs."""
