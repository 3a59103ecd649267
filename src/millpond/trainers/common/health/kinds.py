"""The checks of each kind of recipe, by cause."""

from __future__ import annotations

from functools import partial
from typing import Any

from millpond.config import MixtureRecipe, PPORecipe, Recipe, RewardRecipe
from millpond.config.recipe import EnvConfig
from millpond.envs.families import family_of
from millpond.envs.spec import EnvSpec
from millpond.trainers.common.health.checks import (
    Check,
    entropy_collapsed,
    entropy_floor,
    episodes_never_end,
    gradient_exploded,
    kl_too_large,
    observations_are_badly_scaled,
    observations_are_constant,
    reward_is_constant,
    value_dominates,
    value_explains_nothing,
)


def ppo_checks(recipe: PPORecipe, spec: EnvSpec, num_envs: int) -> dict[str, Check]:
    """Return the checks of PPO. `num_envs`: of all ranks."""
    ppo, env, policy = recipe.ppo, recipe.env, recipe.policy
    rate, more_entropy = ppo.learning_rate, f"ppo.ent_coef={max(0.01, 10 * ppo.ent_coef):.3g}"
    checks: dict[str, Check] = {
        "entropy": partial(
            entropy_collapsed, floor=entropy_floor(spec.action), ent_coef=ppo.ent_coef, learning_rate=rate
        ),
        "ratios": partial(kl_too_large, target_kl=ppo.target_kl, learning_rate=rate),
        "gradient": _gradient_check("grad_norm", "ppo", ppo, env),
        "explained variance": partial(
            value_explains_nothing,
            vf_coef=ppo.vf_coef,
            vf_clip_coef=ppo.vf_clip_coef,
            reward_scale=env.reward_scale,
            normalized=ppo.normalize_values or policy.target is not None,
            value_trains_core=ppo.value_trains_core or policy.target is not None,
            core=policy.core if policy.target is None else "custom",
        ),
        **_env_checks(recipe, spec, num_envs, explore=more_entropy),
        "observations": partial(
            observations_are_constant, env_id=env.id, core=policy.core if policy.target is None else "custom"
        ),
    }
    if policy.target is None and ppo.value_trains_core and not policy.separate_critic:  # else it is not measured
        checks["value gradient"] = partial(value_dominates, vf_coef=ppo.vf_coef, normalized=ppo.normalize_values)
    if policy.target is None and not policy.normalize_observations:
        checks["observation scale"] = observations_are_badly_scaled
    return checks


def mixture_checks(recipe: MixtureRecipe, spec: EnvSpec, agents: int, num_envs: int) -> dict[str, Check]:
    """Return the checks of a mixture. `num_envs`: of all its agents."""
    names = [f"agent{number}" for number in range(agents)]
    checks = {
        f"gradient of {name}": _gradient_check(f"{name}/grad_norm", "pqn", recipe.pqn, recipe.env) for name in names
    }
    checks["gradient of the BigAgent"] = _gradient_check("big/grad_norm", "dqn", recipe.dqn, recipe.env)
    longer = f"pqn.epsilon_end={min(1.0, max(0.1, 2 * recipe.pqn.epsilon_end)):g}"
    return checks | _env_checks(recipe, spec, num_envs, explore=longer)


def reward_checks(recipe: RewardRecipe, spec: EnvSpec) -> dict[str, Check]:
    """Return the checks of an agent that learns together with its reward network."""
    longer = f"agent.warmup_steps={max(1_000, 10 * recipe.agent.warmup_steps)}"
    return _env_checks(recipe, spec, recipe.agent.num_envs, explore=longer, episodic=False)


def _gradient_check(name: str, section: str, settings: Any, env: EnvConfig) -> Check:
    return partial(
        gradient_exploded,
        name=name,
        section=section,
        max_grad_norm=settings.max_grad_norm,
        learning_rate=settings.learning_rate,
        reward_scale=env.reward_scale,
    )


def _env_checks(
    recipe: Recipe, spec: EnvSpec, num_envs: int, *, explore: str, episodic: bool | None = None
) -> dict[str, Check]:
    """Return the checks of rewards and episodes."""
    env, family = recipe.env, family_of(recipe.env.id)
    limited = family is None or family.name not in ("recall", "pettingzoo")  # else env.max_steps has no effect
    limit = f"env.max_steps={spec.max_steps or 1_000}" if limited else "env.options.max_cycles=1000"
    checks: dict[str, Check] = {
        "reward": partial(
            reward_is_constant,
            env_id=env.id,
            reward_scale=env.reward_scale,
            reward_clip=env.reward_clip,
            episodic=env.episodic if episodic is None else episodic,
            max_steps=spec.max_steps if limited else None,
            explore=explore,
        ),
    }
    if family is None or family.name != "recall":  # its delays end every episode
        checks["episodes"] = partial(episodes_never_end, num_envs=num_envs, max_steps=spec.max_steps, limit=limit)
    return checks
