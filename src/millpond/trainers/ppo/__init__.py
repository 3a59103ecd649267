"""PPO: `trainer` runs the loop, `update` trains on rows, `build` makes the parts that a config describes."""
