"""The real MettaGrid. Nothing heavy is imported here; see `scenario` and `envs`."""
