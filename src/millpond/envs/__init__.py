"""Environments: what an environment is, which there are, and how to make one."""
