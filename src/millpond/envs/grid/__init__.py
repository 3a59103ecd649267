"""The built-in environment: agents forage on a grid. Nothing heavy is imported here; see `game` and `envs`."""
