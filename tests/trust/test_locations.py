"""Where named code is, and whether that is the user's project; finding it runs none of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import millpond
from millpond.config.code import NamedCode
from millpond.trust.locations import find_location, in_project, is_project_file

LOUD = "raise RuntimeError('imported')\n"


def write(path: Path, text: str = LOUD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def code(path: str, source: Path) -> NamedCode:
    module, _, function = path.partition(":")
    return NamedCode("env.id", path, source, (module,), function=function)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which the user works, on the Python path as the command line puts it."""
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_nothing_is_imported_to_find_a_module(project: Path) -> None:
    files = [write(project / "loud_a" / name) for name in ("__init__.py", "b/__init__.py", "b/c.py")]
    location = find_location("loud_a.b.c")
    assert location is not None
    assert list(location.files) == files
    assert not [name for name in sys.modules if name.startswith("loud_a")]


def test_module_in_folders_without_init_is_found(project: Path) -> None:
    file = write(project / "bare_a" / "b" / "c.py")
    location = find_location("bare_a.b.c")
    assert location is not None
    assert location.files == (file,)
    assert find_location("there_is_none") is None
    unknown = find_location("bare_a.b.d")
    assert unknown is not None
    assert not unknown.whole


@pytest.mark.parametrize("module", ["sys", "os", "subprocess", "os.path", "yaml", "millpond.envs.registry"])
def test_installed_and_builtin_modules_are_not_in_the_project(project: Path, module: str) -> None:
    assert not in_project(code(f"{module}:run", project / "recipe.yaml"))


def test_millpond_itself_is_asked_about_even_in_its_own_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """`millpond:train` with the option trust=true would run anything."""
    source = Path(millpond.__file__).parent
    monkeypatch.chdir(source)
    assert is_project_file(source / "__init__.py", source) == ("site-packages" not in source.parts)
    assert not in_project(code("millpond:train", source / "recipe.yaml"))


def test_module_of_the_project_is_and_that_of_its_virtual_environment_is_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / "own_env.py", "def make_env(): ...\n")
    assert in_project(code("own_env:make_env", project / "recipe.yaml"))
    packages = project / ".venv" / "lib" / "python3" / "site-packages"
    write(packages / "pip_env.py", "def make_env(): ...\n")
    monkeypatch.syspath_prepend(str(packages))
    assert not in_project(code("pip_env:make_env", project / "recipe.yaml"))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("make_env", True),
        ("Env", True),
        ("Env.small", True),
        ("from_project", True),
        ("everything", True),
        ("absent", False),  # a star import of a module outside might define it
        ("subprocess.getoutput", False),
        ("getoutput", False),
        ("shell", False),
        ("guarded", False),
        ("Env.small.__globals__.get", False),
        ("make_env.__call__", False),
        ("__builtins__", False),
    ],
)
def test_function_that_a_module_only_imports_is_not_code_of_the_project(project: Path, name: str, own: bool) -> None:
    write(project / "pack" / "__init__.py", "")
    write(project / "pack" / "inner.py", "def original(): ...\ndef everything(): ...\n")
    write(
        project / "pack" / "envs.py",
        "import subprocess\n"
        "from subprocess import getoutput\n"
        "from os import system as shell\n"
        "from .inner import original as from_project\n"
        "from .inner import *\n"
        "try:\n    from os import popen as guarded\nexcept ImportError:\n    guarded = None\n"
        "def make_env(): ...\n"
        "class Env:\n    def small(self): ...\n" + ("from os import *\n" if name == "absent" else ""),
    )
    assert in_project(code(f"pack.envs:{name}", project / "recipe.yaml")) == own


def test_code_that_came_with_the_config_is_asked_about_unless_the_user_works_there(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / "download" / "evil.py", "def make(): ...\n")
    recipe = write(project / "download" / "recipe.yaml")
    assert not in_project(code("download.evil:make", recipe))
    assert in_project(code("download.evil:make", project / "configs" / "recipe.yaml"))
    run = project / "download" / "runs" / "x"
    assert not in_project(code("download.evil:make", run / "config.yaml"), run)
    monkeypatch.chdir(project / "download")
    assert in_project(code("download.evil:make", recipe))
    assert in_project(code("download.evil:make", run / "config.yaml"), run)


def test_a_checkout_is_one_project_and_a_clone_inside_of_it_is_another(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".git").mkdir()
    write(project / "library" / "env.py", "def make(): ...\n")
    (project / "work").mkdir()
    monkeypatch.chdir(project / "work")
    assert in_project(code("library.env:make", project / "work" / "recipe.yaml"))
    (project / "library" / ".git").mkdir()
    assert not in_project(code("library.env:make", project / "library" / "recipes" / "recipe.yaml"))


def test_in_the_home_folder_only_its_own_files_are_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = project.parent
    (home / ".git").mkdir()  # of dot files
    assert not is_project_file(home / "elsewhere" / "env.py", project)
    monkeypatch.chdir(home)
    assert is_project_file(home / "env.py", home)
    assert not is_project_file(home / "download" / "env.py", home)
    assert not is_project_file(home / "env.py", Path("/"))


def test_pettingzoo_ids_of_the_library_need_no_question_and_others_do(project: Path) -> None:
    def pettingzoo(name: str) -> NamedCode:
        return NamedCode(
            "env.id", f"pettingzoo:{name}", project / "r.yaml", (f"pettingzoo.{name}", name), library="pettingzoo"
        )

    pytest.importorskip("pettingzoo")
    assert in_project(pettingzoo("classic.rps_v2"))
    assert not in_project(pettingzoo("subprocess"))
