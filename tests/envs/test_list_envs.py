from __future__ import annotations

from millpond.envs.registry import known_ids, list_envs


def test_every_known_id_is_listed_with_its_spaces():
    rows = {row.id: row for row in list_envs(games=True)}
    assert set(rows) == set(known_ids())
    assert rows["grid"].observation == "cells 11x11 uint8 + inventory 3 uint8"
    assert (rows["grid"].action, rows["grid"].agents, rows["grid"].savable) == ("5 choices", "3", "yes")
    assert rows["atari:gravitar"].action == "18 choices"


def test_the_short_list_shows_one_game_of_each_family():
    assert [row.id for row in list_envs()] == [
        "grid",
        "recall",
        "truncation",
        "mettagrid",
        "minatar:breakout",
        "atari:gravitar",
        "gymnasium:ID",
        "pettingzoo:MODULE",
        "package.module:make_env",
    ]
