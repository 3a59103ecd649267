"""Lake and ponds: agents that learn apart with PQN, one BigAgent that learns from all they did, clones of it, again.

round > phase (the agents', then the BigAgent's) > portion (a collection, or some of the BigAgent's updates)

Of several ranks each has a share of the agents, and all of them train the one BigAgent.
"""

from __future__ import annotations

import random
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
from millpond.loop import Address, LevelEnd, Loop
from millpond.planner import MixturePlan, plan_loaded
from millpond.planner.lines import sentence
from millpond.planner.mixture.numbers import big_updates_of_round
from millpond.planner.planned import share_of_rank
from millpond.record import Counters, Recorder, Timer
from millpond.replay import Steps
from millpond.report import Picture
from millpond.store import Checkpoints, Parts, RandomState, Run, RunError
from millpond.trainers.common.envs import VectorState
from millpond.trainers.common.evaluate import Evaluation
from millpond.trainers.common.reporting import next_steps, report_at_end
from millpond.trainers.common.session import make_sinks
from millpond.trainers.mixture.big_agent import BigAgent, spread
from millpond.trainers.mixture.build import agent_name, make_players, make_ponds
from millpond.trainers.mixture.measures import Diversity, Judge, Recovery, summarise_mixture
from millpond.trainers.mixture.networks import SAMPLER, seed_for
from millpond.trainers.mixture.ranks import (
    Together,
    agents_of_rank,
    begin_with,
    figures_of,
    judged_by_first,
    recipe_of_rank,
    record_figures,
    share_networks,
    steps_of_all,
    told_by_all,
)

AGENTS, BIG = 0, 1  # the phases of a round
UPDATES_PER_PORTION = 256


