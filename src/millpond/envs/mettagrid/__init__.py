"""The real MettaGrid. Nothing heavy is imported here; see `spec`, `scenario` and `env_batch`."""
