"""Checks of a run's records: pure functions of a record and of the records before it, each with settings to try.

To add one, write a function `(record, before) -> str | None`, and name it in the checks of a kind (`kinds.py`). A check looks
at the newest records that have its metric, since not every record has every metric. What is measured for checks alone is cheap:
`millpond.trainers.ppo.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from statistics import fmean, median

from millpond.envs.spec import ActionSpec
from millpond.trainers.common.failures import largest_factor

HISTORY = 200  # records before the current one that checks see
SPACING = 20  # records between two that have a metric, at most
ENTROPY_SHARE = 0.01  # of the largest possible entropy: below it a policy of choices is nearly deterministic
LOG_DEVIATION = -5.0  # below it, relative to half the range of a continuous action, it is nearly deterministic
APPROX_KL = 0.5  # mean of an iteration; healthy runs are below 0.05
SUSTAINED_KL = 0.1  # median of some records
OVER_TARGET_KL = 2.0  # median of some records, relative to ppo.target_kl
KL_RECORDS = 5
GRADIENT_FACTOR = 100.0  # times the median of the records before
GRADIENT_RECORDS = 20
MIN_GRADIENT = 10.0  # and times the norm that it is clipped to
HUGE_GRADIENT = 1e6  # also without records before
VALUE_SHARE = 0.95  # of the gradient of the shared network: 19 times the policy's; healthy runs are below 0.5
VALUE_SHARE_RECORDS, VALUE_SHARE_SPACING = 2, 64
EXPLAINED_VARIANCE = 0.1
EXPLAINED_VARIANCE_RECORDS = 50
SETTLED = 0.1  # returns whose spread is below this share of the largest hardly differ
RISEN = 0.25  # returns whose rise is above this share of their spread are being learned
REWARD_RECORDS, REWARD_STEPS = 5, 1_000  # records, and agent steps in them, whose rewards are all the same
GOAL_RECORDS = 25  # records with the same reward other than 0, in which no episode has reached its goal
SAME = 1e-6  # relative difference of numbers that are the same but for rounding
EPISODE_STEPS = 5_000  # steps of each env without an end of an episode, if the environment has no limit
RANGE_RATIO = 1e4  # between numbers of an observation

Check = Callable[[Mapping[str, float], Sequence[Mapping[str, float]]], str | None]


def newest(
    name: str, record: Mapping[str, float], before: Sequence[Mapping[str, float]], count: int, spacing: int = SPACING
) -> list[Mapping[str, float]] | None:
    """Return the newest `count` records that have a metric, the newest last; None if there are fewer.

    Only the last `spacing` times `count` records are looked at: checks should cost less than what they warn about.
    """
    found = []
    for one in chain((record,), islice(reversed(before), spacing * count)):
        if name in one:
            found.append(one)
            if len(found) == count:
                return found[::-1]
    return None


def entropy_floor(action: ActionSpec) -> float:
    """Return the entropy below which a policy has collapsed.

    Choices: a share of the sum of log(size). Continuous: that of normal distributions with tiny deviations. Both add up.
    """
    choices = ENTROPY_SHARE * sum(math.log(size) for size in action.sizes)
    half = [(high - low) / 2 for low, high in zip(action.low, action.high, strict=True)]
    log_half = [math.log(reach) if 0 < reach < math.inf else 0.0 for reach in half]
    return choices + sum(0.5 * math.log(2 * math.pi * math.e) + LOG_DEVIATION + reach for reach in log_half)


def entropy_collapsed(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    floor: float,
    ent_coef: float,
    learning_rate: float,
) -> str | None:
    """Warn if the policy always chooses the same actions: it no longer explores, and hardly recovers."""
    entropy = record.get("entropy")
    if entropy is None or entropy >= floor:
        return None
    more = f"{max(0.01, 10 * ent_coef):.3g}"
    return (
        f"entropy collapsed to {entropy:.3g} (below {floor:.3g}): the policy no longer explores, which is only good if its "
        f"return is. Try ppo.ent_coef={more}, or ppo.learning_rate={learning_rate / 3:.3g}"
    )


def kl_too_large(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    target_kl: float | None,
    learning_rate: float,
) -> str | None:
    """Warn if the policy changes so much within an iteration that its samples say little about the new policy.

    At once if `approx_kl` is huge; else if it is far above ppo.target_kl, or above what is healthy, for several records.
    """
    rate = f"ppo.learning_rate={learning_rate / 3:.3g}"
    approx_kl = record.get("approx_kl", 0.0)
    fixes = f"ppo.target_kl=0.03, or {rate}" if target_kl is None else rate
    if approx_kl > APPROX_KL:
        return (
            f"approx_kl is {approx_kl:.3g} (healthy: below 0.05): within one iteration probabilities of actions change by a "
            f"factor of at least {largest_factor(approx_kl):.3g}. Try {fixes}"
        )
    some = newest("approx_kl", record, before, KL_RECORDS)
    if some is None:
        return None
    usual = median(one["approx_kl"] for one in some)
    if target_kl is not None and usual > OVER_TARGET_KL * target_kl:
        return (
            f"approx_kl is {usual:.3g}, {usual / target_kl:.3g} times ppo.target_kl={target_kl:g}, in the last {KL_RECORDS} "
            f"iterations: single updates change the policy too much, and most are skipped. Try {fixes}"
        )
    if target_kl is None and usual > SUSTAINED_KL:
        return f"approx_kl is {usual:.3g} in the last {KL_RECORDS} iterations (healthy: below 0.05). Try {fixes}"
    return None


def gradient_exploded(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    name: str,
    section: str,
    max_grad_norm: float,
    learning_rate: float,
    reward_scale: float,
) -> str | None:
    """Warn if the gradient before clipping is far larger than in the records before, or huge."""
    norm = record.get(name)
    if norm is None:
        return None
    usual = [other[name] for other in before[-GRADIENT_RECORDS:] if name in other]
    exploded = len(usual) >= 3 and norm > GRADIENT_FACTOR * median(usual) and norm > MIN_GRADIENT * max_grad_norm
    if not exploded and norm <= HUGE_GRADIENT:
        return None
    compared = f", {norm / max(median(usual), 1e-30):,.3g} times its median before" if usual else ""
    return (
        f"{name} is {norm:.3g} before clipping to {section}.max_grad_norm={max_grad_norm:g}{compared}. Try "
        f"{section}.learning_rate={learning_rate / 3:.3g}, or env.reward_scale={reward_scale / 10:g}"
    )


def value_dominates(
    record: Mapping[str, float], before: Sequence[Mapping[str, float]], *, vf_coef: float, normalized: bool
) -> str | None:
    """Warn if nearly all of the gradient of the network that actions and value share is the value loss's."""
    some = newest("value_gradient_share", record, before, VALUE_SHARE_RECORDS, VALUE_SHARE_SPACING)
    if some is None or min(one["value_gradient_share"] for one in some) <= VALUE_SHARE:
        return None
    return (
        f"{some[-1]['value_gradient_share']:.1%} of the gradient of the network that actions and value share is the value "
        f"loss's: gradients are clipped together, so the policy hardly learns. Try "
        f"{'' if normalized else 'ppo.normalize_values=true, '}ppo.value_trains_core=false, or ppo.vf_coef={vf_coef / 10:.3g}"
    )


