"""Rules between the keys of PPO's algorithm and network: sampling, advantages, layers, the critic."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config.rules import Rule, Values, Violation, show

WITH_DECAY = ("adamw", "schedule_free_adamw")


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


def _weight_decay(values: Values) -> Iterator[Violation]:
    decay, optimizer = values["ppo.weight_decay"], values["ppo.optimizer"]
    if decay is not None and optimizer not in WITH_DECAY:
        yield Violation(
            ("ppo.weight_decay", "ppo.optimizer"),
            f"ppo.weight_decay={decay:g} has no effect with ppo.optimizer={optimizer}",
            ({"ppo.weight_decay": None}, {"ppo.optimizer": "adamw"}),
        )
    warmup = values["ppo.warmup_updates"]
    if warmup and optimizer != "schedule_free_adamw":
        yield Violation(
            ("ppo.warmup_updates", "ppo.optimizer"),
            f"ppo.warmup_updates={warmup:,} has no effect with ppo.optimizer={optimizer}; `schedules` has a warm-up for all",
            ({"ppo.warmup_updates": 0}, {"ppo.optimizer": "schedule_free_adamw"}),
        )


def _refresh_values(values: Values) -> Iterator[Violation]:
    if values["ppo.refresh_values"] and not values["ppo.recompute_advantage"]:
        yield Violation(
            ("ppo.refresh_values", "ppo.recompute_advantage"),
            "ppo.refresh_values=true computes values anew for advantages that ppo.recompute_advantage=false leaves as they are",
            ({"ppo.recompute_advantage": True}, {"ppo.refresh_values": False}),
        )


# What a critic by gradient TD(lambda) cannot be combined with, and why.
WITHOUT_GTD = (
    ("ppo.advantage", "gae", "its temporal differences have no importance weights"),
    ("ppo.trace_end", "row", "its traces end with their rows"),
    ("ppo.normalize_values", False, "its loss is in units of the rewards"),
    ("ppo.vf_clip_coef", None, "its loss has no old value to stay near"),
    ("policy.separate_critic", False, "the auxiliary head reads the network that the policy shares"),
    ("policy.target", None, "a custom policy has no auxiliary head"),
)


def _gtd(values: Values) -> Iterator[Violation]:
    if values["ppo.critic"] != "gtd_lambda":
        return
    broken = [(key, value, reason) for key, value, reason in WITHOUT_GTD if values[key] != value]
    for key, value, reason in broken:
        fix = {other: allowed for other, allowed, _ in broken}
        fixes = ({"ppo.critic": "mse"},) if key == "policy.target" else (fix, {"ppo.critic": "mse"})
        yield Violation(
            ("ppo.critic", key),
            f"ppo.critic=gtd_lambda needs {key}={show(value)}: {reason}; it is {show(values[key])}",
            fixes,
        )


def _graphs(values: Values) -> Iterator[Violation]:
    if not values["trainer.graphs"]:
        return
    off = {"trainer.graphs": False}
    optimizer = values["ppo.optimizer"]
    if optimizer not in ("adam", "adamw"):
        yield Violation(
            ("trainer.graphs", "ppo.optimizer"),
            f"trainer.graphs=true captures updates of ppo.optimizer adam or adamw; it is {optimizer}",
            (off, {"ppo.optimizer": "adam"}),
        )
    for key, needed, reason in (
        ("trainer.cpu_offload", False, "rows in host memory are copied by the host for every minibatch"),
        ("trainer.compile", False, "compiled code would be captured while it is being compiled"),
        ("ppo.critic", "mse", "the residual of gtd_lambda is computed by the host"),
    ):
        if values[key] != needed:
            yield Violation(
                ("trainer.graphs", key),
                f"trainer.graphs=true needs {key}={show(needed)}: {reason}; it is {show(values[key])}",
                (off, {key: needed}),
            )


ALGORITHM_RULES: tuple[Rule, ...] = (
    _sampling,
    _replay_ratio,
    _estimator,
    _layers_of_core,
    _critic_is_trained,
    _weight_decay,
    _refresh_values,
    _gtd,
    _graphs,
)
