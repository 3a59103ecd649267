"""Ways to run the workers of a vector: inline, threads, forked processes (Linux) and spawned processes (any system)."""
