"""The real MettaGrid. Nothing heavy is imported here; see `spec`, `scenario` and `world`."""