def value_explains_nothing(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    vf_coef: float,
    vf_clip_coef: float | None,
    reward_scale: float,
    normalized: bool,
    value_trains_core: bool,
    core: str,
) -> str | None:
    """Warn if `explained_variance` has been near 0, or negative, for long: values are no better than their mean."""
    if record.get("explained_variance", 0.0) >= EXPLAINED_VARIANCE:
        return None
    some = newest("explained_variance", record, before, EXPLAINED_VARIANCE_RECORDS)
    if some is None or max(one["explained_variance"] for one in some) >= EXPLAINED_VARIANCE:
        return None
    if same_reward(record, before) is not None or returns_are_settled(some):  # then there is little to explain
        return None
    returns = newest("episode_return", record, before, 1)
    fixes = []
    if vf_clip_coef is not None:
        fixes.append("ppo.vf_clip_coef=null")
    if not normalized and returns and abs(returns[0]["episode_return"] * reward_scale) > 10:
        fixes.append("ppo.normalize_values=true")
    if not value_trains_core:
        fixes.append("ppo.value_trains_core=true")
    if not fixes:
        fixes.append(f"ppo.vf_coef={max(0.5, 2 * vf_coef):g}")
    if core == "none":
        fixes.append("policy.core=lstm if one observation does not show the whole state")
    return (
        f"explained_variance has been below {EXPLAINED_VARIANCE:g} for {EXPLAINED_VARIANCE_RECORDS} iterations: values predict "
        f"returns no better than their mean, so advantages are noisy. Try {', or '.join(fixes)}"
    )


def returns_are_settled(records: Sequence[Mapping[str, float]]) -> bool:
    """Return True if the returns hardly differ, or have risen: a good policy makes values alike, and differences small."""
    returns = [one["episode_return"] for one in records if "episode_return" in one]
    if len(returns) < 4:
        return False
    spread, quarter = max(returns) - min(returns), len(returns) // 4
    rise = fmean(returns[-quarter:]) - fmean(returns[:quarter])
    return spread <= SETTLED * max(map(abs, returns)) or rise > RISEN * spread


