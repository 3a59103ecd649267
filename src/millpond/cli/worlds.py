"""What `envs` and `envs check` print."""

from __future__ import annotations

import sys

from millpond.cli.output import print_json, print_text
from millpond.config.load import parse_override
from millpond.envs.check import check_env
from millpond.envs.errors import require_extra
from millpond.envs.listing import list_envs
from millpond.planner.lines import sentence
from millpond.plurals import plural

SIGNS = {"error": "wrong", "warning": "note", "ok": "right"}


def print_envs(games: bool, as_json: bool) -> None:
    """Every world that can be named, with what it shows and takes."""
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
        *sentence("`millpond envs check ID` checks a world, also one of your own as package.module:make_env.", 0),
    ]
    print_text("\n".join(lines))


def print_check(env_id: str, options: list[str], steps: int, as_json: bool) -> None:
    """What a conformance check finds; exit 1 where a world breaks a rule."""
    require_extra(env_id)
    findings = check_env(env_id, dict(parse_override(option) for option in options), steps=steps)
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
