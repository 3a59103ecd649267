"""Lake and ponds: agents that learn apart with PQN, one BigAgent that learns from all they did, clones of it, again.

round > phase (the agents', then the BigAgent's) > portion (a collection, or some of the BigAgent's updates)
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from millpond.config import Loaded, MixtureRecipe
from millpond.loop import Address, Ended, Loop
from millpond.planner import MixturePlan, plan_loaded
from millpond.planner.lines import sentence
from millpond.planner.mixture import big_updates_of_round
from millpond.record import Counters, Recorder, Timer
from millpond.replay import Lake, Schema, Steps
from millpond.store import Checkpoints, Parts, RandomState, Run, RunError, load_weights, training
from millpond.trainers.evaluate import Evaluation
from millpond.trainers.mixture_big_agent import BigAgent
from millpond.trainers.mixture_big_pond import spread
from millpond.trainers.mixture_build import make_players
from millpond.trainers.mixture_measures import Diversity, Judge, Recovery
from millpond.trainers.mixture_networks import SAMPLER, seed_for
from millpond.trainers.mixture_ponds import Ponds, Stream, as_steps
from millpond.trainers.mixture_summary import summarise_mixture
from millpond.trainers.sinks import make_sinks
from millpond.trainers.vector_state import VectorState
from millpond.trainers.worlds import make_spec

AGENTS, BIG = 0, 1  # the phases of a round
UPDATES_A_PORTION = 256


class MixtureTrainer:
    """Everything of one mixture, or of one of its controls. `train()` runs it to its end, or to where it is stopped."""

    def __init__(self, loaded: Loaded, run: Run, *, weights_from: Run | None = None) -> None:
        recipe, planned = loaded.recipe, plan_loaded(loaded).plan
        assert isinstance(recipe, MixtureRecipe)
        assert isinstance(planned, MixturePlan)
        self.recipe, self.plan, self.run = recipe, planned, run
        self.live = planned.mode == "live"
        random.seed(recipe.seed)
        torch.manual_seed(seed_for(recipe.seed, SAMPLER))
        self.timer, self.counters = Timer(), Counters()
        self.ponds = self._make_ponds()
        self.players = make_players(recipe, planned, None if self.ponds is None else self.ponds.lake)
        self.group, self.big = self.players.group, self.players.big
        self.judge, self.recovery, self.diversity = Judge(recipe), Recovery(), Diversity(recipe.device)
        self.extra: dict[str, float] = {}  # for the record of this portion
        self.score: float | None = None
        self.final_evaluation: Evaluation | None = None
        self.players.reset_vectors()
        self.loop = self._make_loop()
        self.recorder = Recorder(
            run.metrics_path, self.counters, make_sinks(recipe, run, self.loop, self.counters, self.timer)
        )
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            keep_last=recipe.checkpoint.keep_last or 10**9,
            keep_every=recipe.checkpoint.keep_every,
        )
        self.parts = self._make_parts()
        if weights_from is not None:
            self._begin_with(weights_from)
        if run.resumed and self.checkpoints.restore(self.parts):
            self._check_position()
        if self.ponds is not None and self.big is not None:
            self.ponds.open()
            if self.live and run.resumed:
                self.big.pond.restore(self.ponds.names, continue_episodes=self.ponds.savable)

    def train(self) -> None:
        """The whole algorithm: steps (1) to (7), until the frames are used up."""
        with training(self.run, self.loop, self.recorder):
            for at in self.loop.run(max_seconds=self.recipe.trainer.max_seconds):
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
        return summarise_mixture(self.plan, self.run, self.counters, self.timer.shares(), self.final_evaluation)

    # -- the stages of a round

    def _collect(self, at: Address) -> list[Steps]:
        with self.timer("collect"):
            collections = [*self.group.collect(), *(self.big.collect() if self.big else [])]
        self.diversity.fix(collections[: self.plan.agents])
        for name, collection in zip(self._names(), collections, strict=False):
            self.counters.env_steps += collection.env_steps
            self.counters.episodes += len(collection.episodes)
            self.loop.record("reward_per_agent_step", collection.reward.mean(), weight=collection.env_steps)
            for episode in collection.episodes:
                for prefix in ("", f"{name}/"):
                    self.loop.record(f"{prefix}episode_return", episode.returns[0])
                    self.loop.record(f"{prefix}episode_length", float(episode.length))
                for key, value in episode.info.items():
                    self.loop.record(f"env/{key}", float(value))
        self.counters.agent_steps = self.counters.env_steps
        self.counters.frames = self.counters.env_steps * self.plan.frame_skip
        if self.ponds is None:
            return []
        versions = [*self.group.updates, self.big.dqn.updates if self.big else 0]
        shape = self.ponds.frame_shape
        return [
            as_steps(collection, frame_shape=shape, agent=k, round_number=at["round"], policy_version=versions[k])
            for k, collection in enumerate(collections)
        ]

    def _pour(self, at: Address, steps: list[Steps]) -> None:
        if self.ponds is not None:
            with self.timer("pour"):  # what the training waits for; the rest goes on beside it
                self.ponds.add(steps)
                if self._ends(at, "phase"):
                    self.ponds.flush()
                else:
                    self.ponds.pour_full()

    def _learn(self) -> None:
        with self.timer("learn"):
            metrics = self.group.learn()
        self.counters.updates += self.group.updates_per_collection * self.plan.agents
        for name, values in zip(self.players.agent_names, metrics, strict=True):
            for key, value in values.items():
                self.loop.record(f"{name}/{key}", value, weight=self.group.updates_per_collection)

    def _learn_live(self, at: Address, steps: list[Steps]) -> None:
        """Mode live: what everybody did reaches the BigAgent at once, and it learns beside the agents."""
        assert self.big is not None
        if at.begins("round"):
            self.big.epsilon.reset()
        collections = self._collections(at["round"])
        updates = big_updates_of_round(self.recipe, collections * self.plan.env_steps_per_collection)
        with self.timer("train_big"):
            self.big.pond.add(steps)
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
        done = at["portion"] * UPDATES_A_PORTION
        with self.timer("train_big"):
            self._update(self.big, min(UPDATES_A_PORTION, self.plan.big_updates - done))

    def _update(self, big: BigAgent, updates: int) -> None:
        big.update(updates, self.loop.record)
        self.counters.updates += updates

    def _reset(self) -> None:
        if self.big is None or not self.plan.resets:
            return
        mixture = self.recipe.mixture
        with self.timer("reset"):
            ladder = mixture.epsilon_ladder
            self.group.clone_from(
                self.big.dqn.network, epsilon_reset_to=mixture.epsilon_reset_to if ladder is None else list(ladder)
            )

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
        means = [self.judge(network).mean for network in self.group.networks]
        self.extra |= {f"{name}/eval/episode_return": mean for name, mean in zip(self._names(), means, strict=False)}
        self.extra["agents/eval/episode_return"] = float(np.mean(means))
        self.extra |= self.recovery.check(float(np.mean(means)), self.group.updates[0], last=last)

    def _evaluate_policy(self) -> None:
        """Whom the run is for. The clones of a reset are bit for bit the BigAgent, so this is their evaluation too."""
        evaluation = self.final_evaluation = self.judge(self.players.policy)
        self.score = evaluation.mean
        self.extra |= evaluation.metrics()
        if self.big is not None:
            self.extra["big/eval/episode_return"] = evaluation.mean
        if self.plan.resets:
            self.extra |= self.recovery.reset(evaluation.mean, self.group.updates[0])

    # -- the loop and its hooks

    def _make_loop(self) -> Loop:
        plan, recipe = self.plan, self.recipe
        big_portions = -(-plan.big_updates // UPDATES_A_PORTION)
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
        loop.on_save(lambda: self.checkpoints.save(self.counters.updates, self.parts, self.score))
        return loop

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

    def _names(self) -> list[str]:
        return [*self.players.agent_names, "big"]

    def _write_record(self, ended: Ended) -> None:
        times = self.timer.take()
        self.recorder.write({**ended.means(), **self._state_of_things(), **self.extra, **times})
        self.extra = {}

    def _state_of_things(self) -> dict[str, float]:
        """Exploration, updates, the lake, whose steps were replayed how often, and how different the agents are."""
        names, group, big = self._names(), self.group, self.big
        found: dict[str, float] = {"diversity": self.diversity(group.networks)}
        for name, epsilon, updates in zip(names, group.epsilons, group.updates, strict=False):
            found |= {f"{name}/epsilon": epsilon.value, f"{name}/updates": updates}
        if big is not None and self.ponds is not None:
            found |= {"big/epsilon": big.epsilon.value, "big/updates": big.dqn.updates}
            found |= {f"replayed/{names[k]}": count for k, count in enumerate(big.replayed.tolist())}
            found |= self.ponds.metrics()
        return found

    # -- what it is made of

    def _make_ponds(self) -> Ponds | None:
        plan, recipe = self.plan, self.recipe
        if plan.mode == "single":
            return None
        spec = make_spec(recipe.env, stacked=False)
        schema = Schema.from_spec(spec)
        lake = Lake.create(self.run.folder / "lake", schema, max_bytes=recipe.lake.max_bytes)
        streams = [Stream(f"agent{k}", plan.envs_per_agent, plan.pond_rows) for k in range(plan.agents)]
        if plan.own_envs:
            streams.append(Stream("big", plan.own_envs, plan.own_pond_rows))
        return Ponds(
            lake,
            streams,
            num_steps=recipe.pqn.num_steps,
            acknowledge_every=recipe.lake.acknowledge_every,
            collections_per_pour=plan.collections_per_pour,
            device=torch.device(recipe.device),
            savable=spec.savable,
        )

    def _make_parts(self) -> Parts:
        weights: dict[str, Any] = dict(zip(self.players.agent_names, self.group.networks, strict=True))
        state: dict[str, Any] = {
            "group": self.group,
            **{f"envs_{name}": VectorState(v, self.players.seeds[name]) for name, v in self.players.vectors.items()},
            "diversity": self.diversity,
            "random": RandomState(),
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

    def _begin_with(self, other: Run) -> None:
        """Everybody begins with the weights of another mixture's BigAgent, or of its one agent."""
        weights = other.weights()
        found = weights.get("big", weights.get("agent0"))
        if found is None:
            raise RunError(f"run {other.name!r} has no weights of a BigAgent or agent; it has {sorted(weights)}")
        load_weights({"network": self.group.networks[0]}, {"network": found}, f"run {other.name!r}")
        for network in self.group.networks[1:]:
            network.load_state_dict(found)
        if self.big is not None:
            self.big.dqn.start_from(self.group.networks[0])
