"""``pip install .``: what it brings is enough, and a wheel carries everything that the sources have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.processes import ROOT, START_LIMIT

pytestmark = pytest.mark.timeout(600)  # downloads

PACKAGES = ("router_node", "inference_node", "shared")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a package is made of, so that building leaves nothing here."""
    folder = tmp_path_factory.mktemp("sources")
    for name in (*PACKAGES, "protos"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, plain: the images' build compiles it."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, sources]
    done = tools.run(*argv, timeout=300, env={"LAYA_COMPILE": "0"})
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("laya-*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("venv")
    for argv in (["-m", "venv", folder], ["-m", "pip", "--python", folder / "bin" / "python", "install", "-q", wheel]):
        done = tools.run(sys.executable, *argv, timeout=400)
        assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_a_wheel_has_every_file_of_the_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*"):
            if file.suffix in (".py", ".pyi", ".binpb", ".typed") and "__pycache__" not in file.parts:
                assert str(file.relative_to(ROOT)) in names or file.name == "py.typed", file
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_three_commands_are_there(installed: Path) -> None:
    from shared.version import __version__

    for command, argument in (("laya", "--version"), ("laya-router", "--version"), ("laya-node", "--help")):
        done = tools.run(installed / command, argument)
        assert done.returncode == 0, done.stderr
        assert __version__ in done.stdout or command == "laya-node"


def test_what_is_installed_serves(installed: Path, tmp_path: Path) -> None:
    """A simulated node from the package alone, far from the sources."""
    read, write = os.pipe()
    node = [installed / "laya-node", "--engine", "sim", "--model", "m", "--ready-fd", str(write)]
    process = subprocess.Popen(list(map(str, node)), pass_fds=(write,), cwd=tmp_path, stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as events:
            address = next(e["address"] for e in map(json.loads, events) if e["event"] == "ready")
        deadline = str(START_LIMIT)
        done = tools.run(installed / "laya", "health", address, "--timeout", deadline, timeout=START_LIMIT + 5)
        assert (done.returncode, done.stdout) == (0, f"{address}: SERVING\n")
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_every_command_of_the_package_can_be_loaded(installed: Path) -> None:
    """Nothing that the package does not ask for is needed to show what a command does."""
    listed = tools.run(installed / "python", "-c", "from shared.cli.main import COMMANDS; print(*COMMANDS)")
    for command in listed.stdout.split():
        done = tools.run(installed / "laya", command, "--help")
        assert done.returncode == 0, f"{command}: {done.stderr}"
