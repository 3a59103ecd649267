"""Environments: the protocol, the registry of ids, checks, and the environments themselves.

spec             EnvSpec: observations, actions and abilities of an environment
env_batch        EnvBatch, the protocol that every environment implements, and its Buffers
registry         describe(env_id), make_env_batch(env_id, ...), list_envs()
check            check_env: play an environment and test every rule of the protocol
grid, recall, truncation, mettagrid, adapters (gymnasium, pettingzoo, atari, minatar, custom)
"""
