"""Speed on one machine: its limits, real iterations of a recipe, and each stage of an iteration alone.

`run` measures a recipe and `show` prints it. `ppo`, `mixture` and `reward` hold the bench of each kind, `measure` timing,
limits and what the kinds share, `arithmetic` the network of PPO without anything around it, `products` the matrix
products of any network alone.
"""
