"""PufferLib 4: `vec.total_agents`, `train.horizon`, `train.replay_ratio`, MinGRU.

Its native trainer has no Python path, so this is a translation from its public source (`src/pufferlib.cu` and `src/muon.cu`
before version 5), not a comparison by running both. Where it differs from PufferLib 3.0, whose algorithm
`ppo.style: puffer` is, a key or a note says so. Files of PufferLib 5, whose algorithm is another, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.config.puffer import ini
from millpond.config.puffer.ini import PufferConfig, env_id, nest, whole
from millpond.config.yaml import RecipeFileError
from millpond.envs.families import family_of
from millpond.sizes import divisors

# PufferLib 4, config/default.ini, under its own names.
DEFAULTS: dict[str, Any] = {
    "base.seed": 73,
    "base.checkpoint_interval": 500,
    "vec.total_agents": 4_096,
    "vec.num_buffers": 2,
    "vec.num_threads": 16,
    "policy.hidden_size": 128,
    "policy.num_layers": 4,
    "torch.network": "MinGRU",
    "train.total_timesteps": 10_000_000,
    "train.learning_rate": 0.015,
    "train.anneal_lr": 1,
    "train.min_lr_ratio": 0.0,
    "train.gamma": 0.995,
    "train.gae_lambda": 0.90,
    "train.replay_ratio": 1.0,
    "train.clip_coef": 0.2,
    "train.vf_coef": 2.0,
    "train.vf_clip_coef": 0.2,
    "train.max_grad_norm": 1.5,
    "train.ent_coef": 0.001,
    "train.anneal_ent_coef": 0,
    "train.min_ent_coef_ratio": 0.1,
    "train.beta1": 0.95,
    "train.beta2": 0.999,
    "train.eps": 1e-12,
    "train.minibatch_size": 8_192,
    "train.horizon": 64,
    "train.vtrace_rho_clip": 1.0,
    "train.vtrace_c_clip": 1.0,
    "train.prio_alpha": 0.8,
    "train.prio_beta0": 0.2,
}

# Keys that are copied unchanged -> their name here.
SAME = ini.SAME | {
    "base.seed": "seed",  # not train.seed, which its trainer does not read
    "base.checkpoint_interval": "checkpoint.interval",
    "train.replay_ratio": "trainer.replay_ratio",
    "train.horizon": "trainer.bptt_horizon",
    "train.beta1": "ppo.adam_beta1",
    "train.beta2": "ppo.adam_beta2",
    "train.eps": "ppo.adam_eps",
}
# Keys that are translated together, below.
WORKED_OUT = {
    *("base.env_name", "vec.total_agents", "vec.num_buffers", "vec.num_threads", "env.num_agents"),
    *("policy.num_layers", "torch.network", "selfplay.enabled"),
    *("train.anneal_lr", "train.anneal_ent_coef", "train.min_ent_coef_ratio", "base.reset_state"),
}
# Keys by which a file of this version is recognised.
ONLY = {
    *("vec.total_agents", "vec.num_buffers", "vec.num_threads", "torch.network", "torch.encoder", "torch.decoder"),
    *("policy.num_layers", "policy.expansion_factor", "selfplay.enabled", "train.horizon", "train.replay_ratio"),
    *("train.beta1", "train.beta2", "train.eps", "train.anneal_ent_coef", "base.cudagraphs"),
}
# Keys that only PufferLib 5 has.
ONLY_5 = {
    *("base.async", "base.reset_every_horizon", "base.gpu_offset", "base.eval_agents", "base.run_id"),
    *("vec.num_policies", "vec.hist_policy_percent", "train.momentum", "train.vtrace", "train.verb_eps"),
}
CORES = {"MinGRU": "mingru", "LSTM": "lstm", "GRU": "gru", "MLP": "none"}
NOTE = (
    "PufferLib 4 has the algorithm of 3.0 but for this: rows of a minibatch are drawn with replacement (kept: "
    "ppo.replacement=true), Muon has its original momentum (ppo.muon=puffer4), networks have no biases and compute in bfloat16 "
    "(here with biases, in float32)"
)
SCALAR_NOTE = (
    "With train.horizon={horizon}, which is not a multiple of 8, PufferLib 4 computes advantages by another kernel than else, "
    "in which the importance weight is on the reward alone (kept: ppo.rho_weights=reward)"
)
WIDE = 8  # steps that its kernel for advantages reads at once in bfloat16, its default precision


def translate(file: Mapping[str, Any], source: str) -> PufferConfig:
    """Translate the keys of a file to what PufferLib 4 would do with it."""
    newer = [key for key in file if key in ONLY_5]
    if newer:
        raise RecipeFileError(
            f"{source} is for PufferLib 5, since it has {', '.join(newer)}. It acts with weights that are one iteration "
            "old and estimates advantages from the values of each minibatch. Files of PufferLib 3 and 4 are read; to read "
            "this one as a file of PufferLib 4, remove these keys"
        )
    settings = {**DEFAULTS, **file}
    _refuse(settings, source)
    flat: dict[str, Any] = {SAME[key]: value for key, value in settings.items() if key in SAME}
    flat.update(_agents(settings, source))
    flat["trainer.batch_unit"], flat["trainer.batch_size"] = "agent_steps", "auto"
    flat["env.id"] = env_id(settings)
    core = CORES[settings["torch.network"]]
    flat["policy.core"] = core
    if core == "mingru":
        flat["policy.num_layers"] = whole(settings, "policy.num_layers", source)
    flat["ppo.optimizer"], flat["ppo.muon"] = "muon", "puffer4"
    flat["ppo.lr_schedule"] = "cosine" if settings["train.anneal_lr"] else "constant"
    flat["ppo.style"], flat["ppo.replacement"] = "puffer", True
    if settings["train.anneal_ent_coef"]:
        floor = settings["train.min_ent_coef_ratio"] * settings["train.ent_coef"]
        flat["schedules"] = {"ppo.ent_coef": {"kind": "cosine", "end": floor}}
    notes = [NOTE]
    horizon = whole(settings, "train.horizon", source)
    if horizon % WIDE:
        flat["ppo.rho_weights"] = "reward"
        notes.append(SCALAR_NOTE.format(horizon=horizon))
    flat["ppo.sampling"] = "prioritized" if settings["train.prio_alpha"] else "independent"
    family = family_of(flat["env.id"])
    agents_open = "env.num_agents" not in file and not (family is not None and family.single_agent)
    defaulted = {key: value for key, value in DEFAULTS.items() if key not in file}
    ignored = tuple(key for key in file if key not in SAME and key not in WORKED_OUT)
    return PufferConfig(nest(flat), defaulted, ignored, tuple(notes), agents_open, version="4")


def _refuse(settings: Mapping[str, Any], source: str) -> None:
    """Raise for settings that change what is learned and have no counterpart."""
    network, layers = settings["torch.network"], settings["policy.num_layers"]
    if network not in CORES:
        raise RecipeFileError(f"{source}: torch.network={network} is not one of {', '.join(CORES)}")
    unsupported = {
        "policy.num_layers": network != "MinGRU" and layers != DEFAULTS["policy.num_layers"] and layers != 1,
        "selfplay.enabled": bool(settings.get("selfplay.enabled")),
        "base.reset_state": not settings.get("base.reset_state", True),
    }
    for key, is_set in unsupported.items():
        if is_set:
            raise RecipeFileError(f"{source}: {key}={settings[key]} has no counterpart here; remove it from the file")


def _agents(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Translate agents, buffers and threads: each buffer is a group of envs with an equal share of the agents."""
    total, buffers = whole(settings, "vec.total_agents", source), whole(settings, "vec.num_buffers", source)
    agents = whole(settings, "env.num_agents", source) if "env.num_agents" in settings else 1
    if total % (buffers * agents):
        raise RecipeFileError(
            f"{source}: vec.total_agents={total} is not a multiple of vec.num_buffers={buffers} x env.num_agents={agents}"
        )
    threads, envs = whole(settings, "vec.num_threads", source), total // (buffers * agents)
    return {
        "trainer.forward_pass_minibatch_target_size": total // buffers,  # the number of envs follows from the agents
        "trainer.async_factor": buffers,
        "trainer.num_workers": max(count for count in divisors(envs) if count <= threads),
        "env.num_agents": agents,
    }
