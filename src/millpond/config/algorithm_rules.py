"""Rules between the keys of PPO's algorithm and network: sampling, advantages, layers, the critic."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config.rules import Rule, Values, Violation, show


def _sampling(values: Values) -> Iterator[Violation]:
    sampling, alpha = values["ppo.sampling"], values["ppo.prio_alpha"]
    if sampling == "prioritized" and alpha == 0:
        yield Violation(
            ("ppo.sampling", "ppo.prio_alpha"),
            "ppo.sampling=prioritized with ppo.prio_alpha=0 samples all rows alike, which is ppo.sampling=uniform",
            ({"ppo.prio_alpha": 0.8}, {"ppo.sampling": "uniform"}),
        )
    if sampling != "prioritized" and alpha > 0:
        yield Violation(
            ("ppo.sampling", "ppo.prio_alpha"),
            f"ppo.prio_alpha={alpha} has no effect with ppo.sampling={sampling}",
            ({"ppo.sampling": "prioritized"}, {"ppo.prio_alpha": 0}),
        )
    if values["ppo.replacement"] and sampling not in ("prioritized", "independent"):
        yield Violation(
            ("ppo.replacement", "ppo.sampling"),
            f"ppo.replacement=true needs minibatches that are drawn one by one, and ppo.sampling={sampling} "
            "uses every row once per update epoch",
            ({"ppo.replacement": False}, {"ppo.sampling": "independent"}),
        )


def _replay_ratio(values: Values) -> Iterator[Violation]:
    ratio, sampling, epochs = values["trainer.replay_ratio"], values["ppo.sampling"], values["trainer.update_epochs"]
    if ratio is None:
        return
    if sampling not in ("prioritized", "independent"):
        yield Violation(
            ("trainer.replay_ratio", "ppo.sampling"),
            f"trainer.replay_ratio={ratio:g} needs minibatches that are drawn one by one, and ppo.sampling={sampling} "
            "uses every row once per update epoch",
            ({"trainer.replay_ratio": None}, {"ppo.sampling": "independent", "ppo.prio_alpha": 0.0}),
        )
    if epochs > 1:
        yield Violation(
            ("trainer.replay_ratio", "trainer.update_epochs"),
            f"trainer.replay_ratio={ratio:g} and trainer.update_epochs={epochs} both set the number of updates",
            ({"trainer.update_epochs": 1}, {"trainer.replay_ratio": None}),
        )


def _layers_of_core(values: Values) -> Iterator[Violation]:
    layers, core = values["policy.num_layers"], values["policy.core"]
    if layers > 1 and core != "mingru" and values["policy.target"] is None:
        yield Violation(
            ("policy.num_layers", "policy.core"),
            f"policy.num_layers={layers} is for policy.core=mingru; policy.core={core} has one layer",
            ({"policy.num_layers": 1}, {"policy.core": "mingru"}),
        )


def _critic_is_trained(values: Values) -> Iterator[Violation]:
    if not values["ppo.value_trains_core"] and values["policy.separate_critic"]:
        yield Violation(
            ("ppo.value_trains_core", "policy.separate_critic"),
            "ppo.value_trains_core=false with policy.separate_critic=true would never train the critic's encoder and core",
            ({"ppo.value_trains_core": True}, {"policy.separate_critic": False}),
        )


def _estimator(values: Values) -> Iterator[Violation]:
    if values["ppo.advantage"] == "puffer":
        row_end, ignored = values["ppo.row_end"], values["ppo.ignore_truncation"]
        if row_end != "zero" or not ignored:
            key, value = ("ppo.row_end", row_end) if row_end != "zero" else ("ppo.ignore_truncation", False)
            yield Violation(
                ("ppo.advantage", "ppo.row_end", "ppo.ignore_truncation"),
                f"ppo.advantage=puffer is PufferLib's own function, which has no {key}={show(value)}; vtrace is the same "
                "recursion with every option",
                ({"ppo.advantage": "vtrace"}, {"ppo.row_end": "zero", "ppo.ignore_truncation": True}),
            )
    if values["ppo.row_end"] == "zero" and values["ppo.trace_end"] == "iteration":
        yield Violation(
            ("ppo.row_end", "ppo.trace_end"),
            "ppo.row_end=zero ends every trace with its row, and ppo.trace_end=iteration goes on after it",
            ({"ppo.trace_end": "row"}, {"ppo.row_end": "bootstrap"}),
        )
    if values["ppo.ignore_truncation"] and not values["ppo.bootstrap_truncation"]:
        yield Violation(
            ("ppo.ignore_truncation", "ppo.bootstrap_truncation"),
            "ppo.ignore_truncation=true goes on after a truncated step, and ppo.bootstrap_truncation=false ends there",
            ({"ppo.bootstrap_truncation": True}, {"ppo.ignore_truncation": False}),
        )


ALGORITHM_RULES: tuple[Rule, ...] = (_sampling, _replay_ratio, _estimator, _layers_of_core, _critic_is_trained)
