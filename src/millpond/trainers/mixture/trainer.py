"""Mixture training: agents learn separately with PQN, one BigAgent learns from all their steps, they become its clones.

round > phase (the agents', then the BigAgent's) > portion (a collection, or some of the BigAgent's updates)

With several ranks each has a share of the agents, and all train the one BigAgent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from millpond.config import Loaded, MixtureRecipe
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
from millpond.planner import MixturePlan, plan_loaded
from millpond.planner.mixture.numbers import big_updates_of_round
from millpond.planner.planned import share_of_rank
from millpond.record import Counters, Recorder, Sink, Timer
from millpond.replay import Steps
from millpond.report import Picture
from millpond.store import Checkpoints, Parts, RandomState, Run, RunError, seed_global_generators
from millpond.trainers.common.callbacks import Callbacks
from millpond.trainers.common.envs import VectorState, make_spec
from millpond.trainers.common.failures import Learning, as_numbers, explaining_failures
from millpond.trainers.common.health import mixture_checks
from millpond.trainers.common.play import Evaluation
from millpond.trainers.common.policy import LoadedPolicy
from millpond.trainers.common.reporting import next_steps, report_at_end
from millpond.trainers.common.session import make_sinks
from millpond.trainers.mixture.agents import (
    GLOBAL_NUMPY,
    SAMPLER,
    BigAgent,
    choose_vectors,
    make_players,
    seed_for,
    spread,
)
from millpond.trainers.mixture.measures import Diversity, Evaluator, Recovery, summarise_mixture
from millpond.trainers.mixture.ponds import make_ponds
from millpond.trainers.mixture.ranks import (
    StateGroup,
    agent_name,
    agents_of_rank,
    collection_stats,
    evaluate_on_first,
    gather_by_name,
    gather_steps,
    recipe_of_rank,
    record_stats,
    share_networks,
    start_from,
)

AGENTS, BIG = 0, 1  # the phases of a round
UPDATES_PER_PORTION = 256


class MixtureTrainer:
    """One mixture, or one of its controls. `train()` runs it until its end, or until it is stopped."""

    def __init__(
        self,
        loaded: Loaded,
        run: Run,
        *,
        weights_from: Run | None = None,
        ranks: Ranks = ALONE,
        callbacks: tuple[Any, ...] = (),
    ) -> None:
        recipe, planned = share_of_rank(loaded, ranks.count).recipe, plan_loaded(loaded).plan
        assert isinstance(recipe, MixtureRecipe)
        assert isinstance(planned, MixturePlan)
        self.recipe = recipe = recipe_of_rank(recipe, ranks)
        self.plan, self.run, self.ranks = planned, run, ranks
        self.live = planned.mode == "live"
        seed_global_generators(
            python=recipe.seed,
            torch=seed_for(recipe.seed, SAMPLER),
            numpy=seed_for(recipe.seed, GLOBAL_NUMPY, ranks.rank),
        )
        self.timer, self.counters = Timer(), Counters()
        self.ponds = make_ponds(recipe, planned, run.folder / "lake", ranks)
        choice = choose_vectors(recipe, planned, run, ranks)
        self.players = make_players(recipe, planned, None if self.ponds is None else self.ponds.lake, ranks, choice)
        self.group, self.big = self.players.group, self.players.big
        self.names = [*map(agent_name, range(planned.agents)), "big"]  # of all ranks' agents, and of the BigAgent
        self.evaluator, self.recovery = Evaluator(recipe), Recovery()
        self.diversity = Diversity(recipe.device, planned.agents, ranks)
        self.extra: dict[str, float] = {}  # for the record of this portion
        self._learned: list[dict[str, dict[str, Any]]] = []  # metrics by agent, of the last two collections
        self.score: float | None = None
        self.final_evaluation: Evaluation | None = None
        self.summary_lines: list[str] = []
        self.picture: Picture | None = None
        self.players.reset_vectors()
        self.loop = self._make_loop()
        self.recorder = Recorder(run.metrics_path, self.counters, self._make_sinks()) if ranks.first else NoRecorder()
        self.callbacks = Callbacks(callbacks, run, self.loop, self.counters, ranks, self._current_policy)
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            keep_last=recipe.checkpoint.keep_last or 10**9,
            keep_every=recipe.checkpoint.keep_every,
        )
        self.parts = self._make_parts()
        start_from(ranks, self.group.networks, None if self.big is None else self.big.dqn, weights_from)
        if run.resumed and restore_over_ranks(ranks, self.checkpoints, self.parts):
            ranks.run_on_first(self._check_position)
            if not self.players.spec.savable:  # episodes restart
                self.group.begin_episodes()
                if self.big is not None:
                    self.big.begin_episodes()
        if self.ponds is not None and self.big is not None:
            self.ponds.open()
            if self.live and run.resumed:
                self.big.pond.restore(self.names, continue_episodes=self.ponds.savable)

    def _make_sinks(self) -> list[Sink]:
        spec = next(iter(self.players.vectors.values())).spec
        checks = mixture_checks(self.recipe, spec, self.plan.agents, self.plan.agents * self.recipe.pqn.num_envs)
        return make_sinks(self.recipe, self.run, self.loop, self.counters, self.timer, checks)

    def train(self) -> None:
        """Run the whole algorithm: steps (1) to (7), until the frames are used up."""
        explaining = explaining_failures(
            self.recipe, self.run, self.checkpoints, self.counters, self._diagnose, first=self.ranks.first
        )
        with training_over_ranks(self.ranks, self.run, self.loop, self.recorder), explaining:
            self.callbacks.start()
            for at in self.loop.run(max_seconds=self.timer.seconds_left(self.recipe.trainer.max_seconds)):
                if at["phase"] == AGENTS:
                    steps = self._collect(at)  # (1) The agents train separately, each with its own pond;
                    self._pour(at, steps)  # (2) full ponds are poured into the lake meanwhile;
                    self._learn()  # (3) until the round's collections are done.
                    if self.live:
                        self._learn_live(at, steps)
                else:
                    self._fill(at)  # (4) A BigPond is filled uniformly from the lake;
                    self._train_big_agent(at)  # (5) the BigAgent trains on it, (6) until its updates are done.
                self._evaluate(at)
                if self._ends(at, "round"):
                    self._reset()  # (7) The agents become clones of the BigAgent, and their exploration restarts.
            self.callbacks.end()
        if self.ranks.first:
            # Before the report, whose time is not part of training.
            self.summary_lines = summarise_mixture(self.plan, self.counters, self.timer.shares(), self.final_evaluation)
            self.picture = report_at_end(self.run)

    def close(self) -> None:
        """Finish pouring, stop workers, close files, and release the run folder."""
        if self.ponds is not None:
            self.ponds.close()
        self.evaluator.close()
        self.players.close()
        self.run.close()

    def opening(self) -> list[str]:
        """Return lines about the vectors and the lake, printed when a run starts."""
        vector = next(iter(self.players.vectors.values()))
        lines = sentence(f"vectors, one per agent: {vector.backend}; {vector.reason}")
        return lines + ([] if self.ponds is None else [f"lake {self.run.shown / self.ponds.lake.folder.name}"])

    def summary(self) -> list[str]:
        """Return lines about evaluation, speed and time, printed when a run is complete."""
        if not self.loop.done:
            return []
        return [*self.summary_lines, "", *next_steps(self.run, self.picture, longer="mixture.total_frames")]

    # -- the stages of a mixture round

    def _collect(self, at: Address) -> dict[str, Steps]:
        """Collect with each agent of this rank (and the BigAgent); record the stats of all ranks; return steps by name."""
        with self.timer("collect"):
            collected = dict(zip(self.players.names, self.group.collect(), strict=True))
            self.diversity.fix_observations(list(collected.values()))
            collected |= self.big.collect() if self.big else {}
            stats_by_name = gather_by_name(self.ranks, {name: collection_stats(c) for name, c in collected.items()})
        for name, stats in stats_by_name.items():
            self.counters.env_steps += stats["env_steps"]
            self.counters.episodes += len(stats["episodes"])
            record_stats(self.loop, name, stats)
        self.counters.agent_steps = self.counters.env_steps
        self.counters.frames = self.counters.env_steps * self.plan.frame_skip
        if self.ponds is None:
            return {}
        versions = dict(zip(self.players.names, self.group.updates, strict=True))
        versions["big"] = self.big.dqn.updates if self.big else 0
        schema, now = self.ponds.lake.schema, at["round"]
        return {
            name: own.as_steps(schema, agent=self.names.index(name), round_number=now, policy_version=versions[name])
            for name, own in collected.items()
        }

    def _pour(self, at: Address, steps: dict[str, Steps]) -> None:
        if self.ponds is not None:
            with self.timer("pour"):  # the time that training waits; the rest is concurrent
                self.ponds.add(list(steps.values()))
                if self._ends(at, "phase"):
                    self.ponds.flush()
                else:
                    self.ponds.pour_full()

    def _learn(self) -> None:
        with self.timer("learn"):
            metrics = gather_by_name(self.ranks, dict(zip(self.players.names, self.group.learn(), strict=True)))
        self.counters.updates += self.group.updates_per_collection * self.plan.agents
        if self.big is None:
            self.score = None  # it belongs to other weights
        self._learned = [*self._learned[-1:], metrics]
        for name, values in metrics.items():
            for key, value in values.items():
                self.loop.record(f"{name}/{key}", value, weight=self.group.updates_per_collection)

    def _learn_live(self, at: Address, steps: dict[str, Steps]) -> None:
        """Add the steps of all agents to the BigPond and train the BigAgent, after every collection (mode live)."""
        assert self.big is not None
        if at.begins("round"):
            self.big.epsilon.reset()
        collections = self._collections(at["round"])
        with self.timer("train_big"):
            self.big.pond.add(gather_steps(self.ranks, steps))
            self._update(self.big, spread(self._big_updates(at["round"]), collections, at["portion"]))

    def _fill(self, at: Address) -> None:
        assert self.big is not None
        if at.begins("phase") or self.big.pond.empty:  # a run resumed in this phase draws the same again
            with self.timer("fill"):
                drawn = self.big.pond.fill(at["round"], begins=at.begins("phase"))
            if at.begins("phase"):
                self.big.epsilon.reset()
                self.extra["big/pond_transitions"] = drawn

    def _train_big_agent(self, at: Address) -> None:
        assert self.big is not None
        done = at["portion"] * UPDATES_PER_PORTION
        with self.timer("train_big"):
            self._update(self.big, min(UPDATES_PER_PORTION, self._big_updates(at["round"]) - done))

    def _update(self, big: BigAgent, updates: int) -> None:
        big.update(updates, self.loop.record)
        self.score = None  # it belongs to other weights
        self.counters.updates += updates

    def _reset(self) -> None:
        if self.big is None or not self.plan.resets:
            return
        mixture = self.recipe.mixture
        with self.timer("reset"):
            ladder = mixture.epsilon_ladder or [mixture.epsilon_reset_to] * self.plan.agents
            own = agents_of_rank(self.ranks, self.plan.agents)
            self.group.clone_from(
                self.big.dqn.mean,
                epsilon_reset_to=[ladder[number] for number in own],
                keep_optimizer=mixture.clone_optimizer == "keep",
            )

    # -- evaluation

    def _evaluate(self, at: Address) -> None:
        """Evaluate the agents at the end of their phase, and before that until they have recovered; then the BigAgent."""
        due = self.evaluator.due(at["round"], self.plan.rounds)
        with self.timer("evaluate"):
            if at["phase"] == AGENTS and ((due and self._ends(at, "phase")) or self._is_recovery_check_due(at)):
                self._evaluate_agents(last=self._ends(at, "phase"))
            if due and self._ends(at, "round"):
                self._evaluate_policy()

    def _is_recovery_check_due(self, at: Address) -> bool:
        every = max(1, self._collections(at["round"]) // (self.recipe.mixture.recovery_checks + 1))
        return self.recovery.level is not None and (at["portion"] + 1) % every == 0

    def _evaluate_agents(self, *, last: bool) -> None:
        own = {
            name: self.evaluator(network).mean
            for name, network in zip(self.players.names, self.group.networks, strict=True)
        }
        means = gather_by_name(self.ranks, own)
        self.extra |= {f"{name}/eval/episode_return": mean for name, mean in means.items()}
        self.extra["agents/eval/episode_return"] = mean = float(np.mean(list(means.values())))
        self.extra |= self.recovery.check(mean, self.group.updates[0], last=last)

    def _evaluate_policy(self) -> None:
        """Evaluate the result of the run. Clones equal the BigAgent bit for bit, so this is their evaluation, too."""
        evaluation = evaluate_on_first(self.ranks, lambda: self.evaluator(self.players.policy))
        self.final_evaluation = evaluation
        self.score = evaluation.mean
        self.extra |= evaluation.metrics()
        if self.big is not None:
            self.extra["big/eval/episode_return"] = evaluation.mean
            weights = self.big.dqn.network
            if self.recipe.dqn.mean_decay is not None:
                raw = evaluate_on_first(self.ranks, lambda: self.evaluator(weights))
                self.extra["big_raw/eval/episode_return"] = raw.mean
        if self.plan.resets:
            self.extra |= self.recovery.reset(evaluation.mean, self.group.updates[0])
        self.callbacks.evaluation(evaluation)

    def _current_policy(self) -> LoadedPolicy:
        """Return the result of the run as it is now, for callbacks."""
        spec, device = make_spec(self.recipe.env, stacked=True), torch.device(self.recipe.device)
        return LoadedPolicy(self.players.policy, self.recipe, spec, acts_greedily=True, device=device)

    # -- the loop and its hooks

    def _make_loop(self) -> Loop:
        plan, recipe = self.plan, self.recipe
        loop = Loop(
            round=plan.rounds,
            phase=1 if self.live or plan.mode == "single" else 2,
            portion=lambda at: self._portions(at["round"], at["phase"]),
        )
        loop.at_end("portion", self._write_record)
        if recipe.checkpoint.interval is not None:
            loop.at_end("round", lambda ended: loop.request_save(), every=recipe.checkpoint.interval)
            if recipe.checkpoint.interval == 1:
                loop.at_end("phase", lambda ended: loop.request_save())
        loop.on_save(self._save)
        return loop

    def _save(self) -> None:
        share_networks(self.ranks, self.players.networks)
        save_over_ranks(self.ranks, self.checkpoints, self.counters.updates, self.parts, self.score)
        self.callbacks.checkpoint(self.checkpoints.path(self.counters.updates))

    def _collections(self, round_number: int) -> int:
        """Return the number of collections of this mixture round; the last one may be shorter."""
        plan = self.plan
        complete = round_number < plan.whole_rounds
        return plan.collections_per_round if complete else plan.last_round_collections

    def _big_updates(self, round_number: int) -> int:
        """Return the number of the BigAgent's updates in this mixture round."""
        return big_updates_of_round(self.recipe, self._collections(round_number) * self.plan.env_steps_per_collection)

    def _portions(self, round_number: int, phase: int) -> int:
        if phase == AGENTS:
            return self._collections(round_number)
        return -(-self._big_updates(round_number) // UPDATES_PER_PORTION)

    def _diagnose(self, error: NonFiniteError) -> Learning:
        """Describe the updates of the agent, or the update of the BigAgent, that gave a number that is not finite."""
        name = next((name for name in self.names if f"{name}/" in error.name), "big")
        cloned = error.name.startswith("weight") and self.big is not None and not self.big.usable
        if self.big is not None and (name == "big" or cloned):  # agents with bad weights may be clones
            return self.big.diagnose()
        own = self.players.names.index(name) if name in self.players.names else 0
        learned = [as_numbers(metrics[name]) for metrics in self._learned if name in metrics]
        now, step = self.group.updates[own], self.group.updates_per_collection
        return Learning(
            "pqn",
            self.group.learning_rate(own, max(0, now - 1)),
            f"updates {now - step + 1:,} to {now:,} of {name}",
            learned[-1] if learned else {},
            learned[-2] if len(learned) > 1 else {},
            f"mean of the updates {now - 2 * step + 1:,} to {now - step:,}",
            {} if name not in self.players.names else self.group.storage.of_agent(own),
        )

    def _check_position(self) -> None:
        """Refuse a new number of frames that changes rounds already done: a short last round cannot be completed later."""
        at, done = self.loop.address, self.group.updates[0] // self.group.updates_per_collection
        within = at["portion"] if at["phase"] == AGENTS else self._collections(at["round"])
        planned = sum(map(self._collections, range(at["round"]))) + within
        if done != planned:
            raise RunError(
                f"mixture.total_frames={self.plan.total_frames:,}: run {self.run.name!r} has done {done} collections of "
                f"each agent, and with this many frames it would have done {planned} by now: its last round was shorter, "
                f"and cannot be completed afterwards. Only runs of complete rounds, of {self.plan.frames_per_round:,} "
                f"frames each, can be made longer"
            )

    def _ends(self, at: Address, level: str) -> bool:
        """Return True if the current phase or round ends with this portion."""
        sizes = self.loop.sizes
        last = at["portion"] + 1 == sizes["portion"]
        return last and (level == "phase" or at["phase"] + 1 == sizes["phase"])

    def _write_record(self, ended: LevelEnd) -> None:
        times = self.timer.take()
        metrics = {**ended.means(), **self._status_metrics(), **self.extra, **times}
        self.recorder.write(self.callbacks.iteration(metrics))
        self.extra = {}

    def _status_metrics(self) -> dict[str, float]:
        """Return metrics of exploration, updates, the lake, replayed transitions by agent, and diversity."""
        group, big = self.group, self.big
        metrics: dict[str, float] = {"diversity": self.diversity(group.networks)}
        own = zip(self.players.names, group.epsilons, group.updates, strict=True)
        of_agents = gather_by_name(self.ranks, {name: (epsilon.value, updates) for name, epsilon, updates in own})
        for name, (epsilon, updates) in of_agents.items():
            metrics |= {f"{name}/epsilon": epsilon, f"{name}/updates": updates}
        if big is not None and self.ponds is not None:
            metrics |= {"big/epsilon": big.epsilon.value, "big/updates": big.dqn.updates}
            metrics |= {f"replayed/{self.names[k]}": count for k, count in enumerate(big.replayed.tolist())}
            metrics |= self.ponds.metrics()
        return metrics

    # -- the parts of a checkpoint

    def _make_parts(self) -> Parts:
        players, ranks = self.players, self.ranks
        weights: dict[str, Any] = dict(zip(self.names, players.networks, strict=False))
        envs = {f"envs_{name}": VectorState(v, players.seeds[name]) for name, v in players.vectors.items()}
        state: dict[str, Any] = {
            "group": PerRank(ranks, self.group),
            **(envs if ranks.alone else {"envs": PerRank(ranks, StateGroup(envs))}),
            "diversity": self.diversity,
            "random": PerRank(ranks, RandomState()),
            "callbacks": self.callbacks,
        }
        values: dict[str, Any] = {
            "loop": self.loop,
            "counters": self.counters,
            "recorder": self.recorder,
            "recovery": self.recovery,
        }
        if self.big is not None and self.ponds is not None:
            weights["big"], state["big"], values["ponds"] = self.big.dqn.mean, self.big, self.ponds
        return Parts(weights, state, values, may_lack=("callbacks",))