def same_reward(record: Mapping[str, float], before: Sequence[Mapping[str, float]]) -> float | None:
    """Return the reward of all steps of the newest records, if it is the same and makes all returns the same; else None.

    A reward of 0 does. Another one does if no episode of the run has ever terminated: else the length of an episode makes a
    difference, also where a good policy is never terminated any more.
    """
    some = newest("reward_std", record, before, REWARD_RECORDS)
    if some is None or any(one["reward_std"] > SAME * abs(one["reward_per_agent_step"]) for one in some):
        return None
    rewards = [one["reward_per_agent_step"] for one in some]
    if max(rewards) - min(rewards) > SAME * max(map(abs, rewards)):
        return None
    known = len(before) < HISTORY  # from the start of the run on
    if rewards[-1] != 0 and (not known or any(one.get("termination_rate", 0) > 0 for one in chain(some, before))):
        return None
    return rewards[-1]


def reward_is_constant(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    env_id: str,
    reward_scale: float,
    reward_clip: float | None,
    episodic: bool,
    max_steps: int | None,
    explore: str,
) -> str | None:
    """Warn if all rewards of several records are the same, so that nothing can be learned from them.

    `explore`: an override with which the agent explores more; `max_steps`: limit of an episode, if the config can raise it.
    """
    reward = same_reward(record, before)
    if reward is None or record.get("agent_steps", 0) < REWARD_STEPS:
        return None
    records = REWARD_RECORDS if reward == 0 else GOAL_RECORDS
    if newest("reward_std", record, before, records) is None:
        return None
    start = f"all rewards of the last {records} records are {reward:g}"
    look = f"If there should have been others, look at the environment: millpond envs check {env_id}"
    if reward_clip is not None and abs(abs(reward / reward_scale) - reward_clip) <= SAME * reward_clip:
        return (
            f"{start}, which is the bound of env.reward_clip={reward_clip:g}, and no episode has terminated. Try "
            f"env.reward_clip=null. {look}"
        )
    if reward != 0:
        longer = f", or env.max_steps={2 * max_steps} if episodes are cut off too early" if max_steps else ""
        return (
            f"{start}, and no episode has terminated: every return is the same, whatever the policy does. If an episode ends "
            f"at a goal, it has not been reached yet: try {explore}{longer}. {look}"
        )
    paid = "env.episodic=false, which pays rewards at every step, or " if episodic else ""
    return (
        f"{start}: there is nothing to learn from. If rewards are rare, the first one has to be found by chance: try "
        f"{paid}{explore}, or a longer run. {look}"
    )


def episodes_never_end(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    num_envs: int,
    max_steps: int | None,
    limit: str,
) -> str | None:
    """Warn if no episode has ended for more steps of each env than the limit of its environment, or than are usual.

    `limit`: an override that limits them.
    """
    if "episodes" not in record or "env_steps" not in record:
        return None
    ended, since = record["episodes"], 0.0
    if before and before[-1].get("episodes") != ended:
        return None
    if ended:
        since = next((one["env_steps"] for one in before if one.get("episodes") == ended), record["env_steps"])
    steps = (record["env_steps"] - since) / num_envs
    if steps <= (EPISODE_STEPS if max_steps is None else max_steps):
        return None
    known = "the environment has no limit" if max_steps is None else f"the limit is {max_steps:,} steps"
    return (
        f"no episode has ended in the last {int(steps):,} steps of each env, and {known}: there are no returns, and an "
        f"evaluation, which plays whole episodes, does not end. Try {limit}"
    )


def observations_are_constant(
    record: Mapping[str, float], before: Sequence[Mapping[str, float]], *, env_id: str, core: str
) -> str | None:
    """Warn if all sampled observations of an iteration are equal."""
    some = newest("observation_range", record, before, 1)
    if some is None or some[0]["observation_range"] > 0:
        return None
    memory = ", or policy.core=lstm if memory of past steps is enough" if core == "none" else ""
    return (
        f"all observations are equal: the policy cannot tell one state from another. Unless the environment has one state "
        f"only, it is broken: try `millpond envs check {env_id}`{memory}"
    )


def observations_are_badly_scaled(record: Mapping[str, float], before: Sequence[Mapping[str, float]]) -> str | None:
    """Warn if some numbers of the observation vary so much more than others that the network cannot see the others."""
    some = newest("observation_range_ratio", record, before, 1)
    if some is None or some[0]["observation_range_ratio"] <= RANGE_RATIO:
        return None
    return (
        f"one number of the observation varies {some[0]['observation_range_ratio']:,.3g} times as much as another: the network "
        f"sees little of the others. Try policy.normalize_observations=true"
    )
