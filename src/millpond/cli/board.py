"""The command `board`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.output import print_text


def board(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="Folder with runs and sweeps; its folders runs, sweeps and experiments are looked into, too.",
            show_default=False,
        ),
    ] = Path("."),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 6710,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Address to listen on; another than loopback needs --token."),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="SECRET",
            envvar="MILLPOND_BOARD_TOKEN",
            help="Secret that a browser needs; 16 characters or more.",
            show_default=False,
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show all runs of a folder in the browser, live: curves, sweeps, configs, episodes. Ctrl-C ends it.

    The page is served to this machine alone and loads nothing from the network. It changes nothing but tags, notes, and
    a request to stop a run after its iteration. Needs the extra `board`.

    \b
      millpond board                     # ./runs, ./sweeps and ./experiments
      millpond board ~/projects/ball/runs --port 0
      MILLPOND_BOARD_TOKEN=... millpond board --host 0.0.0.0    # for other machines; without encryption
    """
    from millpond.board.server import serve

    def ready(address: str) -> None:
        print_text(f"{address}\nCtrl-C ends the board; trainings continue.")
        if open_browser and _has_screen():
            import webbrowser

            webbrowser.open(address)

    serve(folder, host=host, port=port, token=token, ready=ready)


def _has_screen() -> bool:
    """True if a person sees this terminal, and a browser can open a window."""
    windows = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return windows and sys.stdout.isatty()
