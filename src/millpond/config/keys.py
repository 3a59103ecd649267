"""The keys of each kind of recipe: names, types, defaults, descriptions, the nearest to a mistyped one, and the page of all."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from millpond.config.rules import show
from millpond.kinds import KINDS

NEAR = 0.7  # ratio of difflib from which a name counts as a typing error
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}

# Names in Stable-Baselines3, CleanRL and PufferLib -> the keys of the same setting here, at most one per kind.
ALIASES: dict[str, tuple[str, ...]] = {
    "lr": ("ppo.learning_rate", "pqn.learning_rate", "reward.learning_rate"),
    "learning_rate": ("ppo.learning_rate", "pqn.learning_rate", "reward.learning_rate"),
    "anneal_lr": ("ppo.lr_schedule", "pqn.lr_schedule"),
    "n_steps": ("trainer.bptt_horizon", "pqn.num_steps"),
    "num_steps": ("trainer.bptt_horizon", "pqn.num_steps"),
    "horizon": ("trainer.bptt_horizon", "pqn.num_steps"),
    "rollout_length": ("trainer.bptt_horizon", "pqn.num_steps"),
    "n_envs": ("trainer.num_envs", "pqn.num_envs", "agent.num_envs"),
    "num_envs": ("trainer.num_envs", "pqn.num_envs", "agent.num_envs"),
    "n_epochs": ("trainer.update_epochs", "pqn.update_epochs", "reward.epochs"),
    "num_epochs": ("trainer.update_epochs", "pqn.update_epochs", "reward.epochs"),
    "epochs": ("trainer.update_epochs", "pqn.update_epochs", "reward.epochs"),
    "update_epochs": ("trainer.update_epochs", "pqn.update_epochs"),
    "batch_size": ("trainer.batch_size", "dqn.batch_size", "agent.batch_size"),
    "minibatch": ("trainer.minibatch_size", "pqn.num_minibatches"),
    "minibatch_size": ("trainer.minibatch_size", "pqn.num_minibatches"),
    "mini_batch_size": ("trainer.minibatch_size", "pqn.num_minibatches"),
    "num_minibatches": ("trainer.minibatch_size", "pqn.num_minibatches"),
    "total_timesteps": ("trainer.total_timesteps", "mixture.total_frames"),
    "total_steps": ("trainer.total_timesteps", "mixture.total_frames"),
    "timesteps": ("trainer.total_timesteps", "mixture.total_frames"),
    "max_steps": ("env.max_steps",),
    "max_episode_steps": ("env.max_steps",),
    "discount": ("ppo.gamma", "pqn.gamma", "agent.gamma"),
    "gamma": ("ppo.gamma", "pqn.gamma", "agent.gamma"),
    "lambda": ("ppo.gae_lambda", "pqn.q_lambda"),
    "gae_lambda": ("ppo.gae_lambda", "pqn.q_lambda"),
    "ent_coef": ("ppo.ent_coef",),
    "entropy_coef": ("ppo.ent_coef",),
    "vf_coef": ("ppo.vf_coef",),
    "value_coef": ("ppo.vf_coef",),
    "clip_coef": ("ppo.clip_coef",),
    "clip_range": ("ppo.clip_coef",),
    "clip_eps": ("ppo.clip_coef",),
    "clip_range_vf": ("ppo.vf_clip_coef",),
    "clip_vloss": ("ppo.vf_clip_coef",),
    "max_grad_norm": ("ppo.max_grad_norm", "pqn.max_grad_norm"),
    "norm_adv": ("ppo.normalize_advantage",),
    "normalize_advantage": ("ppo.normalize_advantage",),
    "popart": ("ppo.normalize_values",),
    "value_norm": ("ppo.normalize_values",),
    "normalize_value": ("ppo.normalize_values",),
    "share_features_extractor": ("policy.separate_critic",),
    "hidden_dim": ("policy.hidden_size",),
    "buffer_size": ("mixture.big_pond_transitions", "agent.replay_transitions"),
    "exploration_fraction": ("pqn.epsilon_share",),
    "tau": ("dqn.target_tau", "agent.target_tau"),
    "env": ("env.id",),
    "env_id": ("env.id",),
    "env_name": ("env.id",),
}

HEAD = """# Settings

Every key of every recipe. This page is generated from the code by `make docs`; a test keeps it current.
`millpond plan RECIPE --explain KEY` shows one of them with its value in that recipe.

