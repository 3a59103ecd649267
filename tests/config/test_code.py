"""The code that a config names: every key that is imported, and the file that set it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.config import load, recipe_names
from millpond.config.files import source_file
from millpond.config.load import code_of
from tests.support.env_specs import env_spec


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def named(*arguments: Any) -> dict[str, tuple[str, Path | None]]:
    return {code.key: (code.value, code.source) for code in code_of(*arguments)}


@pytest.mark.parametrize(
    ("env", "modules"),
    [
        ("{id: grid}", []),
        ("{id: 'atari:pong'}", []),
        ("{id: 'minatar:breakout'}", []),
        ("{id: 'gymnasium:CartPole-v1', options: {gravity: 9.8, name: text}}", []),
        ("{id: 'gymnasium:some.module:Env-v0'}", [("some.module",)]),
        ("{id: 'gymnasium:Adapter-v0', options: {inner: {env_id: 'evil:Env-v0'}}}", [("evil",)]),
        ("{id: 'pettingzoo:sisl.pursuit_v4'}", [("pettingzoo.sisl.pursuit_v4", "sisl.pursuit_v4")]),
        ("{id: 'package.module:make_env'}", [("package.module",)]),
        ("{id: 'grid:make_env'}", [("grid",)]),
        ("{id: mettagrid, mettagrid: {config: 'package.maps:make'}}", [("package.maps",)]),
        ("{id: mettagrid, mettagrid: {config: map.yaml}}", [()]),
        ("{id: grid, mettagrid: {config: 'package.maps:make'}}", []),
    ],
)
def test_every_form_of_env_that_imports_code_is_found(tmp_path: Path, env: str, modules: list[tuple[str, ...]]) -> None:
    code = code_of(write(tmp_path / "recipe.yaml", f"extends: grid\nenv: {env}\n"))
    assert [one.modules for one in code] == modules
    assert all(one.source == tmp_path / "recipe.yaml" for one in code)


def test_the_last_file_that_sets_a_key_is_its_source(tmp_path: Path) -> None:
    below = write(tmp_path / "below.yaml", "extends: grid\nenv: {id: 'a:b'}\npolicy: {target: 'c:d'}\n")
    above = write(tmp_path / "above.yaml", "extends: below.yaml\npolicy: {target: 'e:f'}\n")
    assert named(above) == {"env.id": ("a:b", below), "policy.target": ("e:f", above)}
    assert named({"extends": str(below), "env": {"id": "g:h"}}) == {
        "env.id": ("g:h", None),
        "policy.target": ("c:d", below),
    }


def test_overrides_are_the_users_words_and_presets_are_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "recipe.yaml", "extends: grid\nenv: {id: 'a:b'}\npresets: {debug: {env.id: 'c:d'}}\n")
    assert named(path, [], "debug") == {"env.id": ("c:d", path)}
    assert named(path, ["env.id=e:f"], "debug") == {"env.id": ("e:f", None)}
    assert named(path, {"env": {"id": "e:f"}}) == {"env.id": ("e:f", None)}


def test_a_pufferlib_file_is_the_source_of_its_env(tmp_path: Path) -> None:
    path = write(tmp_path / "puffer.ini", "[base]\npackage = ocean\nenv_name = puffer_snake\n")
    assert named(path) == {"env.id": ("pufferlib.ocean:puffer_snake", path)}


def test_packaged_recipes_name_no_code_and_are_no_source(tmp_path: Path) -> None:
    assert all(code_of(name) == () for name in recipe_names())
    packaged = Path(millpond.__file__).parent / "recipes"
    assert source_file(packaged / "grid.yaml") is None
    assert source_file(tmp_path / "grid.yaml") == tmp_path / "grid.yaml"


def test_code_is_approved_before_the_env_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "recipe.yaml", "extends: grid\nenv: {id: 'a:b'}\n")
    calls = []
    load(path, ask_env=lambda env: calls.append(env.id) or env_spec(), approve=lambda code: calls.append(code[0].key))  # type: ignore[func-returns-value]
    assert calls == ["env.id", "a:b"]
