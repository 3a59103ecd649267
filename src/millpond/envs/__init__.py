"""Environments: the protocol, the registry of ids, checks, and the environments themselves.

spec             EnvSpec: observations, actions and abilities of an environment
env_batch        EnvBatch, the protocol that every environment implements; Buffers, random streams, EpisodeTracker
families         what an env id says, optional extras, parse_options
registry         describe(env_id), make_env_batch(env_id, ...), list_envs(); custom envs by dotted path
check            check_env: play an environment and test every rule of the protocol
grid             foraging agents on a map, compiled
probes           recall and truncation, two small environments that test learners
mettagrid        MettaGrid's C++ core
adapters         gymnasium, pettingzoo, atari, minatar
reward_wrappers  reward_scale, reward_clip and episodic
"""
