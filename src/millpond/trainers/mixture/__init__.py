"""Mixture: PQN agents, a lake, a BigAgent and clones of it."""
