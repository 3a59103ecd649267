"""The built wheel, installed outside of the checkout as `pip install` does."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import millpond

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "millpond"


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy of the repository, since setuptools writes next to the source."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    files = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "*.toml", "*.md", "LICENSE", cwd=ROOT
    )
    for name in files.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    run(sys.executable, "-c", build, str(out), cwd=copy)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("millpond/")}
    kinds = (
        "*.py",
        "py.typed",
        "recipes/*.yaml",
        "report/css/*.css",
        "board/static/*",
        "data/files/*",
        "experiments/*.yaml",
    )
    expected = {f"millpond/{path.relative_to(SOURCE).as_posix()}" for kind in kinds for path in SOURCE.rglob(kind)}
    assert {"millpond/py.typed", "millpond/recipes/grid.yaml", "millpond/data/files/lift.hdf5"} <= expected
    assert any(name.endswith(".css") for name in expected)
    assert names == expected


@pytest.mark.slow
def test_wheel_outside_the_checkout_trains_and_reports(wheel: Path, tmp_path: Path) -> None:
    """The environment is fresh; dependencies are those of this one, so that the test needs no network."""
    home, cwd = tmp_path / "environment", tmp_path / "elsewhere"
    cwd.mkdir()
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", str(wheel), cwd=cwd)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=cwd).strip())
    dependencies = {*site.getsitepackages(), str(Path(pytest.__file__).parents[1])}
    (packages / "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")

    where = run(python, "-c", "import millpond; print(millpond.__file__)", cwd=cwd).strip()
    assert Path(where).is_relative_to(packages)
    command = python.with_name("millpond")
    assert "grid" in run(command, "recipes", cwd=cwd)
    run(command, "train", "grid", "--debug", "--run", "first", cwd=cwd)
    page = cwd / "runs" / "first" / "report.html"
    page.unlink()
    run(command, "report", "first", cwd=cwd)
    assert "</html>" in page.read_text(encoding="utf-8")
    assert millpond.__version__ in run(command, "doctor", cwd=cwd)


def test_pinned_triton_is_the_one_that_the_pinned_torch_requires() -> None:
    """The wheels of torch with CUDA, pip's default on Linux, require one version of Triton; those without CUDA require none."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines)
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1"), "see Requires-Dist of torch's wheel on PyPI"
