"""Trainer of a reward network: epoch > cycle > iteration > batch.

batch      sample steps, loss, gradient, R_loss recorded; the target network every `train_target` updates
iteration  average of R_loss shown (printed if verbose); online, envs are stepped and the normaliser is updated
cycle      one record (one TensorBoard point, x = updates), and a table; online, test rollouts
epoch      summary on held-out episodes, checkpoint every `save_freq`; the end of training always saves
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.config import Loaded, RewardRecipe
from millpond.devices import is_emulated, make_generator, to_device
from millpond.distributed import ALONE
from millpond.errors import MillpondError
from millpond.formatting import plural, sentence
from millpond.loop import LevelEnd, Loop, NonFiniteError, Redraw
from millpond.planner import RewardPlan, plan_loaded
from millpond.record import Console, Counters, Recorder, Timer, cycle_rows
from millpond.report import Picture
from millpond.rewards.batches import RewardBatches, recorded_inputs
from millpond.store import Checkpoints, Parts, RandomState, Run, load_weights, seed_global_generators, training
from millpond.trainers.common.callbacks import Callbacks
from millpond.trainers.common.failures import Learning, explaining_failures
from millpond.trainers.common.health import reward_checks
from millpond.trainers.common.play import Evaluation
from millpond.trainers.common.policy import LoadedPolicy
from millpond.trainers.common.reporting import next_steps, report_at_end
from millpond.trainers.common.session import make_sinks
from millpond.trainers.reward.agent import PondBatches, RewardAgent, choose_agent_vector
from millpond.trainers.reward.evaluation import HeldOutEvaluation, evaluate_reward, summarise_reward
from millpond.trainers.reward.setup import RecordedData, audit_recorded, fit_network, make_network, open_recorded


class RewardTrainer:
    """One training run. `train()` runs it to its end, or until it is stopped.

    Offline it has recorded episodes and no agent; in full mode it has an agent, whose pond holds the episodes.
    """

    def __init__(
        self,
        loaded: Loaded,
        run: Run,
        *,
        weights_from: Run | None = None,
        recorded: RecordedData | None = None,
        callbacks: tuple[Any, ...] = (),
    ) -> None:
        recipe = loaded.recipe
        assert isinstance(recipe, RewardRecipe)
        if recorded is None and recipe.reward.reward_only:
            recorded = open_recorded(recipe)
        planned = plan_loaded(loaded, dataset=recorded.dataset if recorded else None).plan
        assert isinstance(planned, RewardPlan)
        self.recipe, self.plan, self.run = recipe, planned, run
        self.device = torch.device(recipe.device)
        seeds = np.random.SeedSequence(recipe.seed).generate_state(7)
        seed_global_generators(python=int(seeds[0]), torch=int(seeds[1]), numpy=int(seeds[6]))
        self.sampler = np.random.default_rng(int(seeds[2]))
        noise = make_generator(self.device, int(seeds[4]))

        self.recorded = recorded
        self.agent: RewardAgent | None = None
        if self.recorded is not None:
            self.network = make_network(recipe, recorded_inputs(self.recorded.data), int(seeds[3]))
            fit_network(self.network, self.recorded)
        else:
            choice = choose_agent_vector(recipe, run, self.device)
            self.agent = RewardAgent(recipe, int(seeds[5]), planned.batches, self.device, choice)
            self.network = make_network(recipe, self.agent.inputs, int(seeds[3]))
        to_device(self.network, self.device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        fused = self.device.type in ("cpu", "cuda") or is_emulated(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=recipe.reward.learning_rate, fused=fused)

        self.timer, self.counters = Timer(), Counters()
        self.loop = self._make_loop()
        checks = None if self.agent is None else reward_checks(recipe, self.agent.spec)
        sinks = make_sinks(recipe, run, self.loop, self.counters, self.timer, checks)
        self.console = next(sink for sink in sinks if isinstance(sink, Console))
        self.recorder = Recorder(run.metrics_path, self.counters, sinks)
        self.callbacks = Callbacks(callbacks, run, self.loop, self.counters, ALONE, self._current_policy)
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            keep_last=recipe.checkpoint.keep_last or 10**9,
            keep_every=recipe.checkpoint.keep_every,
        )
        self.parts = Parts(
            weights={
                "reward": self.network,
                "target": self.target,
                **({} if self.agent is None else {"agent": self.agent.player}),
            },
            state={
                "optimizer": self.optimizer,
                "random": RandomState(sampler=self.sampler, noise=noise),
                **({} if self.agent is None else {"agent": self.agent}),
                "callbacks": self.callbacks,
            },
            values={"loop": self.loop, "counters": self.counters, "recorder": self.recorder},
            may_lack=("callbacks",),
        )
        self._R_loss: Tensor | None = None  # of the newest batch
        self._measured: tuple[dict[str, float], str] = ({}, "")  # gradient norm, and the update it is of
        self.held_out: HeldOutEvaluation | None = None
        self.tested: Evaluation | None = None
        self.summary_lines: list[str] = []
        self.picture: Picture | None = None
        self.score: float | None = None
        if weights_from is not None:
            saved = weights_from.checkpoint()
            load_weights({"reward": self.network}, saved.weights, f"run {weights_from.name!r}, checkpoint {saved.path}")
            self.target.copy_from(self.network)
        if run.resumed:
            self.checkpoints.restore(self.parts)
        self.batches = self._make_batches(noise)

    def _make_batches(self, noise: torch.Generator) -> RewardBatches | PondBatches:
        reward = self.recipe.reward
        per_batch, steps = reward.episodes_per_batch, reward.steps_per_episode
        if self.agent is not None:
            batches = PondBatches(self.agent.pond, self.network, per_batch=per_batch, steps=steps)
            batches.refresh()
            return batches
        assert self.recorded is not None
        return RewardBatches(
            self.network,
            self.recorded.data,
            self.recorded.training,
            per_batch=per_batch,
            steps=steps,
            device=self.device,
            others=self.recorded.others,
            input_noise=reward.input_noise,
            noise=noise,
        )

    def train(self) -> None:
        """Run to the end, or until the run is stopped."""
        explaining = explaining_failures(self.recipe, self.run, self.checkpoints, self.counters, self._diagnose)
        with training(self.run, self.loop, self.recorder), explaining:
            self.callbacks.start()
            self.play()
            self.callbacks.end()
        self.summary_lines = summarise_reward(
            self.counters, self.held_out, self.tested
        )  # before the report takes its time
        self.picture = report_at_end(self.run)

    def play(self, until: int | None = None) -> None:
        """The whole algorithm, optionally only until a total number of batches has been trained."""
        log_batches, verbose = self.recipe.reward.log_batches, self.recipe.log.verbose
        for at in self.loop.run(until, max_seconds=self.timer.seconds_left(self.recipe.trainer.max_seconds)):
            if self.agent is not None and at.begins("iteration"):
                self._act(self.agent)
            with self.timer("train"):
                loss = self._update()
                if self.agent is not None:
                    self._update_agent(self.agent)
            self._R_loss = loss
            self.loop.record("R_loss", loss)
            if verbose and self.counters.updates % log_batches == 0:
                self.console.say(f"{self.loop.address}: R_loss {float(loss):.6f}")

    def _update(self) -> Tensor:
        """Take one gradient step of the reward network, and update its target if due; return the loss in reward units."""
        loss = self.batches.loss(self.sampler)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.counters.updates += 1
        if self.counters.updates % self.recipe.reward.train_target == 0:
            self.target.copy_from(self.network)
        return loss.detach() * self.batches.unit

    # Full mode

    def _act(self, agent: RewardAgent) -> None:
        """Step the envs, at first with random actions, and update the normaliser with the observations."""
        assert isinstance(self.batches, PondBatches)
        settings = self.recipe.agent
        first = self.counters.env_steps == 0
        warmup = [(settings.warmup_steps, True)] if first and settings.warmup_steps else []
        for env_steps, at_random in [*warmup, (settings.steps_per_iteration, False)]:
            with self.timer("act"):
                episodes = agent.act(env_steps, at_random=at_random)
            for name, value in agent.reward_stats().items():
                self.loop.record(name, value, weight=env_steps * settings.num_envs)
            for episode in episodes:
                self.loop.record("episode_return", float(np.mean(episode.returns)))
                self.loop.record("episode_length", float(episode.length))
            self.counters.env_steps += env_steps * settings.num_envs
            self.counters.agent_steps += env_steps * settings.num_envs
            self.counters.frames += env_steps * settings.num_envs * agent.spec.frame_skip
            self.counters.episodes += len(episodes)
            if self.network.normalizer is not None:
                self.network.normalizer.update(agent.observations())
        self.batches.refresh()
        if not self.batches.episodes:
            raise MillpondError(
                f"no episode of {agent.spec.id} has ended within agent.warmup_steps={settings.warmup_steps} and "
                f"agent.steps_per_iteration={settings.steps_per_iteration}, so there is no return to learn from; raise "
                f"agent.warmup_steps, or lower env.max_steps"
            )
        if first:
            self.network.set_scale(self.batches.mean_return)
            self.target.copy_from(self.network)

    def _update_agent(self, agent: RewardAgent) -> None:
        for name, value in agent.update(self.target).items():
            self.loop.record(name, value)

    def close(self) -> None:
        """Stop the workers, if there are any, and release the run folder."""
        if self.agent is not None:
            self.agent.close()
        self.run.close()

    def opening(self) -> list[str]:
        """Lines printed at the start: totals of the hierarchy, and the data."""
        totals = f"{self.loop.describe()} batch{'es' if self.plan.batches > 1 else ''}, one update each"
        if self.agent is not None:
            kind = type(self.agent.learner).__name__
            vector = sentence(f"vector: {self.agent.vector.backend}; {self.agent.vector.reason}")
            steps = f"{kind} on {self.agent.spec.id}, {self.plan.env_steps:,} env steps"
            return [totals, steps, *vector, *self.agent.lines]
        assert self.recorded is not None
        assert isinstance(self.batches, RewardBatches)
        features = self.batches.features
        warnings = [] if self.run.resumed else audit_recorded(self.recipe, self.recorded)
        storage = f"cached, {features.nbytes:,} bytes" if features.cached else "computed when steps are sampled"
        return [
            totals,
            *self.recorded.describe(),
            f"objective {self.recipe.reward.objective}; features are {storage}",
            *(line for finding in warnings for line in sentence(f"{finding.what}: {finding.meaning}.", 0, "audit: ")),
        ]

    def summary(self) -> list[str]:
        """Lines printed at the end: metrics, and commands to run next."""
        if not self.loop.done:
            return []
        score = f"  millpond reward score {self.run.reference} EPISODES   # the learned reward of every step"
        return [
            *self.summary_lines,
            *next_steps(self.run, self.picture, longer="reward.epochs"),
            score,
        ]

    # The loop and its hooks

    def _make_loop(self) -> Loop:
        plan = self.plan
        loop = Loop(epoch=plan.epochs, cycle=plan.cycles, iteration=plan.iterations, batch=plan.train_batches)
        loop.at_end("iteration", self._end_iteration)
        loop.at_end("cycle", self._end_cycle)
        loop.at_end("epoch", self._end_epoch)
        loop.at_end("epoch", lambda ended: loop.request_save(), every=plan.save_freq)
        loop.on_save(self._save)
        loop.on_non_finite(Redraw(self._sampler_state, self._redraw, self.run.save_batch))
        return loop

    def _end_iteration(self, ended: LevelEnd) -> None:
        self._measure_gradient()
        iteration, size = ended.address["iteration"], self.plan.iterations
        loss = ended.moments["R_loss"]
        self.console.measure({"R_loss": loss.mean})
        if self.recipe.log.verbose:
            self.console.say(f"Iteration {iteration}/{size}: {loss.count} batches, average R_loss {loss.mean:.6f}")

    def _end_cycle(self, ended: LevelEnd) -> None:
        """Write one record: with test rollouts in full mode; offline, at the end of an epoch, with held-out metrics."""
        evaluation: dict[str, float] = {}
        if self.agent is not None:
            with self.timer("test"):
                self.tested = self.agent.test()
            evaluation, self.score = self.tested.metrics(), self.tested.mean
            self.callbacks.evaluation(self.tested)
        elif ended.last and self._evaluation_due(ended.address["epoch"]):
            assert self.recorded is not None
            with self.timer("test"):
                self.held_out = evaluate_reward(self.network, self.recorded, self.device)
            if self.held_out is not None:
                evaluation, self.score = self.held_out.metrics(), self.held_out.score
                self.callbacks.evaluation(self.held_out)
        metrics = {**ended.means(), **evaluation, **self.timer.take()}
        record = self.recorder.write(self.callbacks.iteration(metrics))
        shown = {name: value for name, value in record.items() if name.count("/") < 2}  # baselines are in the summary
        if self.recorded is not None:  # offline no env is stepped: show the size of the data
            lengths = self.recorded.data.lengths[self.recorded.training]
            shown |= {"episodes": len(lengths), "agent_steps": int(lengths.sum())}
        self.console.table(cycle_rows(ended.address, self.loop.sizes, shown))

    def _evaluation_due(self, epoch: int) -> bool:
        every = self.recipe.eval.interval or 1
        return (epoch + 1) % every == 0 or epoch + 1 == self.plan.epochs

    def _end_epoch(self, ended: LevelEnd) -> None:
        loss = ended.moments["R_loss"]
        number, batches = ended.address["epoch"], plural(loss.count, "batch")
        text = f"Epoch {number}/{self.plan.epochs}: {batches}, average R_loss {loss.mean:.6f}"
        shown = [] if self.held_out is None or ended.last else self.held_out.lines()  # the last is in the summary
        self.console.say("\n".join([text, *shown]))

    def _save(self) -> None:
        path = self.checkpoints.save(self.counters.updates, self.parts, self.score)
        self.score = None  # it belongs to this checkpoint only
        self.callbacks.checkpoint(path)

    def _current_policy(self) -> LoadedPolicy | None:
        """Return the agent as it is now, for callbacks; None offline."""
        if self.agent is None:
            return None
        greedy = self.recipe.eval.deterministic is not False
        return LoadedPolicy(self.agent.player, self.recipe, self.agent.spec, acts_greedily=greedy, device=self.device)

    # Dump of the batch that led to a non-finite value

    def _diagnose(self, error: NonFiniteError) -> Learning:
        """Describe the update of the reward network, or of its agent, that gave a number that is not finite."""
        updates = self.counters.updates
        if self.agent is not None and not error.name.startswith(("R_loss", "weight reward/", "weight target/")):
            return self.agent.diagnose()
        rate = self.optimizer.param_groups[0]["lr"]
        loss = {} if self._R_loss is None else {"R_loss": float(self._R_loss)}
        return Learning("reward", rate, f"update {updates:,}", loss, *self._measured)

    def _measure_gradient(self) -> None:
        """Measure the gradient of the newest batch, once per iteration, for the message of a loss that becomes NaN."""
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
        self._measured = {"grad_norm": float(norm)}, f"update {self.counters.updates:,}"

    def _sampler_state(self) -> dict[str, object]:
        return dict(self.sampler.bit_generator.state)

    def _redraw(self, state: dict[str, object], skip: int) -> dict[str, Tensor]:
        rng = np.random.default_rng()
        rng.bit_generator.state = state
        for _ in range(skip):
            self.batches.skip(rng)
        return self.batches.sample(rng)
