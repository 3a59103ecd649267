"""One training of one side: the same world, network, initial weights, sizes and hyper-parameters."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.hardware import processor
from benchmarks.parity.worlds import PUFFER, VARIANTS, World
from benchmarks.peers.environments import interpreter, run_peer
from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer

QUIET = {"eval.interval": None, "eval.episodes": 1, "checkpoint.interval": None, "log.tensorboard": False}


def recipe_of(world: World) -> dict[str, Any]:
    """Return Millpond's config of a world, with PufferLib's algorithm."""
    batch = world.batch
    return {
        **QUIET,
        **world.env,
        "trainer.num_envs": world.num_envs,
        "trainer.num_workers": 1,
        "trainer.async_factor": 1,
        "trainer.batch_unit": "agent_steps",
        "trainer.batch_size": batch,
        "trainer.minibatch_size": batch // world.minibatches,
        "trainer.bptt_horizon": world.horizon,
        "trainer.update_epochs": world.update_epochs,
        "trainer.total_timesteps": batch * world.iterations,
        "policy.core": "lstm",
        "policy.hidden_size": world.hidden_size,
        "vector.backend": "inline",
        "ppo.style": "puffer",
        "ppo.optimizer": world.optimizer,
        **({"ppo.muon": "puffer3"} if world.optimizer == "muon" else {}),
        **({} if world.network is None else {"policy.target": world.network}),
        "ppo.lr_schedule": "cosine",
        **{f"ppo.{name}": number for name, number in world.numbers.items()},
    }


def make_trainer(world: World, variant: str, seed: int, folder: str) -> PPOTrainer:
    settings = {**recipe_of(world), "seed": seed, "run_dir": folder}
    changes = VARIANTS[variant][1]
    if "ppo.style=millpond" in changes:  # explicit keys of the same layer would win
        settings = {key: value for key, value in settings.items() if not key.startswith("ppo.prio_")}
    overrides = [*(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in settings.items()), *changes]
    loaded = load({"kind": "ppo"}, overrides)
    return PPOTrainer(loaded, start_run(loaded, "ours"))


def train_ours(world: World, variant: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(world, variant, seed, folder)
        try:
            trainer.train()
        finally:
            trainer.close()
        lines = (Path(folder) / "ours" / "metrics.jsonl").read_text().splitlines()
        versions = json.loads((Path(folder) / "ours" / "host.json").read_text())["versions"]
    records = [json.loads(line) for line in lines]
    seconds = records[-1]["seconds"] - sum(record.get("time/evaluate", 0.0) for record in records)
    named = {name: versions[name] for name in ("millpond", "torch", "numpy") if name in versions}
    return {"levels": [record.get(world.level) for record in records], "seconds": seconds, "versions": named}


def train_theirs(world: World, seed: int) -> dict[str, Any]:
    """Train with PufferLib, from the weights that Millpond's run of this seed begins with."""
    from millpond.envs.mettagrid import Forage, forage_config

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(world, "puffer", seed, folder)
        try:
            weights = Path(folder) / "weights.pt"
            torch.save(trainer.policy.state_dict(), weights)
            (part,) = trainer.vector.spec.observation.parts
            actions = trainer.vector.spec.action.sizes[0]
        finally:
            trainer.close()
        settings = asdict(world) | {
            "world": world.name,
            "batch": world.batch,
            "observation": {
                "shape": part.shape,
                "dtype": part.dtype,
                "kind": part.kind,
                "limits": {} if part.high is None else {"high": part.high},
            },
            "actions": actions,
            "scenario": forage_config(Forage()).model_dump_json() if world.env["env.id"] == "mettagrid" else None,
        }
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings))
        script = Path(__file__).with_name("puffer_side.py")
        return json.loads(run_peer(interpreter("puffer", {}), script, path, weights, seed))  # type: ignore[no-any-return]


def train(world: World, side: str, seed: int) -> dict[str, Any]:
    """Return the result of one training, ready to be stored."""
    trained = train_theirs(world, seed) if side == PUFFER else train_ours(world, side, seed)
    return {
        "world": world.name,
        "side": side,
        "seed": seed,
        "steps_per_iteration": world.batch,
        "machine": processor(),
        **trained,
    }


if __name__ == "__main__":
    from benchmarks.parity.worlds import WORLDS

    for job in sys.argv[1:]:  # WORLD/SIDE/SEED
        world, side, seed = job.split("/")
        print(json.dumps(train(WORLDS[world], side, int(seed))), flush=True)
