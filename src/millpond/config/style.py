"""`ppo.style`: one key that sets a family of others, either to Millpond's own algorithm or to that of PufferLib 3.0.

A style belongs to the layer that names it (a file, a preset, the overrides): it replaces what layers below it set, and keys
that the same layer or one above it sets explicitly win over it. So `ppo.style=millpond` on the command line switches a
PufferLib file to Millpond's algorithm, and `ppo.style=puffer ppo.row_end=bootstrap` takes all of PufferLib's but one thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.config.check import merge, overlay


@dataclass(frozen=True)
class StyleKey:
    """A key that a style sets: its value in each, and what each of them does."""

    key: str
    millpond: Any
    puffer: Any
    as_puffer: str  # what PufferLib does
    as_millpond: str  # what Millpond does, and why


STYLE_KEYS = (
    StyleKey(
        "ppo.advantage",
        "gae",
        "puffer",
        "importance weights of the newest ratios, clipped at rho_clip and c_clip",
        "no weights, since the rows are the current policy's",
    ),
    StyleKey(
        "ppo.recompute_advantage",
        False,
        True,
        "advantages of all rows are recomputed before every minibatch, with newest ratios and values",
        "once per iteration, which is cheaper",
    ),
    StyleKey(
        "ppo.row_end",
        "bootstrap",
        "zero",
        "the last step of a row has advantage 0, and its reward is never seen",
        "it bootstraps from the value of the next observation: no reward is lost",
    ),
    StyleKey(
        "ppo.trace_end",
        "row",
        "row",
        "traces end with their rows",
        "so they do; recipes of env ids set iteration, with which traces go on from row to row of an agent",
    ),
    StyleKey(
        "ppo.ignore_truncation",
        False,
        True,
        "after a truncated step the trace goes on into the next episode",
        "a truncated step bootstraps from its own final observation",
    ),
    StyleKey(
        "ppo.row_state",
        "stored",
        "zero",
        "the recurrent state is zero at the start of every row, so that memory ends with the row",
        "rows begin with the state that acted: memory reaches over whole episodes",
    ),
    StyleKey(
        "ppo.reset_state",
        True,
        False,
        "the recurrent state goes on where an episode ends inside a row",
        "it is zeroed there: an episode knows nothing of the one before",
    ),
    StyleKey(
        "ppo.normalize_advantage",
        "iteration",
        "minibatch",
        "advantages are normalised over each minibatch",
        "over all rows of the iteration: small minibatches do not change their size",
    ),
    StyleKey(
        "ppo.sampling",
        "uniform",
        "prioritized",
        "every minibatch is drawn by the newest |advantage| of the rows",
        "every row is trained exactly once per epoch",
    ),
    StyleKey("ppo.prio_alpha", 0.0, 0.8, "exponent of the priorities", ""),
    StyleKey("ppo.prio_beta0", 0.6, 0.2, "exponent of the importance weights at the start", ""),
    StyleKey(
        "ppo.prio_beta_end",
        "one",
        "alpha",
        "that exponent grows to b0 + (1 - b0) * alpha, so that a bias is left at the end",
        "it grows to 1, where sampling is unbiased",
    ),
    StyleKey(
        "ppo.prio_weights",
        "loss",
        "advantage",
        "importance weights multiply the normalised advantage only",
        "they multiply the value loss, too, which is drawn from the same rows",
    ),
    # What files of PufferLib 4 set, and neither style has: they go when a file is switched to another style.
    StyleKey("ppo.rho_weights", "delta", "delta", "", ""),
    StyleKey("ppo.replacement", False, False, "", ""),
    StyleKey("trainer.replay_ratio", None, None, "", ""),
    StyleKey(
        "env.reward_clip",
        None,
        1.0,
        "rewards are clamped to [-1, 1]",
        "rewards stay as they are",
    ),
)
# PufferLib's optimizer. A learning rate belongs to its optimizer, so these are set only where no layer names an optimizer.
PUFFER_OPTIMIZER = {
    "ppo.optimizer": "muon",
    "ppo.muon": "puffer3",
    "ppo.adam_beta1": 0.95,
    "ppo.learning_rate": 0.015,
    "ppo.lr_schedule": "cosine",
    "ppo.min_lr_ratio": 0.0,
}


def style_of(values: Mapping[str, Any]) -> str | None:
    """Return the style that nested values name; None if there is none, or none that exists (which `check` reports)."""
    ppo = values.get("ppo")
    style = ppo.get("style") if isinstance(ppo, Mapping) else None
    return style if style in ("millpond", "puffer") else None


def with_style(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer of nested values in which its style, if it names one, is written out below its other keys."""
    style = style_of(layer)
    if style is None:
        return dict(layer)
    return merge(overlay({}, {one.key: getattr(one, style) for one in STYLE_KEYS}), layer)


def with_optimizer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return merged values with PufferLib's optimizer if the style is PufferLib's and nothing names an optimizer."""
    ppo = values.get("ppo", {})
    if style_of(values) != "puffer" or "optimizer" in ppo or "learning_rate" in ppo:
        return dict(values)
    return merge(overlay({}, PUFFER_OPTIMIZER), values)
