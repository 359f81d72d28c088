"""Which form of the hot path a process takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from shared import compiled

_ASK = (
    "import shared, router_node.dispatch.cost as module; from shared.compiled import compiled;"
    "print(compiled(), module.__file__.endswith('.py'))"
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of our sources, with whatever extensions lie among them."""
    for package in ("router_node", "shared"):
        shutil.copytree(compiled.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    return tmp_path


def ask(tree: Path, **env: str) -> list[str]:
    """What a process with these sources says: is it compiled, is a hot module taken from its source."""
    clean = {name: value for name, value in os.environ.items() if name != "LAYA_PLAIN"}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], cwd=tree, env={**clean, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_every_module_that_is_compiled_exists() -> None:
    assert [name for name in compiled.MODULES if not (compiled.ROOT / name).is_file()] == []
    assert len(set(compiled.MODULES)) == len(compiled.MODULES)


@pytest.mark.parametrize("changed", ["router_node/dispatch/cost.py", "shared/headers.py", "shared/net/api.py"])
def test_the_digest_follows_the_sources_and_what_they_import(tree: Path, changed: str) -> None:
    before = compiled.digest()
    with (tree / changed).open("a") as file:
        file.write("# changed\n")
    assert compiled.digest() != before


def test_the_digest_ignores_what_the_hot_path_does_not_use(tree: Path) -> None:
    before = compiled.digest()
    with (tree / "shared/cli/main.py").open("a") as file:
        file.write("# changed\n")
    assert compiled.digest() == before


def test_extensions_of_other_sources_are_stale_and_never_imported(tree: Path) -> None:
    for file in compiled.extensions():
        file.unlink()
    assert not compiled.stale()
    assert ask(tree) == ["False", "True"]
    compiled.library("0" * 16).touch()  # importing it, or what leads to it, would fail
    (tree / f"router_node/dispatch/cost{EXTENSION_SUFFIXES[0]}").touch()
    assert compiled.stale()
    assert ask(tree) == ["False", "True"]


@pytest.mark.skipif(not compiled.libraries() or compiled.stale(), reason="the hot path is not compiled here")
def test_extensions_that_fit_are_used_unless_told_otherwise(tree: Path) -> None:
    assert ask(tree) == ["True", "False"]
    assert ask(tree, LAYA_PLAIN="1") == ["False", "True"]
    with (tree / "router_node/dispatch/cost.py").open("a") as file:
        file.write("# changed\n")
    assert ask(tree) == ["False", "True"]
