"""Recurrent PPO: collect rows, estimate advantages, train on minibatches, record, save; repeat.

iteration > update_epoch > minibatch
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from millpond.config import Loaded, PPORecipe
from millpond.devices import make_generator
from millpond.distributed import (
    ALONE,
    NoRecorder,
    PerRank,
    Ranks,
    restore_over_ranks,
    save_over_ranks,
    training_over_ranks,
)
from millpond.formatting import sentence
from millpond.loop import Address, LevelEnd, Loop, NonFiniteError
from millpond.losses import Coefficients, mean_and_variance
from millpond.planner import PPOPlan, plan_loaded
from millpond.planner.planned import plan_over_ranks, share_of_rank
from millpond.planner.ppo.advice import plain_reasons
from millpond.processor import prepare_bfloat16
from millpond.record import Counters, Recorder, Sink, Timer
from millpond.report import Picture
from millpond.rollout.collector import Collected, Collector
from millpond.rollout.micro_batch import Advantages
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import Draw, draw_minibatches
from millpond.rollout.schema import row_fields
from millpond.store import Checkpoints, Parts, RandomState, Run, seed_global_generators
from millpond.threads import torch_in_one_thread, torch_threads
from millpond.trainers.common.build import make_policy
from millpond.trainers.common.callbacks import Callbacks
from millpond.trainers.common.envs import (
    VectorState,
    begin_with_weights,
    collected_by_all,
    evaluation_vector,
    make_spec,
    rank_device,
    rank_seeds,
)
from millpond.trainers.common.failures import Learning, as_numbers, explaining_failures
from millpond.trainers.common.health import ppo_checks
from millpond.trainers.common.play import Evaluation, evaluate
from millpond.trainers.common.policy import LoadedPolicy
from millpond.trainers.common.reporting import next_steps, report_at_end, summarise
from millpond.trainers.common.session import make_sinks
from millpond.trainers.ppo.advantages import Estimator, estimate_advantages, refresh_advantages
from millpond.trainers.ppo.build import (
    autocast,
    make_actor,
    make_network,
    make_optimizer,
    make_updater,
    make_vector,
    prepare_device,
)
from millpond.trainers.ppo.device_update import DeviceUpdate, hold_learning_rate_on_device, require_constant_decay
from millpond.trainers.ppo.measures import EVERY, gradient_is_due, observation_ranges, value_gradient_share
from millpond.trainers.ppo.reward_model import OnlineRewardModel, make_reward_model
from millpond.trainers.ppo.schedule_free import ScheduleFreeAdamW, averaged
from millpond.trainers.ppo.scheduled import ScheduledSettings
from millpond.trainers.ppo.update import Step, Updater, refresh_rows, train_minibatch, update_value_scale


class PPOTrainer:
    """One PPO run. `train()` runs it to its end, or until it is stopped."""

    def __init__(
        self,
        loaded: Loaded,
        run: Run,
        *,
        weights_from: Run | None = None,
        ranks: Ranks = ALONE,
        callbacks: tuple[Any, ...] = (),
    ) -> None:
        recipe, share = loaded.recipe, share_of_rank(loaded, ranks.count)
        assert isinstance(recipe, PPORecipe)
        planned, total = plan_loaded(share).plan, plan_over_ranks(loaded, ranks.count).plan
        assert isinstance(planned, PPOPlan)
        assert isinstance(total, PPOPlan)
        self.recipe, self.run, self.ranks = recipe, run, ranks
        self.plan, self.share = total, planned  # of all ranks, and of this one
        self.device = rank_device(recipe.device, ranks.place)
        if recipe.trainer.precision == "bfloat16" and self.device.type == "cpu":
            prepare_bfloat16()
        seeds = rank_seeds(recipe.seed, ranks.rank)
        seed_global_generators(python=seeds[0], torch=seeds[1], numpy=seeds[5])
        self.sampler = np.random.default_rng(seeds[2])

        self.timer, self.counters = Timer(), Counters()
        spec = make_spec(recipe.env, stacked=True)
        policy = make_policy(recipe, spec, self.device)
        state_shape = tuple(policy.initial_state(1, self.device).shape[1:])
        policy.value_trains_core = recipe.ppo.value_trains_core
        self.policy = policy
        begin_with_weights(ranks, {"policy": policy}, weights_from)
        prepare_device(recipe.trainer, self.device)
        self.optimizer = make_optimizer(
            recipe.ppo, self.policy, capturable=recipe.trainer.graphs and self.device.type != "cpu"
        )
        self.updater = make_updater(policy, recipe.trainer, self.device)
        self.network = make_network(policy, recipe.trainer, self.device)  # the same policy, to refresh values with
        actor = make_actor(policy, recipe.trainer, self.device)
        assert isinstance(share.recipe, PPORecipe)
        self.vector = make_vector(share.recipe, planned, spec, policy, actor, run, ranks, self.device)
        self.named_agents = spec.named_agents
        agents_per_row = planned.num_agents if planned.batch_unit == "env_steps" else 1
        self.rows = Rows(
            row_fields(
                spec,
                state_shape,
                ratio=recipe.ppo.recompute_advantage,
                baseline=recipe.ppo.reward_centering is not None,
                learned_reward=recipe.ppo.reward_model is not None,
            ),
            planned.buffer_rows,
            planned.bptt_horizon,
            planned.num_agents,
            agents_per_row,
            "cpu" if recipe.trainer.cpu_offload else str(self.device),
            resets_state=recipe.ppo.reset_state,
        )
        self.reward_model = make_reward_model(recipe, spec, self.rows, run, self.device)
        self.collector = Collector(
            self.vector,
            self.rows,
            actor,
            num_rows=planned.segments,
            state_shape=state_shape,
            device=str(self.device),
            generator=make_generator(self.device, seeds[3]),
            phase=self.timer,
            zero_state=recipe.ppo.row_state == "zero",
            bootstraps_truncation=recipe.ppo.bootstrap_truncation and not recipe.ppo.ignore_truncation,
            bootstraps_row_end=recipe.ppo.row_end == "bootstrap",
            next_observations=None if self.reward_model is None else self.reward_model.next_observations,
        )
        self.scheduled = ScheduledSettings(recipe, total.iterations)
        self.now = self.scheduled.at(0)  # settings of the current iteration
        self.advantages: Advantages  # of the current rows
        self.coefficients: Coefficients  # of the current iteration
        self.on_device: DeviceUpdate | None = None
        if self.device.type != "cpu":
            captures = recipe.trainer.graphs and ranks.all_reduce is None  # else only acting is captured
            self.on_device = DeviceUpdate(planned.minibatch_segments, self.device, captures=captures)
            if captures:
                require_constant_decay(self.now.scheduled)
        self.vector.reset(seeds[4])

        self.loop = self._make_loop()
        self.recorder = Recorder(run.metrics_path, self.counters, self._make_sinks()) if ranks.first else NoRecorder()
        self.callbacks = Callbacks(callbacks, run, self.loop, self.counters, ranks, self._current_policy)
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            keep_last=recipe.checkpoint.keep_last or 10**9,
            keep_every=recipe.checkpoint.keep_every,
        )
        self.parts = Parts(
            weights={
                "policy": self.policy,
                **({"reward": self.reward_model.network} if isinstance(self.reward_model, OnlineRewardModel) else {}),
            },
            state={
                "optimizer": self.optimizer,
                "collector": PerRank(ranks, self.collector),
                "vector": PerRank(ranks, VectorState(self.vector, seeds[4])),
                "random": PerRank(ranks, RandomState(sampler=self.sampler)),
                **({} if self.reward_model is None else {"reward_model": self.reward_model}),
                "callbacks": self.callbacks,
            },
            values={"loop": self.loop, "counters": self.counters, "recorder": self.recorder},
            may_lack=("callbacks", "reward_model"),
        )
        self._updates_of_epoch: list[tuple[Draw, Step]] = []  # of this update epoch, and the last one before it
        self.score: float | None = None
        self.last_evaluation: Evaluation | None = None  # not yet in a record
        self.final_evaluation: Evaluation | None = None
        self.figures: list[str] = []
        self.picture: Picture | None = None
        if run.resumed:
            restore_over_ranks(ranks, self.checkpoints, self.parts)
            if isinstance(self.optimizer, ScheduleFreeAdamW):
                self.optimizer.to_training_point()
        if self.on_device is not None and self.on_device.captures:
            hold_learning_rate_on_device(self.optimizer, self.device)

    def _make_sinks(self) -> list[Sink]:
        checks = ppo_checks(self.recipe, self.vector.spec, self.plan.num_envs)
        return make_sinks(self.recipe, self.run, self.loop, self.counters, self.timer, checks)

    def train(self) -> None:
        """Run the algorithm."""
        with training_over_ranks(self.ranks, self.run, self.loop, self.recorder), self._explaining_failures():
            self.callbacks.start()
            for at in self.loop.run(max_seconds=self.timer.seconds_left(self.recipe.trainer.max_seconds)):
                if at.begins("iteration"):
                    self.now = self.scheduled.at(self.loop.totals["iteration"])
                    collected = self._collect()
                    self.advantages = self._estimate()
                    self.coefficients = self.now.coefficients(self.policy, self.rows)
                    self._measure(self.advantages)
                elif self.recipe.ppo.recompute_advantage:
                    self.advantages = self._estimate_again()
                if at.begins("update_epoch"):
                    draws = self._draws()
                    self._updates_of_epoch = self._updates_of_epoch[-1:]
                draw = next(draws)
                if self.recipe.ppo.refresh_values:
                    self._refresh(draw)
                self._update(at, draw, self.advantages)
                if at.begins("iteration"):
                    self._record_collection(collected, self.advantages)
            self.callbacks.end()
        if self.ranks.first:
            self.figures = self._figures()  # before the report, whose time is not part of training
            self.picture = report_at_end(self.run)

    def close(self) -> None:
        """End the workers, and release the run folder."""
        self.vector.close()
        self.run.close()

    def opening(self) -> list[str]:
        """Describe how the envs are stepped, and why, and what keeps training from compiled code."""
        lines = sentence(f"vector: {self.vector.backend}; {self.vector.reason}")
        for reason in plain_reasons(self.recipe) if isinstance(self.updater, Updater) else ():
            lines += sentence(f"training: {reason}")
        return lines

    def summary(self) -> list[str]:
        """Describe return, speed and times of a finished run."""
        if not self.loop.done:
            return []
        return [*self.figures, "", *next_steps(self.run, self.picture, longer="trainer.total_timesteps")]

    def _figures(self) -> list[str]:
        speed = self.counters.agent_steps / max(self.counters.seconds, 1e-9)
        return summarise(self.recipe, self.final_evaluation, self.timer.shares(), speed)

    # -- the stages of an iteration

    def _collect(self) -> Collected:
        self.collector.reward_centering = self.now.ppo.reward_centering
        with self.timer("collect"), self._autocast(), torch_threads(self._acting_threads()):
            collected = collected_by_all(self.ranks, self.collector.collect(), self.share.num_envs)
        self.counters.env_steps += collected.env_steps
        self.counters.agent_steps += collected.agent_steps
        self.counters.frames += collected.env_steps * self.vector.spec.frame_skip
        self.counters.episodes += len(collected.episodes)
        if self.reward_model is not None:
            with self.timer("reward_model"):
                for name, value in self.reward_model.after_collection().items():
                    self.loop.record(name, value)
        return collected

    def _acting_threads(self) -> int:
        """Leave cores to worker processes, which step one group of envs while the policy acts for the other."""
        workers = self.vector.num_workers if self.vector.backend == "processes" and self.vector.groups > 1 else 0
        return max(1, torch.get_num_threads() - workers)

    def _estimate(self) -> Advantages:
        with self._estimating():
            rows, all_reduce = self.rows, self.ranks.all_reduce
            advantages = estimate_advantages(rows, self.share.segments, self.estimator, all_reduce)
            if self.recipe.ppo.normalize_values:
                update_value_scale(self.policy, self.optimizer, rows, advantages, all_reduce)
            return advantages

    def _estimate_again(self) -> Advantages:
        """Use the ratios and values of the rows that were trained on in this iteration."""
        with self._estimating():
            return refresh_advantages(self.rows, self.advantages, self.estimator, self.ranks.all_reduce)

    @contextmanager
    def _estimating(self) -> Iterator[None]:
        with self.timer("advantage"), torch_in_one_thread() if self.device.type == "cpu" else nullcontext():
            yield

    def _refresh(self, draw: Draw) -> None:
        """Use the values of the drawn rows as the newest weights give them."""
        with self.timer("advantage"), self._autocast():
            refresh_rows(self.network.unroll, self.rows, self.advantages, draw, self._micro_batch_rows, self.device)
        self.advantages = self._estimate_again()

    @property
    def estimator(self) -> Estimator:
        return Estimator.of(self.now.ppo)

    @property
    def _micro_batch_rows(self) -> int:
        return self.share.minibatch_segments // self.share.accumulated_parts

    def _measure(self, advantages: Advantages) -> None:
        """Record what warnings need and records would not have otherwise. Nothing else changes."""
        iteration = self.loop.totals["iteration"]
        if not self.ranks.first or iteration % EVERY:
            return
        for name, value in observation_ranges(self.rows, self.share.segments, self.vector.spec.observation).items():
            self.loop.record(name, value)
        ppo = self.recipe.ppo
        shared = ppo.value_trains_core and ppo.critic == "mse" and not self.recipe.policy.separate_critic
        if gradient_is_due(iteration) and self.recipe.policy.target is None and shared:
            rows = self._micro_batch_rows
            with torch_in_one_thread() if self.device.type == "cpu" else nullcontext():
                share = value_gradient_share(self.policy, self.rows, advantages, self.coefficients, rows, self.device)
            self.loop.record("value_gradient_share", share)

    def _draws(self) -> Iterator[Draw]:
        return draw_minibatches(
            self.now.ppo.sampling,
            self.share.segments,
            self.share.minibatch_segments,
            self.sampler,
            priority=self._priority,
            alpha=self.now.ppo.prio_alpha,
            count=self.share.num_minibatches,
            replacement=self.now.ppo.replacement,
            beta=self.now.prio_beta(),
        )

    def _priority(self) -> npt.NDArray[np.float64]:
        priority = self.advantages.priority
        assert priority is not None
        return priority

    def _update(self, at: Address, draw: Draw, advantages: Advantages) -> None:
        with self.timer("train"):
            self.now.set_optimizer(self.optimizer)
            step = train_minibatch(
                self.updater,
                self.optimizer,
                self.rows,
                advantages,
                draw,
                self.coefficients,
                micro_batch_rows=self._micro_batch_rows,
                device=self.device,
                all_reduce=self.ranks.all_reduce,
                on_device=self.on_device,
            )
        self.counters.updates += 1
        self._updates_of_epoch.append((draw, step))
        weight = float(step.agent_steps) if self.device.type == "cpu" else step.agent_steps  # read once, not per metric
        for name, value in step.metrics.items():
            self.loop.record(name, value, weight=weight)
        if self.recipe.ppo.target_kl is not None:
            self._end_early(at, float(step.metrics["approx_kl"]))

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.recipe.trainer, self.device)

    # -- the loop and its hooks

    def _make_loop(self) -> Loop:
        plan, recipe = self.plan, self.recipe
        if recipe.ppo.target_kl is None:
            loop = Loop(iteration=plan.iterations, update_epoch=plan.update_epochs, minibatch=plan.num_minibatches)
        else:  # may end early, so its levels are open
            loop = Loop(iteration=plan.iterations, update_epoch=None, minibatch=None)
        loop.resumable_at("iteration")
        loop.at_end("iteration", self._end_iteration)
        if recipe.eval.interval is not None:
            loop.at_end("iteration", self._evaluate, every=recipe.eval.interval)
        loop.at_end("iteration", self._evaluate_at_the_end, at="last")
        loop.at_end("iteration", self._write_record)
        if recipe.checkpoint.interval is not None:
            loop.at_end("iteration", lambda ended: loop.request_save(), every=recipe.checkpoint.interval)
        loop.on_save(self._save)
        return loop

    def _save(self) -> None:
        """Save a checkpoint. It has a score only right after an evaluation, which the score belongs to."""
        score, self.score = self.score, None
        with averaged(self.optimizer):
            save_over_ranks(self.ranks, self.checkpoints, self.counters.updates, self.parts, score)
        self.callbacks.checkpoint(self.checkpoints.path(self.counters.updates))

    def _explaining_failures(self) -> AbstractContextManager[None]:
        return explaining_failures(
            self.recipe, self.run, self.checkpoints, self.counters, self._diagnose, first=self.ranks.first
        )

    def _diagnose(self, error: NonFiniteError) -> Learning:
        """Describe the update that gave a number that is not finite. Values on a device are read later, at an epoch's end."""
        updates = self._updates_of_epoch
        back = 0 if isinstance(error.address, str) else self.loop.address["minibatch"] - error.address["minibatch"]
        number, rate = self.counters.updates - back, float(self.optimizer.param_groups[0]["lr"])
        if not updates:
            return Learning("ppo", rate, f"update {number:,}")
        at = len(updates) - 1 - back
        draw, step = updates[at]
        rows = torch.from_numpy(draw.rows).to(self.rows.device)
        batch = {name: self.rows[name].index_select(0, rows) for name in self.rows.arrays} | {"rows": rows}
        before = as_numbers(updates[at - 1][1].metrics) if at > 0 else {}
        return Learning(
            "ppo", rate, f"update {number:,}", as_numbers(step.metrics), before, f"update {number - 1:,}", batch
        )

    def _end_early(self, at: Address, approx_kl: float) -> None:
        assert self.now.ppo.target_kl is not None
        over = approx_kl > self.now.ppo.target_kl
        if over or at["minibatch"] + 1 == self.plan.num_minibatches:
            self.loop.end("minibatch")
            if over or at["update_epoch"] + 1 == self.plan.update_epochs:
                self.loop.end("update_epoch")

    def _record_collection(self, collected: Collected, advantages: Advantages) -> None:
        """Record the values of a whole iteration."""
        steps = max(1, collected.agent_steps)
        reward, alive = self.rows["reward"][: self.share.segments], self.rows["alive"][: self.share.segments]
        mean_reward, variance = mean_and_variance(reward, alive, self.ranks.all_reduce)
        terminated = (self.rows["terminated"][: self.share.segments] & alive).sum()
        if self.ranks.all_reduce is not None:
            self.ranks.all_reduce(terminated)
        self.loop.record("reward_per_agent_step", mean_reward, steps)
        self.loop.record("reward_std", variance.sqrt(), steps)
        self.loop.record("termination_rate", terminated / steps, steps)
        if self.now.ppo.reward_centering is not None:
            self.loop.record("average_reward", float(self.collector.average_reward.mean()))
        self.loop.record("explained_variance", advantages.explained_variance)
        for path, number in self.now.scheduled.items():
            self.loop.record(f"schedule/{path}", number)
        if collected.dropped_agent_steps:
            self.loop.record("dropped_agent_steps", float(collected.dropped_agent_steps))
        for episode in collected.episodes:
            self.loop.record("episode_return", sum(episode.returns) / len(episode.returns))
            for name, agents in self.named_agents.items():
                self.loop.record(
                    f"{name}/episode_return", sum(episode.returns[agent] for agent in agents) / len(agents)
                )
            self.loop.record("episode_length", float(episode.length))
            for name, value in episode.info.items():
                self.loop.record(f"env/{name}", float(value))

    def _end_iteration(self, ended: LevelEnd) -> None:
        if self.recipe.policy.normalize_observations:  # not earlier: rows are trained as they were collected
            observation, alive = (self.rows[name][: self.share.segments] for name in ("observation", "alive"))
            self.policy.update_normalizer(observation[alive], self.ranks.all_reduce)
        self.collector.finish()

    def _write_record(self, ended: LevelEnd) -> None:
        times = self.timer.take()
        seconds = sum(seconds for name, seconds in times.items() if name.count("/") == 1)
        evaluated = self.last_evaluation.metrics() if self.last_evaluation is not None else {}
        self.last_evaluation = None
        rate = self.plan.agent_steps / seconds if seconds else 0.0
        metrics = {**ended.means(), **evaluated, **times, "agent_steps_per_second": rate}
        self.recorder.write(self.callbacks.iteration(metrics))

    def _evaluate_at_the_end(self, ended: LevelEnd) -> None:
        if self.last_evaluation is None:
            self._evaluate(ended)

    def _evaluate(self, ended: LevelEnd) -> None:
        self.loop.request_save()
        if self.ranks.first:
            with self.timer("evaluate"), averaged(self.optimizer):
                self.last_evaluation = self.final_evaluation = self.evaluate(self.recipe.eval.episodes)
            self.score = self.last_evaluation.mean
        self.callbacks.evaluation(self.last_evaluation)

    def evaluate(self, episodes: int) -> Evaluation:
        """Evaluate the current policy in separate envs."""
        vector = evaluation_vector(self.recipe.env, self.recipe.vector, episodes)
        with vector:
            return evaluate(
                self.collector.actor.policy,
                vector,
                episodes=episodes,
                seed=self.recipe.eval.seed,
                device=self.device,
                deterministic=bool(self.recipe.eval.deterministic),
            )

    def _current_policy(self) -> LoadedPolicy:
        """Return the policy as it is now, for callbacks."""
        greedy = bool(self.recipe.eval.deterministic)
        return LoadedPolicy(self.policy, self.recipe, self.vector.spec, acts_greedily=greedy, device=self.device)
