"""Build the policy of a config, for training and for loading a run; and try the built-in policy on an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from millpond.config import PPORecipe
from millpond.devices import to_device
from millpond.envs.check import CheckResult
from millpond.envs.env_batch import EnvBatch, spawn_seeds
from millpond.envs.registry import describe_error, make_env_batch
from millpond.envs.spec import EnvSpec
from millpond.policies import Policy, PolicyError, build_policy, load_policy_factory
from millpond.rollout.collector import put_actions
from millpond.store import Checkpoint
from millpond.trainers.common.session import Player

TRIAL_STEPS = 4
CLOSE = 1e-3  # between what acting and unrolling say of a step


def make_policy(recipe: PPORecipe, spec: EnvSpec, device: torch.device) -> Any:
    """Build the built-in policy, or a custom one, for an environment, on a device."""
    policy = recipe.policy
    settings: dict[str, Any] = {
        "encoder": policy.encoder,
        "core": policy.core,
        "hidden_size": policy.hidden_size,
        "normalize_observations": policy.normalize_observations,
        "separate_critic": policy.separate_critic,
        "normalize_values": recipe.ppo.normalize_values,
    }
    if recipe.ppo.critic == "gtd_lambda":
        settings["corrects_value"] = True
    if policy.num_layers != 1:  # custom policies need not know it
        settings["num_layers"] = policy.num_layers
    if policy.target is None:
        return to_device(build_policy(spec.observation, spec.action, **settings), device)
    custom = load_policy_factory(policy.target)(spec.observation, spec.action, **settings)
    if not recipe.ppo.value_trains_core and not isinstance(custom, Policy):
        raise PolicyError(
            f"ppo.value_trains_core=false has no effect on the custom policy policy.target={policy.target}, which decides "
            "itself what its value loss trains; set it to true"
        )
    return to_device(custom, device)


def ppo_player(recipe: PPORecipe, spec: EnvSpec, checkpoint: Checkpoint) -> Player:
    """The policy of a PPO run. It samples its actions, as in training."""
    return Player(make_policy(recipe, spec, torch.device("cpu")), weights="policy", greedy=False)


def check_policy_on(env_id: str, options: Mapping[str, Any]) -> CheckResult:
    """Check that the built-in policy acts on an environment's observations, one at a time and in a batch, and learns."""
    rule = "a policy acts and learns"
    fix = "show Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these, with finite numbers"
    try:
        env_batch = make_env_batch(env_id, 2, options)
        try:
            wrong = _try_policy(env_batch)
        finally:
            env_batch.close()
    except Exception as error:
        return CheckResult(rule, "error", describe_error(error), fix)
    return (
        CheckResult(rule, "error", wrong, fix) if wrong else CheckResult(rule, "ok", "on a batch of one and of several")
    )


def _try_policy(env_batch: EnvBatch) -> str:
    """Act for a few steps, unroll them with gradients, and say what is wrong; nothing where all is well."""
    spec, buffers = env_batch.spec, env_batch.buffers
    generator = torch.Generator().manual_seed(0)
    policy = build_policy(spec.observation, spec.action, hidden_size=16, generator=generator)
    env_batch.reset(spawn_seeds(0, env_batch.num_envs))
    agents = env_batch.num_envs * spec.num_agents
    state = first_state = policy.initial_state(agents)
    seen, acted, masks, resets = [], [], [], []
    ended = torch.zeros(agents, dtype=torch.bool)
    for _ in range(TRIAL_STEPS):
        observation = torch.from_numpy(buffers.observation.copy()).flatten(0, 1)
        mask = torch.from_numpy(buffers.action_mask.copy()).flatten(0, 1) if spec.action_masks else None
        state = torch.where(ended[:, None, None], 0.0, state)
        resets.append(ended)
        batch = policy.act(observation, state, action_mask=mask, generator=generator)
        for deterministic in (False, True):
            one_mask = None if mask is None else mask[:1]
            one = policy.act(observation[:1], state[:1], action_mask=one_mask, deterministic=deterministic)
            if not torch.allclose(one.value, batch.value[:1], rtol=CLOSE, atol=CLOSE):
                return f"an observation has the value {one.value[0]:g} alone and {batch.value[0]:g} in a batch"
        seen.append(observation)
        acted.append(batch)
        masks.append(mask)
        drawn = batch.action.numpy()
        put_actions(spec.action, drawn.reshape(*buffers.reward.shape, *drawn.shape[1:]), buffers.action)
        env_batch.step(0, env_batch.num_envs)
        ended = torch.from_numpy(np.array(buffers.terminated | buffers.truncated)).flatten()
        state = batch.state
    unrolled = policy.unroll(
        torch.stack(seen, 1),
        first_state,
        torch.stack(resets, 1),
        torch.stack([one.action for one in acted], 1),
        action_mask=torch.stack([mask for mask in masks if mask is not None], 1) if spec.action_masks else None,
    )
    (unrolled.log_prob.mean() + unrolled.entropy.mean() + unrolled.value.mean()).backward()  # type: ignore[no-untyped-call]
    if not all(p.grad is None or torch.isfinite(p.grad).all() for p in policy.parameters()):
        return "gradients are NaN or infinite"
    log_prob = torch.stack([one.log_prob for one in acted], 1)
    if not torch.allclose(unrolled.log_prob, log_prob, rtol=CLOSE, atol=CLOSE):
        return "unrolling a row does not give the probabilities that acting gave"
    return ""