Whole numbers may be written `4096`, `4_096` or `1e6`. Kinds: {kinds}.
"""


@dataclass(frozen=True)
class Key:
    """A setting of a recipe."""

    name: str  # dotted
    kinds: tuple[str, ...]
    description: str
    type: str
    default: Any
    limits: str


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_name(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _type_name(part) for part in get_args(annotation))
    if origin in (dict, tuple):
        return {dict: "mapping", tuple: "list"}[origin]
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(annotation, str(annotation))


def _limits(annotation: Any, info: FieldInfo | None = None) -> list[str]:
    """Return the bounds of a number, also those inside `X | None`; the narrowest of each sign."""
    bounds: dict[str, float] = {}

    def note(constraint: Any) -> None:
        for name, sign in SIGNS.items():
            bound = getattr(constraint, name, None)
            if bound is not None:
                narrower = max if sign[0] == ">" else min
                bounds[sign] = narrower(bounds[sign], bound) if sign in bounds else bound

    def walk(part: Any) -> None:
        if get_origin(part) is Annotated:
            for constraint in get_args(part)[1:]:
                note(constraint)
                for inner in getattr(constraint, "metadata", ()):
                    note(inner)
            walk(get_args(part)[0])
        elif get_origin(part) in (Union, types.UnionType):
            for choice in get_args(part):
                walk(choice)

    walk(annotation)
    for constraint in info.metadata if info else ():
        note(constraint)
    return [f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound:,}" for sign, bound in bounds.items()]


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _walk(info.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def _default(info: FieldInfo) -> Any:
    value = info.get_default(call_default_factory=True, validated_data={})
    return None if value is PydanticUndefined else value


@cache
def keys(kind: str) -> dict[str, Key]:
    """Return every key of a kind, in the order in which the sections declare them."""
    return {
        name: Key(
            name=name,
            kinds=tuple(k.name for k in KINDS.values() if any(name == other for other, _ in _walk(k.recipe.load()))),
            description=info.description or "",
            type=_type_name(info.annotation),
            default=_default(info),
            limits=", ".join(_limits(info.annotation, info)),
        )
        for name, info in _walk(KINDS[kind].recipe.load())
    }


@cache
def sections(kind: str) -> dict[str, str]:
    """Return every section of a kind, including nested ones, with its description."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
        for name, info in model.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield f"{prefix}{name}", info.description or ""
                yield from walk(info.annotation, f"{prefix}{name}.")

    return dict(walk(KINDS[kind].recipe.load(), ""))


def nearest_key(name: str, kind: str) -> str | None:
    """Return the key that was probably meant: by its name in other libraries, or by similar spelling."""
    known = list(keys(kind)) + list(sections(kind))
    section, _, last = name.rpartition(".")
    by_last: dict[str, list[str]] = {}
    for other in known:
        by_last.setdefault(other.rpartition(".")[2], []).append(other)
    aliases = ALIASES.get(last.lower().replace("-", "_"), ())
    same_section = [f"{section}.{alias.rpartition('.')[2]}" for alias in aliases]  # dqn.lr is dqn.learning_rate
    for key in (*same_section, *aliases):
        if key in known:
            return key
    if last in by_last:  # right name, wrong section
        return difflib.get_close_matches(name, by_last[last], n=1, cutoff=0.0)[0]
    siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == section]
    near = difflib.get_close_matches(last, siblings, n=1, cutoff=NEAR)
    if near:
        return f"{section}.{near[0]}" if section else near[0]
    near = difflib.get_close_matches(last, list(by_last), n=1, cutoff=NEAR)
    if near:
        return difflib.get_close_matches(name, by_last[near[0]], n=1, cutoff=0.0)[0]
    near = difflib.get_close_matches(section, list(sections(kind)), n=1, cutoff=NEAR) if section else []
    return f"{near[0]}.{last}" if near and f"{near[0]}.{last}" in known else None


def kinds_of(name: str) -> tuple[str, ...]:
    """Return the kinds that have a key or section of this name."""
    return tuple(kind for kind in KINDS if name in keys(kind) or name in sections(kind))


def _all_keys() -> dict[str, Key]:
    """Return the keys of all kinds; if a section differs between kinds, the first kind decides its order."""
    merged: dict[str, Key] = {}
    for kind in KINDS:
        for name, key in keys(kind).items():
            merged.setdefault(name, key)
    return merged


def _all_sections() -> dict[str, str]:
    return {name: text for kind in KINDS for name, text in sections(kind).items()}


def configuration_page() -> str:
    """Return docs/configuration.md, which `make docs` writes."""
    lines = [HEAD.format(kinds=", ".join(f"`{kind}`" for kind in KINDS))]
    by_section: dict[str, list[Key]] = {}
    for key in _all_keys().values():
        by_section.setdefault(key.name.rpartition(".")[0], []).append(key)
    for section, members in by_section.items():
        title, text = (f"`{section}`", _all_sections()[section]) if section else ("Top level", "")
        lines += [f"## {title}", "", *([text, ""] if text else []), "| key | default | type | kinds | meaning |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for key in members:
            kind = f"{key.type} ({key.limits})" if key.limits else key.type
            default = "" if key.default in ("", {}, ()) else f"`{show(key.default)}`"
            kinds = "all" if len(key.kinds) == len(KINDS) else ", ".join(key.kinds)
            lines.append(f"| `{key.name}` | {default} | {kind} | {kinds} | {key.description} |")
        lines.append("")
    return "\n".join(lines)
