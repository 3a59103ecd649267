from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from millpond.envs.adapters.atari import AtariOptions
from millpond.envs.grid.game import GridOptions

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


def test_page_gives_the_defaults_of_grid():
    for option in fields(GridOptions):
        assert f"`{option.name}`" in PAGE, option.name
        if isinstance(option.default, bool) or option.name in ("width", "height", "mines", "generators", "altars"):
            continue
        row = re.search(rf"`{option.name}` \| ([\d.,]+) \|", PAGE)
        assert row is not None, option.name
        assert float(row[1].replace(",", "")) == option.default, option.name
    defaults = GridOptions()
    assert f"| {defaults.width}, {defaults.height} |" in PAGE
    assert f"| {defaults.mines}, {defaults.generators}, {defaults.altars} |" in PAGE


def test_page_names_every_atari_option():
    for option in fields(AtariOptions):
        assert option.name == "num_threads" or f"`{option.name}`" in PAGE, option.name
