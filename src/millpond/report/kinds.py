"""The part of a report that differs between kinds of runs. The table of kinds (`millpond.kinds`) refers to these."""

from __future__ import annotations

from millpond.formatting import plural
from millpond.report.facts import UNKNOWN, Facts, KindReport
from millpond.report.iteration import nine_stages


def _always(facts: Facts) -> bool:
    return True


def _with_agent(facts: Facts) -> bool:
    return not facts.setting("reward.reward_only", True)


def _policy(facts: Facts) -> list[list[str]]:
    if not facts.setting("policy.core"):
        return []
    return [["policy", f"core {facts.setting('policy.core')}, {facts.setting('policy.hidden_size')} units"]]


def _agents(facts: Facts) -> list[list[str]]:
    if not facts.plan.get("agents"):
        return []
    big = "" if facts.setting("mixture.mode") == "single" else " and the BigAgent (DQN)"
    units = facts.setting("policy.hidden_size")
    return [["agents", f"{plural(facts.plan['agents'], 'PQN agent')}{big}, {units} units each"]]


def _reward_network(facts: Facts) -> list[list[str]]:
    data = [] if facts.has_agent else [["data", str(facts.setting("data.path", UNKNOWN))]]
    units = facts.setting("reward.hidden_size")
    return [*data, ["reward network", f"objective {facts.setting('reward.objective', UNKNOWN)}, {units} units"]]


PPO = KindReport(has_agent=_always, subject=_policy, sections=(nine_stages,))
MIXTURE = KindReport(has_agent=_always, subject=_agents)
REWARD = KindReport(has_agent=_with_agent, subject=_reward_network)
