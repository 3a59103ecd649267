"""The commands `envs` and `envs check`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millpond.cli.complete import complete_env
from millpond.cli.options import JsonOption
from millpond.cli.output import print_json, print_text, progress
from millpond.config.check import overlay
from millpond.config.load import parse_override
from millpond.envs.families import require_extra
from millpond.formatting import plural, sentence

SECONDS_BETWEEN_LINES = 10.0
MARKS = {"error": "FAIL", "warning": "warn", "ok": "ok"}  # status of a rule -> its mark in the text

envs = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@envs.callback()
def list_envs(
    context: typer.Context,
    games: Annotated[bool, typer.Option("--games", help="List every Atari game too.")] = False,
    json: JsonOption = False,
) -> None:
    """List the environments: ids, observations and actions, agents, and how to install missing ones.

    \b
      millpond envs
      millpond envs check grid
      millpond envs check mypackage.mymodule:make_env
    """
    if context.invoked_subcommand is not None:
        return
    from millpond.envs.registry import list_envs

    rows = list_envs(games=games)
    if json:
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
    hint = "`millpond envs check ID` checks an environment, also a custom one as package.module:make_env."
    print_text("\n".join([*lines, "", *sentence(hint, 0)]))


@envs.command("check", short_help="Check that an environment follows the rules.")
def check_environment(
    env_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An environment's id, or a custom one as package.module:make_env.",
            autocompletion=complete_env,
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPTION=VALUE]...",
            help="Options of the environment, such as num_agents=4; arguments of a custom function as kwargs.NAME=VALUE.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Env steps per trial; default: 300, or fewer if they take over 10 s."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check an environment: spaces, dtypes, seeding, termination against truncation, final observations, determinism, and that
    a policy can act on its observations and learn from them.

    Prints what is wrong and how to fix it; exits with 1 if a rule is broken.

    \b
      millpond envs check grid
      millpond envs check gymnasium:CartPole-v1 --steps 500
      millpond envs check mypackage.mymodule:make_env max_steps=100
    """
    from millpond.envs.check import check_env, in_order

    require_extra(env_id)
    settings = overlay({}, dict(parse_override(option) for option in options or ()))
    with progress(f"checking {env_id}:", lines_every=SECONDS_BETWEEN_LINES) as update:
        results = check_env(env_id, settings, steps=steps, watch=update)
        if results[0].rule != "can be made" or results[0].status == "ok":
            from millpond.trainers.common.build import check_policy_on

            update("a policy acts and learns")
            results = in_order([*results, check_policy_on(env_id, settings)])
    broken = [result for result in results if result.status == "error"]
    if json:
        print_json([vars(result) for result in results])
    else:
        lines = [f"{env_id}: {plural(len(results), 'rule')}, {len(broken)} broken"]
        for result in results:
            text = f"{result.rule}: {result.what}" if result.what else result.rule
            lines += sentence(text, 2, f"{MARKS.get(result.status, result.status):<6} ")
            lines += sentence(result.fix, 9) if result.fix else []
        print_text("\n".join(lines))
    if broken:
        sys.exit(1)
