"""PufferLib 3.0: its settings are translated to keys of this package: its defaults fill what the file leaves out, `auto` is
resolved as PufferLib does, and keys without a meaning here are listed. The algorithm is PufferLib's, too: `ppo.style: puffer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.config.puffer import ini
from millpond.config.puffer.ini import PufferConfig, env_id, nest, whole
from millpond.config.yaml import RecipeFileError
from millpond.envs.families import family_of

# PufferLib 3.0, config/default.ini, under its own names.
DEFAULTS: dict[str, Any] = {
    "base.rnn_name": None,
    "vec.backend": "Multiprocessing",
    "vec.num_envs": 2,
    "vec.num_workers": "auto",
    "vec.batch_size": "auto",
    "train.seed": 42,
    "train.device": "cuda",
    "train.optimizer": "muon",
    "train.anneal_lr": True,
    "train.precision": "float32",
    "train.total_timesteps": 100_000_000,
    "train.learning_rate": 0.015,
    "train.gamma": 0.995,
    "train.gae_lambda": 0.90,
    "train.update_epochs": 1,
    "train.clip_coef": 0.2,
    "train.vf_coef": 2.0,
    "train.vf_clip_coef": 0.2,
    "train.max_grad_norm": 1.5,
    "train.ent_coef": 0.001,
    "train.adam_beta1": 0.95,
    "train.adam_beta2": 0.999,
    "train.adam_eps": 1e-8,
    "train.checkpoint_interval": 200,
    "train.batch_size": "auto",
    "train.minibatch_size": 16_384,
    "train.max_minibatch_size": 32_768,
    "train.bptt_horizon": 64,
    "train.compile": False,
    "train.cpu_offload": False,
    "train.vtrace_rho_clip": 1.0,
    "train.vtrace_c_clip": 1.0,
    "train.prio_alpha": 0.8,
    "train.prio_beta0": 0.2,
}

# Keys that are copied unchanged -> their name here.
SAME = ini.SAME | {
    "train.seed": "seed",
    "train.device": "device",
    "train.precision": "trainer.precision",
    "train.compile": "trainer.compile",
    "train.cpu_offload": "trainer.cpu_offload",
    "train.update_epochs": "trainer.update_epochs",
    "train.max_minibatch_size": "trainer.max_minibatch_size",
    "train.checkpoint_interval": "checkpoint.interval",
    "train.optimizer": "ppo.optimizer",
    "train.adam_beta1": "ppo.adam_beta1",
    "train.adam_beta2": "ppo.adam_beta2",
    "train.adam_eps": "ppo.adam_eps",
    "rnn.hidden_size": "policy.hidden_size",
}

BACKENDS = {"Multiprocessing": "processes", "Serial": "inline", "PufferEnv": "native"}

# Keys that are translated together, below.
WORKED_OUT = {
    *("base.package", "base.env_name", "base.rnn_name"),
    *("vec.backend", "vec.num_envs", "vec.num_workers", "vec.batch_size"),
    *("train.batch_size", "train.bptt_horizon", "train.anneal_lr", "env.num_agents", "env.num_envs"),
}
# Keys by which a file of this version is told from one of PufferLib 4.
ONLY = {
    *("base.rnn_name", "vec.num_envs", "vec.num_workers", "vec.batch_size", "vec.backend", "train.bptt_horizon"),
    *("train.batch_size", "train.update_epochs", "train.adam_beta1", "train.adam_beta2", "train.adam_eps"),
}


def translate(file: Mapping[str, Any], source: str) -> PufferConfig:
    """Translate the keys of a file to what PufferLib 3.0 would do with it."""
    settings = {**DEFAULTS, **file}
    defaulted = {key: value for key, value in DEFAULTS.items() if key not in file}
    ignored = [key for key in file if key not in SAME and key not in WORKED_OUT]

    flat: dict[str, Any] = {SAME[key]: value for key, value in settings.items() if key in SAME}
    vec, notes = _vector(settings, source)
    flat.update(vec)
    flat.update(_sizes(settings, flat, source))
    flat["env.id"] = env_id(settings)
    flat["policy.core"] = "none" if settings["base.rnn_name"] is None else "lstm"
    flat["ppo.lr_schedule"] = "cosine" if settings["train.anneal_lr"] else "constant"
    flat["ppo.style"] = "puffer"
    if flat["ppo.optimizer"] == "muon":
        flat["ppo.muon"] = "puffer3"
    flat["ppo.sampling"] = "prioritized" if settings["train.prio_alpha"] else "independent"
    family = family_of(flat["env.id"])
    agents_open = "env.num_agents" not in file and not (family is not None and family.single_agent)
    return PufferConfig(nest(flat), defaulted, tuple(ignored), tuple(notes), agents_open)


def _vector(settings: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """Translate envs, workers and groups. A vec env may itself have several envs ([env] num_envs)."""
    notes = []
    outer = whole(settings, "vec.num_envs", source)
    inner = whole(settings, "env.num_envs", source) if "env.num_envs" in settings else 1
    agents = whole(settings, "env.num_agents", source) if "env.num_agents" in settings else 1
    workers = outer if settings["vec.num_workers"] == "auto" else whole(settings, "vec.num_workers", source)
    if settings["vec.batch_size"] is None:
        batch = outer
    elif settings["vec.batch_size"] == "auto":
        batch = max(1, outer // 2)
        notes.append(f"vec.batch_size=auto is {batch} of {outer} envs: PufferLib double-buffers")
    else:
        batch = whole(settings, "vec.batch_size", source)
    backend = settings["vec.backend"]
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise RecipeFileError(f"{source}: vec.backend={backend} is not one of {', '.join(BACKENDS)}")
    if backend == "Serial":
        if batch != outer:
            notes.append(f"vec.backend=Serial makes only vec.batch_size={batch} of vec.num_envs={outer} envs")
        outer, workers = batch, 1
    elif backend == "PufferEnv":
        outer, batch, workers = 1, 1, 1
    if (batch * workers) % outer and backend == "Multiprocessing":
        notes.append(
            f"PufferLib refuses vec.batch_size={batch}: it is not a multiple of {outer / workers:g} envs per worker"
        )
    if outer % batch:
        raise RecipeFileError(f"{source}: vec.num_envs={outer} is not a multiple of vec.batch_size={batch}")
    return {
        "trainer.num_envs": outer * inner,
        "trainer.num_workers": workers,
        "trainer.async_factor": outer // batch,
        "vector.backend": {"Multiprocessing": "processes", "Serial": "inline", "PufferEnv": "native"}.get(
            backend, "auto"
        ),
        "env.num_agents": agents,
    }, notes


def _sizes(settings: Mapping[str, Any], flat: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Translate batch and horizon; either may be `auto`, and then follows from the other and the number of agents."""
    batch, horizon = settings["train.batch_size"], settings["train.bptt_horizon"]
    if batch == "auto" and horizon == "auto":
        raise RecipeFileError(f"{source}: one of train.batch_size and train.bptt_horizon must be a number")
    if horizon == "auto":
        agents = flat["trainer.num_envs"] * flat["env.num_agents"]
        horizon = whole(settings, "train.batch_size", source) // agents
        if horizon == 0:
            raise RecipeFileError(
                f"{source}: train.batch_size={batch} is less than one step of each of {agents} agents"
            )
    return {"trainer.batch_unit": "agent_steps", "trainer.batch_size": batch, "trainer.bptt_horizon": horizon}