class MixtureTrainer:
    """Everything of one mixture, or of one of its controls. `train()` runs it to its end, or to where it is stopped."""

    def __init__(self, loaded: Loaded, run: Run, *, weights_from: Run | None = None, ranks: Ranks = ALONE) -> None:
        recipe, planned = share_of_rank(loaded, ranks.count).recipe, plan_loaded(loaded).plan
        assert isinstance(recipe, MixtureRecipe)
        assert isinstance(planned, MixturePlan)
        self.recipe = recipe = recipe_of_rank(recipe, ranks)
        self.plan, self.run, self.ranks = planned, run, ranks
        self.live = planned.mode == "live"
        random.seed(recipe.seed)
        torch.manual_seed(seed_for(recipe.seed, SAMPLER))
        self.timer, self.counters = Timer(), Counters()
        self.ponds = make_ponds(recipe, planned, run.folder / "lake", ranks)
        self.players = make_players(recipe, planned, None if self.ponds is None else self.ponds.lake, ranks)
        self.group, self.big = self.players.group, self.players.big
        self.names = [*map(agent_name, range(planned.agents)), "big"]  # of all ranks' agents, and of the BigAgent
        self.judge, self.recovery = Judge(recipe), Recovery()
        self.diversity = Diversity(recipe.device, planned.agents, ranks)
        self.extra: dict[str, float] = {}  # for the record of this portion
        self.score: float | None = None
        self.final_evaluation: Evaluation | None = None
        self.figures: list[str] = []
        self.picture: Picture | None = None
        self.players.reset_vectors()
        self.loop = self._make_loop()
        self.recorder = (
            Recorder(run.metrics_path, self.counters, make_sinks(recipe, run, self.loop, self.counters, self.timer))
            if ranks.first
            else NoRecorder()
        )
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            keep_last=recipe.checkpoint.keep_last or 10**9,
            keep_every=recipe.checkpoint.keep_every,
        )
        self.parts = self._make_parts()
        begin_with(ranks, self.group.networks, None if self.big is None else self.big.dqn, weights_from)
        if run.resumed and restore_over_ranks(ranks, self.checkpoints, self.parts):
            ranks.run_on_first(self._check_position)
        if self.ponds is not None and self.big is not None:
            self.ponds.open()
            if self.live and run.resumed:
                self.big.pond.restore(self.names, continue_episodes=self.ponds.savable)

    def train(self) -> None:
        """The whole algorithm: steps (1) to (7), until the frames are used up."""
        with training_over_ranks(self.ranks, self.run, self.loop, self.recorder):
            for at in self.loop.run(max_seconds=self.timer.seconds_left(self.recipe.trainer.max_seconds)):
                if at["phase"] == AGENTS:
                    steps = self._collect(at)  # (1) the agents train, each on its own and into a pond of its own;
                    self._pour(at, steps)  # (2) full ponds empty into the lake meanwhile;
                    self._learn()  # (3) until the round's collections are done.
                    if self.live:
                        self._learn_live(at, steps)
                else:
                    self._fill(at)  # (4) A BigPond is filled uniformly from the lake;
                    self._train_big_agent(at)  # (5) the BigAgent trains on it, (6) until its updates are done.
                self._evaluate(at)
                if self._ends(at, "round"):
                    self._reset()  # (7) The agents become clones of the BigAgent, and explore anew.
        if self.ranks.first:
            self.figures = self._figures()  # before the report, whose time is not the training's
            self.picture = report_at_end(self.run)

    def close(self) -> None:
        """End workers, finish pouring, close files."""
        if self.ponds is not None:
            self.ponds.close()
        self.judge.close()
        self.players.close()

    def opening(self) -> list[str]:
        """How the envs are stepped, and where the lake is."""
        vector = next(iter(self.players.vectors.values()))
        lines = sentence(f"vectors, one an agent: {vector.backend}; {vector.reason}")
        return lines + ([] if self.ponds is None else [f"lake {self.ponds.lake.folder}"])

    def summary(self) -> list[str]:
        """Return, speed and where the time went, when the run is over."""
        if not self.loop.done:
            return []
        return [*self.figures, "", *next_steps(self.run, self.picture, longer="mixture.total_frames")]

    def _figures(self) -> list[str]:
        return summarise_mixture(self.plan, self.counters, self.timer.shares(), self.final_evaluation)

    # -- the stages of a round

    def _collect(self, at: Address) -> dict[str, Steps]:
        """One collection of each agent of this rank (and of the BigAgent), by name; of all ranks' in the record."""
        with self.timer("collect"):
            collected = dict(zip(self.players.names, self.group.collect(), strict=True))
            self.diversity.fix(list(collected.values()))
            collected |= self.big.collect() if self.big else {}
            found = told_by_all(self.ranks, {name: figures_of(own) for name, own in collected.items()})
        for name, figures in found.items():
            self.counters.env_steps += figures["env_steps"]
            self.counters.episodes += len(figures["episodes"])
            record_figures(self.loop, name, figures)
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
            with self.timer("pour"):  # what the training waits for; the rest goes on beside it
                self.ponds.add(list(steps.values()))
                if self._ends(at, "phase"):
                    self.ponds.flush()
                else:
                    self.ponds.pour_full()

    def _learn(self) -> None:
        with self.timer("learn"):
            metrics = told_by_all(self.ranks, dict(zip(self.players.names, self.group.learn(), strict=True)))
        self.counters.updates += self.group.updates_per_collection * self.plan.agents
        if self.big is None:
            self.score = None  # it was of other weights
        for name, values in metrics.items():
            for key, value in values.items():
                self.loop.record(f"{name}/{key}", value, weight=self.group.updates_per_collection)

    def _learn_live(self, at: Address, steps: dict[str, Steps]) -> None:
        """Mode live: what everybody did reaches the BigAgent at once, and it learns beside the agents."""
        assert self.big is not None
        if at.begins("round"):
            self.big.epsilon.reset()
        collections = self._collections(at["round"])
        updates = big_updates_of_round(self.recipe, collections * self.plan.env_steps_per_collection)
        with self.timer("train_big"):
            self.big.pond.add(steps_of_all(self.ranks, steps))
            self._update(self.big, spread(updates, collections, at["portion"]))

    def _fill(self, at: Address) -> None:
        assert self.big is not None
        if at.begins("phase") or self.big.pond.empty:  # a run resumed in this phase draws the same again
            with self.timer("fill"):
                drawn = self.big.pond.fill(at["round"])
            if at.begins("phase"):
                self.big.epsilon.reset()
                self.extra["big/pond_transitions"] = drawn

    def _train_big_agent(self, at: Address) -> None:
        assert self.big is not None
        done = at["portion"] * UPDATES_PER_PORTION
        with self.timer("train_big"):
            self._update(self.big, min(UPDATES_PER_PORTION, self.plan.big_updates - done))

    def _update(self, big: BigAgent, updates: int) -> None:
        big.update(updates, self.loop.record)
        self.score = None  # it was of other weights
        self.counters.updates += updates

    def _reset(self) -> None:
        if self.big is None or not self.plan.resets:
            return
        mixture = self.recipe.mixture
        with self.timer("reset"):
            ladder = mixture.epsilon_ladder or [mixture.epsilon_reset_to] * self.plan.agents
            own = agents_of_rank(self.ranks, self.plan.agents)
            self.group.clone_from(self.big.dqn.network, epsilon_reset_to=[ladder[number] for number in own])

    # -- evaluation

    def _evaluate(self, at: Address) -> None:
        """The agents when they have trained, the BigAgent when it has; and in between, until they have recovered."""
        due = self.judge.due(at["round"], self.plan.rounds)
        with self.timer("evaluate"):
            if at["phase"] == AGENTS and ((due and self._ends(at, "phase")) or self._looks_for_recovery(at)):
                self._evaluate_agents(last=self._ends(at, "phase"))
            if due and self._ends(at, "round"):
                self._evaluate_policy()

    def _looks_for_recovery(self, at: Address) -> bool:
        every = max(1, self._collections(at["round"]) // (self.recipe.mixture.recovery_checks + 1))
        return self.recovery.level is not None and (at["portion"] + 1) % every == 0

    def _evaluate_agents(self, *, last: bool) -> None:
        own = {
            name: self.judge(network).mean
            for name, network in zip(self.players.names, self.group.networks, strict=True)
        }
        means = told_by_all(self.ranks, own)
        self.extra |= {f"{name}/eval/episode_return": mean for name, mean in means.items()}
        self.extra["agents/eval/episode_return"] = mean = float(np.mean(list(means.values())))
        self.extra |= self.recovery.check(mean, self.group.updates[0], last=last)

    def _evaluate_policy(self) -> None:
        """Whom the run is for. The clones of a reset are bit for bit the BigAgent, so this is their evaluation too."""
        evaluation = self.final_evaluation = judged_by_first(self.ranks, lambda: self.judge(self.players.policy))
        self.score = evaluation.mean
        self.extra |= evaluation.metrics()
        if self.big is not None:
            self.extra["big/eval/episode_return"] = evaluation.mean
        if self.plan.resets:
            self.extra |= self.recovery.reset(evaluation.mean, self.group.updates[0])

    # -- the loop and its hooks

    def _make_loop(self) -> Loop:
        plan, recipe = self.plan, self.recipe
        big_portions = -(-plan.big_updates // UPDATES_PER_PORTION)
        loop = Loop(
            round=plan.rounds,
            phase=1 if self.live or plan.mode == "single" else 2,
            portion=lambda at: self._collections(at["round"]) if at["phase"] == AGENTS else big_portions,
        )
        loop.at_end("portion", self._write_record)
        if recipe.checkpoint.interval is not None:
            loop.at_end("round", lambda ended: loop.request_save(), every=recipe.checkpoint.interval)
            if recipe.checkpoint.interval == 1:
                loop.at_end("phase", lambda ended: loop.request_save())
        loop.on_save(self._save)
        return loop

    def _save(self) -> None:
        share_networks(self.ranks, self.players.everyone)
        save_over_ranks(self.ranks, self.checkpoints, self.counters.updates, self.parts, self.score)

    def _collections(self, round_number: int) -> int:
        """Collections of this round; the last one may be short."""
        plan = self.plan
        whole = round_number < plan.whole_rounds
        return plan.collections_per_round if whole else plan.last_round_collections

    def _check_position(self) -> None:
        """Refuse to go on with other rounds than those that were done: a short last round cannot be made whole."""
        at, done = self.loop.address, self.group.updates[0] // self.group.updates_per_collection
        within = at["portion"] if at["phase"] == AGENTS else self._collections(at["round"])
        planned = sum(map(self._collections, range(at["round"]))) + within
        if done != planned:
            raise RunError(
                f"mixture.total_frames={self.plan.total_frames:,}: run {self.run.name!r} has done {done} collections of "
                f"each agent, and with this many frames it would have done {planned} by now: its last round was a short "
                f"one, which cannot be made whole afterwards. Runs of whole rounds, of {self.plan.frames_per_round:,} "
                f"frames each, can be made longer"
            )

    def _ends(self, at: Address, level: str) -> bool:
        """Whether the level's item ends with this portion."""
        sizes = self.loop.sizes
        last = at["portion"] + 1 == sizes["portion"]
        return last and (level == "phase" or at["phase"] + 1 == sizes["phase"])

    def _write_record(self, ended: LevelEnd) -> None:
        times = self.timer.take()
        self.recorder.write({**ended.means(), **self._state_of_things(), **self.extra, **times})
        self.extra = {}

    def _state_of_things(self) -> dict[str, float]:
        """Exploration, updates, the lake, whose steps were replayed how often, and how different the agents are."""
        group, big = self.group, self.big
        found: dict[str, float] = {"diversity": self.diversity(group.networks)}
        own = zip(self.players.names, group.epsilons, group.updates, strict=True)
        told = told_by_all(self.ranks, {name: (epsilon.value, updates) for name, epsilon, updates in own})
        for name, (epsilon, updates) in told.items():
            found |= {f"{name}/epsilon": epsilon, f"{name}/updates": updates}
        if big is not None and self.ponds is not None:
            found |= {"big/epsilon": big.epsilon.value, "big/updates": big.dqn.updates}
            found |= {f"replayed/{self.names[k]}": count for k, count in enumerate(big.replayed.tolist())}
            found |= self.ponds.metrics()
        return found

    # -- what it is made of

    def _make_parts(self) -> Parts:
        players, ranks = self.players, self.ranks
        weights: dict[str, Any] = dict(zip(self.names, players.everyone, strict=False))
        envs = {f"envs_{name}": VectorState(v, players.seeds[name]) for name, v in players.vectors.items()}
        state: dict[str, Any] = {
            "group": PerRank(ranks, self.group),
            **(envs if ranks.alone else {"envs": PerRank(ranks, Together(envs))}),
            "diversity": self.diversity,
            "random": PerRank(ranks, RandomState()),
        }
        values: dict[str, Any] = {
            "loop": self.loop,
            "counters": self.counters,
            "recorder": self.recorder,
            "recovery": self.recovery,
        }
        if self.big is not None and self.ponds is not None:
            weights["big"], state["big"], values["ponds"] = self.big.dqn.network, self.big, self.ponds
        return Parts(weights, state, values)
