"""What `envs` and `envs check` print."""

from __future__ import annotations

import sys

from millpond.cli.output import print_json, print_text, watched
from millpond.config.check import overlay
from millpond.config.load import parse_override
from millpond.envs.check import check_env, in_order
from millpond.envs.families import require_extra
from millpond.envs.registry import list_envs
from millpond.planner.lines import sentence
from millpond.plurals import plural

SECONDS_BETWEEN_LINES = 10.0
SIGNS = {"error": "wrong", "warning": "note", "ok": "right"}


def print_envs(games: bool, as_json: bool) -> None:
    """Every environment that can be named, with what it shows and takes."""
    rows = list_envs(games=games)
    if as_json:
        print_json([vars(row) for row in rows])
        return
    lines: list[str] = []
    for row in rows:
        facts = [
            f"sees {row.observation}",
            f"does {row.action}",
            f"agents {row.agents}",
            f"state savable: {row.savable}",
        ]
        lines += [row.id, *sentence("; ".join(fact for fact in facts if not fact.endswith(" ")))]
        lines += sentence(row.about) if row.about else []
        lines += sentence(f"missing: {row.needs}") if row.needs else []
    lines += [
        "",
        *sentence(
            "`millpond envs check ID` checks an environment, also one of your own as package.module:make_env.", 0
        ),
    ]
    print_text("\n".join(lines))


def print_check(env_id: str, options: list[str], steps: int | None, as_json: bool) -> None:
    """What a conformance check finds; exit 1 where an environment breaks a rule."""
    require_extra(env_id)
    settings = overlay({}, dict(parse_override(option) for option in options))
    with watched(f"checking {env_id}:", lines_every=SECONDS_BETWEEN_LINES) as watch:
        findings = check_env(env_id, settings, steps=steps, watch=watch)
        if findings[0].rule != "can be made" or findings[0].status == "ok":
            from millpond.trainers.common.build import check_policy_on

            watch("a policy acts and learns")
            findings = in_order([*findings, check_policy_on(env_id, settings)])
    wrong = [finding for finding in findings if finding.status == "error"]
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        lines = [f"{env_id}: {plural(len(findings), 'rule')}, {len(wrong)} broken"]
        for finding in findings:
            told = f"{finding.rule}: {finding.what}" if finding.what else finding.rule
            lines += sentence(told, 2, f"{SIGNS.get(finding.status, finding.status):<6} ")
            lines += sentence(finding.fix, 9) if finding.fix else []
        print_text("\n".join(lines))
    if wrong:
        sys.exit(1)
