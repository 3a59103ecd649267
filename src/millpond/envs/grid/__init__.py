"""The built-in world: agents forage on a grid. Nothing heavy is imported here; see `spec` and `world`."""
