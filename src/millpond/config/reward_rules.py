"""Rules of kind `reward`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from millpond.config.violations import Violation

Values = Mapping[str, Any]


def _one_way_to_save(values: Values) -> Iterator[Violation]:
    if values["reward.save_freq"] is not None and values["checkpoint.interval"] is not None:
        yield Violation(
            ("reward.save_freq", "checkpoint.interval"),
            f"reward.save_freq={values['reward.save_freq']} and checkpoint.interval={values['checkpoint.interval']} "
            f"both say when to save; keep one",
            ({"checkpoint.interval": None}, {"reward.save_freq": None}),
        )


def _full_mode(values: Values) -> Iterator[Violation]:
    objective = values["reward.objective"]
    if not values["reward.reward_only"]:
        if objective not in ("lrd", "rrd"):
            yield Violation(
                ("reward.reward_only", "reward.objective"),
                f"reward.objective={objective} with reward.reward_only=false: an agent learns from its own episodes' "
                f"returns, which lrd and rrd take apart",
                ({"reward.objective": "lrd"}, {"reward.reward_only": True}),
            )
        if values["env.num_agents"] != 1:
            yield Violation(
                ("env.num_agents",),
                f"env.num_agents={values['env.num_agents']:,}: full mode trains one agent an env",
                ({"env.num_agents": 1},),
            )
        if values["agent.replay_transitions"] < values["agent.batch_size"]:
            yield Violation(
                ("agent.replay_transitions", "agent.batch_size"),
                f"agent.replay_transitions={values['agent.replay_transitions']:,} does not hold one batch of "
                f"agent.batch_size={values['agent.batch_size']:,}",
                ({"agent.replay_transitions": values["agent.batch_size"]},),
            )


def _data(values: Values) -> Iterator[Violation]:
    episodes, steps = values["data.expected_episodes"], values["data.expected_steps"]
    if episodes is not None and steps is not None and steps < episodes:
        yield Violation(
            ("data.expected_episodes", "data.expected_steps"),
            f"data.expected_steps={steps:,} is less than one step for each of data.expected_episodes={episodes:,}",
            ({"data.expected_steps": None},),
        )


def _columns(values: Values) -> Iterator[Violation]:
    dropped = values["data.drop_columns"]
    wrong = [column for column in dropped if not re.fullmatch(r".+:\d+", column)]
    if wrong:
        kept = [column for column in dropped if column not in wrong]
        yield Violation(
            ("data.drop_columns",),
            f"data.drop_columns has {', '.join(wrong)}; a column is named FIELD:COLUMN, such as states:0",
            ({"data.drop_columns": kept},),
        )


RULES = [_one_way_to_save, _full_mode, _data, _columns]
