"""PufferLib's own trainer on MettaGrid's forage scenario. Runs in a separate virtual environment; prints JSON.

    puffer_forage.py SCENARIO.json ITERATIONS SEED WORKERS

Its policy (a linear layer over bytes, an LSTM of 128), its vector and its trainer, at Metta's settings. WORKERS 0 steps all
envs in the trainer's process, which is its fastest on two cores; else this many worker processes with two batches.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pufferlib.models
import pufferlib.vector
from mettagrid.config.mettagrid_config import MettaGridConfig
from mettagrid.envs.mettagrid_puffer_env import MettaGridPufferEnv
from mettagrid.simulator import Simulator
from pufferlib.pufferl import PuffeRL

ENVS, AGENTS, HORIZON, HIDDEN, MINIBATCHES = 64, 3, 64, 128, 4
BATCH = ENVS * AGENTS * HORIZON
SCENARIO = Path(sys.argv[1])


def make_env(buf=None, seed=0, **_):
    config = MettaGridConfig.model_validate_json(SCENARIO.read_text())
    return MettaGridPufferEnv(Simulator(), config, buf=buf, seed=seed or 0)


def make_vector(workers, seed):
    if workers == 0:
        return pufferlib.vector.make(make_env, backend=pufferlib.vector.Serial, num_envs=ENVS, seed=seed)
    return pufferlib.vector.make(
        make_env,
        backend=pufferlib.vector.Multiprocessing,
        num_envs=ENVS,
        num_workers=workers,
        batch_size=ENVS // 2,
        zero_copy=True,
        overwork=True,
        seed=seed,
    )


def settings(seed, folder):
    return {
        "env": "metta",
        "seed": seed,
        "device": "cpu",
        "precision": "float32",
        "batch_size": BATCH,
        "bptt_horizon": HORIZON,
        "minibatch_size": BATCH // MINIBATCHES,
        "max_minibatch_size": BATCH // MINIBATCHES,
        "update_epochs": 1,
        "use_rnn": True,
        "cpu_offload": False,
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": False,
        "torch_deterministic": False,
        "optimizer": "adam",
        "learning_rate": 4.57e-4,
        "anneal_lr": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-12,
        "gamma": 0.977,
        "gae_lambda": 0.916,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "clip_coef": 0.1,
        "vf_clip_coef": 0.1,
        "vf_coef": 0.44,
        "ent_coef": 0.0021,
        "max_grad_norm": 0.5,
        "prio_alpha": 0.0,
        "prio_beta0": 0.6,
        "total_timesteps": BATCH * 10**6,
        "checkpoint_interval": 10**9,
        "data_dir": folder,
    }


def main():
    iterations, seed, workers = map(int, sys.argv[2:5])
    vector = make_vector(workers, seed)
    env = vector.driver_env
    base = pufferlib.models.Default(env, hidden_size=HIDDEN)
    policy = pufferlib.models.LSTMWrapper(env, base, input_size=HIDDEN, hidden_size=HIDDEN)
    PuffeRL.print_dashboard = PuffeRL.mean_and_log = lambda *_, **__: None  # only the arithmetic is timed
    real_stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    config = settings(seed, tempfile.mkdtemp())
    trainer = PuffeRL(config, vector, policy)
    collect, train, level, steps = [], [], [], []
    for _ in range(iterations):
        before, began = trainer.global_step, time.perf_counter()
        trainer.evaluate()
        collected = time.perf_counter()
        level.append(float(trainer.rewards.mean()))
        resumed = time.perf_counter()
        trainer.train()
        train.append(time.perf_counter() - resumed)
        collect.append(collected - began)
        steps.append(trainer.global_step - before)
    sys.stdout = real_stdout
    assert set(steps) == {BATCH}, steps
    versions = {name: version(name) for name in ("pufferlib-core", "torch", "numpy", "mettagrid")}
    result = {
        "party": "PufferLib",
        "versions": versions,
        "settings": {"workers": workers, "precision": config["precision"], "seed": seed},
        "steps": BATCH,
        "collect": collect,
        "train": train,
        "level": level,
    }
    print(json.dumps(result), flush=True)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # its threads would keep the process


if __name__ == "__main__":
    main()
