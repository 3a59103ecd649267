"""The purpose of settings of the algorithm in which two PPO configs differ."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config import PPORecipe
from millpond.config.check import flatten
from millpond.config.rules import show
from millpond.config.schedules import schedules_of
from millpond.config.style import STYLE_KEYS

# By key: what it is for, and what each choice gives.
PURPOSES = {
    "ppo.reward_centering": "rewards less the average reward of their agent make values relative to it, so that a discount of "
    "1 is possible and all of the future counts; null: values are discounted sums.",
    "ppo.gamma": "how far ahead rewards count, about 1 / (1 - gamma) steps; 1 weighs them all alike and needs reward "
    "centering or episodes that end.",
    "ppo.gae_lambda": "how many rewards an advantage sums before it relies on the value; larger is less biased and noisier.",
    "ppo.critic": "gtd_lambda follows the gradient of the value's error through bootstrapped values, too, and trains an "
    "auxiliary head for it; mse treats targets as fixed, is faster and compiled.",
    "ppo.refresh_values": "true uses the newest values of each minibatch in its advantages, for one more forward pass; false "
    "uses those of the collection.",
    "ppo.recompute_advantage": "true estimates advantages again before each minibatch, false once per iteration, which is "
    "cheaper.",
    "ppo.normalize_advantage": "minibatch gives every gradient the same scale, iteration keeps differences between "
    "minibatches.",
    "ppo.log_ratio_clamp": "a bound keeps one step with an extreme probability ratio from overflowing the loss.",
    "ppo.clip_coef": "how far an iteration may move the policy's probabilities.",
    "ppo.vf_clip_coef": "a clip keeps the value near that of the collection; null lets it move freely.",
    "ppo.ent_coef": "a larger bonus keeps the policy random for longer.",
    "ppo.optimizer": "schedule_free_adamw averages weights instead of decaying the learning rate, so that the run's length "
    "need not be known; evaluations and checkpoints use the average. muon orthogonalises the updates of matrices. The step of "
    "adam is compiled.",
    "ppo.learning_rate": "step size of the optimiser, comparable only between equal optimisers.",
    "ppo.sampling": "uniform mixes the rows of a minibatch anew, sequential takes them in order, so that a minibatch has "
    "neighbouring envs; prioritized prefers rows with large advantages.",
    "trainer.bptt_horizon": "longer rows train memory over more steps and give advantages more rewards, but fewer rows fill a "
    "minibatch.",
}


def purposes(first: PPORecipe, second: PPORecipe) -> Iterator[str]:
    """Yield each setting of the algorithm that differs, with both values and what it is for."""
    ours, theirs = flatten(first), flatten(second)
    by_style = {one.key for one in STYLE_KEYS if one.as_millpond} if first.ppo.style != second.ppo.style else set()
    for key, purpose in PURPOSES.items():
        if ours[key] != theirs[key] and key not in by_style:
            yield f"{key}={show(ours[key])} against {show(theirs[key])}: {purpose}"
    changing = [{one.path for one in schedules_of(flat)} for flat in (ours, theirs)]
    if changing[0] != changing[1]:
        named = [", ".join(sorted(paths)) or "nothing" for paths in changing]
        yield f"Schedules: {named[0]} against {named[1]}."
