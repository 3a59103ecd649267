"""The plan of reward learning: epoch > cycle > iteration > batch, counted out."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.config.recipe import RewardRecipe


@dataclass(frozen=True)
class RewardPlan:
    """What a reward run will do. One batch is one gradient update."""

    epochs: int
    cycles: int
    iterations: int
    train_batches: int
    batches_per_iteration: int
    batches_per_cycle: int
    batches_per_epoch: int
    batches: int
    records_per_cycle: int
    lines_per_cycle: int
    iteration_lines_per_cycle: int
    tensorboard_points: int
    checkpoints: int
    save_freq: int
    target_updates: int
    objective: str
    reward_only: bool
    episodes_per_batch: int
    steps_per_episode: int
    steps_per_batch: int
    steps_in_all: int
    dataset_episodes: int | None
    dataset_steps: int | None
    training_episodes: int | None
    passes_over_data: float | None
    env_steps: int
    env_steps_per_cycle: int
    test_episodes: int


def plan_reward(recipe: RewardRecipe) -> RewardPlan:
    """Derive everything."""
    reward, data, agent = recipe.reward, recipe.data, recipe.agent
    epochs = min(reward.epochs, recipe.trainer.total_iterations or reward.epochs)
    per_cycle = reward.iterations * reward.train_batches
    per_epoch = reward.cycles * per_cycle
    batches = epochs * per_epoch
    save_freq = reward.save_freq or recipe.checkpoint.interval or 1
    steps_per_batch = reward.episodes_per_batch * reward.steps_per_episode

    training_episodes = passes = None
    if data.expected_episodes is not None:
        held_out = len(set(data.held_out)) or round(data.expected_episodes * data.holdout)
        training_episodes = data.expected_episodes - held_out
        if data.expected_steps is not None:
            steps = data.expected_steps * training_episodes / data.expected_episodes
            passes = batches * steps_per_batch / steps if steps else None
    online = not reward.reward_only
    acted = epochs * reward.cycles * reward.iterations * agent.steps_per_iteration + agent.warmup_steps
    return RewardPlan(
        epochs=epochs,
        cycles=reward.cycles,
        iterations=reward.iterations,
        train_batches=reward.train_batches,
        batches_per_iteration=reward.train_batches,
        batches_per_cycle=per_cycle,
        batches_per_epoch=per_epoch,
        batches=batches,
        records_per_cycle=per_cycle,
        lines_per_cycle=per_cycle // reward.log_batches,
        iteration_lines_per_cycle=reward.iterations,
        tensorboard_points=epochs * reward.cycles,
        checkpoints=-(-epochs // save_freq),
        save_freq=save_freq,
        target_updates=batches // reward.train_target,
        objective=reward.objective,
        reward_only=reward.reward_only,
        episodes_per_batch=reward.episodes_per_batch,
        steps_per_episode=reward.steps_per_episode,
        steps_per_batch=steps_per_batch,
        steps_in_all=batches * steps_per_batch,
        dataset_episodes=data.expected_episodes,
        dataset_steps=data.expected_steps,
        training_episodes=training_episodes,
        passes_over_data=passes,
        env_steps=acted * agent.num_envs if online else 0,
        env_steps_per_cycle=reward.iterations * agent.steps_per_iteration * agent.num_envs if online else 0,
        test_episodes=epochs * reward.cycles * agent.test_episodes if online else 0,
    )
