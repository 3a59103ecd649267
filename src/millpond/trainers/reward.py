"""Learning a reward from episodes: epoch > cycle > iteration > batch.

batch      draw steps, loss, gradient, R_loss recorded; the target network every `train_target` updates
iteration  average of R_loss printed; online, envs are stepped and the normaliser is updated
cycle      table on the console, one record (one TensorBoard point, x = updates); online, test rollouts
epoch      summary on held-out episodes, checkpoint every `save_freq`; the end of training always saves
"""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch import Tensor

from millpond.config import Loaded, RewardRecipe
from millpond.loop import Ended, Loop, Redraw
from millpond.planner import RewardPlan, plan_loaded
from millpond.planner.lines import sentence
from millpond.record import Console, Counters, Recorder, Timer, cycle_rows
from millpond.rewards.batches import RewardBatches
from millpond.rewards.network import Inputs, RewardNetwork, reset_parameters
from millpond.rewards.source import inputs_of
from millpond.store import Checkpoints, Parts, RandomState, Run, load_weights, training
from millpond.trainers.reward_data import audit_recorded, open_recorded
from millpond.trainers.reward_evaluation import HeldOut, evaluate_reward
from millpond.trainers.sinks import make_sinks


class RewardTrainer:
    """Everything of one offline run. `train()` runs it to its end, or to where it is stopped."""

    def __init__(self, loaded: Loaded, run: Run, *, weights_from: Run | None = None) -> None:
        recipe = loaded.recipe
        assert isinstance(recipe, RewardRecipe)
        planned = plan_loaded(loaded).plan
        assert isinstance(planned, RewardPlan)
        self.recipe, self.plan, self.run = recipe, planned, run
        self.device = torch.device(recipe.device)
        seeds = np.random.SeedSequence(recipe.seed).generate_state(5)
        random.seed(int(seeds[0]))
        torch.manual_seed(int(seeds[1]))
        self.sampler = np.random.default_rng(int(seeds[2]))
        noise = torch.Generator(self.device).manual_seed(int(seeds[4]))

        self.recorded = open_recorded(recipe)
        data, episodes = self.recorded.data, self.recorded.training
        self.network = make_network(recipe, inputs_of(data), int(seeds[3]))
        if self.network.normalizer is not None:
            self.network.normalizer.set_moments(*data.moments(episodes), count=int(data.lengths[episodes].sum()))
        if data.returns is not None and self.network.of_transitions:
            self.network.set_scale(data.returns[episodes] / data.lengths[episodes])
        self.network.to(self.device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=recipe.reward.learning_rate, fused=self.device.type in ("cpu", "cuda")
        )

        self.timer, self.counters = Timer(), Counters()
        self.loop = self._make_loop()
        sinks = make_sinks(recipe, run, self.loop, self.counters, self.timer)
        self.console = next(sink for sink in sinks if isinstance(sink, Console))
        self.recorder = Recorder(run.metrics_path, self.counters, sinks)
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            keep_last=recipe.checkpoint.keep_last or 10**9,
            keep_every=recipe.checkpoint.keep_every,
        )
        self.parts = Parts(
            weights={"reward": self.network, "target": self.target},
            state={"optimizer": self.optimizer, "random": RandomState(sampler=self.sampler, noise=noise)},
            values={"loop": self.loop, "counters": self.counters, "recorder": self.recorder},
        )
        self.held_out: HeldOut | None = None
        if weights_from is not None:
            load_weights({"reward": self.network}, weights_from.weights(), f"run {weights_from.name!r}")
        if run.resumed:
            self.checkpoints.restore(self.parts)
        self.batches = RewardBatches(
            self.network,
            data,
            episodes,
            per_batch=recipe.reward.episodes_per_batch,
            steps=recipe.reward.steps_per_episode,
            device=self.device,
            others=self.recorded.others,
            input_noise=recipe.reward.input_noise,
            noise=noise,
        )

    def train(self) -> None:
        """Run to the end, or to where the run is stopped."""
        with training(self.run, self.loop, self.recorder):
            self.play()

    def play(self, until: int | None = None) -> None:
        """The whole algorithm; perhaps only until so many batches have been trained in all."""
        log_batches = self.recipe.reward.log_batches
        for _ in self.loop.run(until, max_seconds=self.recipe.trainer.max_seconds):
            with self.timer("train"):
                loss = self._update()
            self.loop.record("R_loss", loss)
            if self.counters.updates % log_batches == 0:
                self.console.say(f"{self.loop.address}: R_loss {float(loss):.6f}")

    def _update(self) -> Tensor:
        """One gradient step of the reward network, and its target where that is due."""
        loss = self.batches.loss(self.sampler)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.counters.updates += 1
        if self.counters.updates % self.recipe.reward.train_target == 0:
            self.target.follow(self.network)
        return loss.detach()

    def close(self) -> None:
        """Nothing is held open."""

    def opening(self) -> list[str]:
        """Totals of the hierarchy, and what is trained on."""
        prepared = self.batches.steps
        warnings = [] if self.run.resumed else audit_recorded(self.recipe, self.recorded)
        how = f"prepared, {prepared.nbytes:,} bytes" if prepared.prepared else "read as they are drawn"
        return [
            f"{self.loop.describe()} batch{'es' if self.plan.batches > 1 else ''}, one update each",
            *self.recorded.describe(),
            f"objective {self.recipe.reward.objective}; steps are {how}",
            *(line for found in warnings for line in sentence(f"{found.what}: {found.meaning}.", 0, "audit: ")),
        ]

    def summary(self) -> list[str]:
        """Held-out figures beside the baselines, and what to do next."""
        if not self.loop.done:
            return []
        lines = [] if self.held_out is None else self.held_out.lines()
        return [
            *lines,
            "",
            f"{self.counters.updates:,} updates in {self.counters.seconds:.0f} seconds",
            f"Run folder: {self.run.folder}",
            f"  millpond reward score {self.run.name} EPISODES   # the learned reward of every step",
            f"  millpond train --resume {self.run.name} reward.epochs=...   # longer",
        ]

    # -- the loop and its hooks

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

    def _end_iteration(self, ended: Ended) -> None:
        iteration, size = ended.address["iteration"], self.plan.iterations
        loss = ended.moments["R_loss"]
        self.console.say(f"Iteration {iteration}/{size}: {loss.count} batches, average R_loss {loss.mean:.6f}")

    def _end_cycle(self, ended: Ended) -> None:
        """One record; at the end of an epoch it also has the figures of held-out episodes."""
        found: dict[str, float] = {}
        if ended.last and self._evaluation_due(ended.address["epoch"]):
            with self.timer("test"):
                self.held_out = evaluate_reward(self.network, self.recorded, self.device)
            found = self.held_out.metrics() if self.held_out is not None else {}
        record = self.recorder.write({**ended.means(), **found, **self.timer.take()})
        shown = {name: value for name, value in record.items() if name.count("/") < 2}  # baselines: in the summary
        seen = {"episodes": len(self.recorded.training), "agent_steps": int(self.batches.lengths.sum())}
        self.console.table(cycle_rows(ended.address, self.loop.sizes, shown | seen))

    def _evaluation_due(self, epoch: int) -> bool:
        every = self.recipe.eval.interval or 1
        return (epoch + 1) % every == 0 or epoch + 1 == self.plan.epochs

    def _end_epoch(self, ended: Ended) -> None:
        loss = ended.moments["R_loss"]
        text = (
            f"Epoch {ended.address['epoch']}/{self.plan.epochs}: {loss.count:,} batches, average R_loss {loss.mean:.6f}"
        )
        shown = [] if self.held_out is None or ended.last else self.held_out.lines()  # the last: in the summary
        self.console.say("\n".join([text, *shown]))

    def _save(self) -> None:
        self.checkpoints.save(self.counters.updates, self.parts, None if self.held_out is None else self.held_out.score)

    # -- a batch behind a value that was not finite

    def _sampler_state(self) -> dict[str, object]:
        return dict(self.sampler.bit_generator.state)

    def _redraw(self, state: dict[str, object], skip: int) -> dict[str, Tensor]:
        rng = np.random.default_rng()
        rng.bit_generator.state = state
        for _ in range(skip):
            self.batches.skip(rng)
        return self.batches.drawn_batch(rng)


def make_network(recipe: RewardRecipe, inputs: Inputs, seed: int) -> RewardNetwork:
    """The network of a config, from one seed."""
    reward = recipe.reward
    network = RewardNetwork(
        reward.objective, inputs, reward.hidden_size, normalize=reward.normalize, clip=reward.normalize_clip
    )
    reset_parameters(network, torch.Generator().manual_seed(seed))
    return network
