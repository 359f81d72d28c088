"""The base revision of the regression guard: where its files and its compiled form come from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from loadtest import perf_base
from loadtest.perf_base import PerfError
from tests.support.alive import alive
from tests.support.ports import within

COMPILED = """
from pathlib import Path
_MADE = Path(__file__).with_name("made.so")
def digest():
    return "d1"
def compiled():
    return _MADE.exists()
"""
SETUP = """
from pathlib import Path
Path("shared/made.so").write_text("code")
with open("count", "a") as count:
    count.write("x")
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "laya" / "perf"


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "router_node").mkdir(parents=True)
    git(folder, "init", "-q")
    for text in ("one", "two"):
        commit(folder, "router_node/a.py", text)
    monkeypatch.setattr(perf_base, "ROOT", folder)
    return folder


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=folder, check=True)


def commit(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", text)


def tree(folder: Path, setup: str = SETUP, compiled: str = COMPILED) -> Path:
    """A revision whose compiled form is a file, and which counts how often it is made."""
    (folder / "shared").mkdir(parents=True)
    (folder / "router_node").mkdir()
    (folder / "shared" / "compiled.py").write_text(compiled)
    (folder / "setup.py").write_text(setup)
    return folder


def test_the_base_is_what_was_there_before_the_last_change_of_the_product(repository: Path, tmp_path: Path) -> None:
    commit(repository, "README.md", "words only")
    assert (perf_base.extract(perf_base.default_base(), tmp_path) / "router_node" / "a.py").read_text() == "one"
    (repository / "router_node" / "a.py").write_text("three")
    assert perf_base.default_base() == "HEAD"


def test_a_revision_that_is_none_is_said(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(PerfError, match="no commit no-such-revision"):
        perf_base.extract("no-such-revision", tmp_path)


def test_a_base_is_compiled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert perf_base.compile_base(first) and (first / "count").exists()
    assert "compiling the base revision" in capsys.readouterr().err
    assert perf_base.compile_base(second) and not (second / "count").exists()
    assert (second / "shared" / "made.so").read_text() == "code"


def test_what_the_working_tree_compiled_serves_as_a_base_later(tmp_path: Path) -> None:
    mine, base = tree(tmp_path / "a"), tree(tmp_path / "b")
    (mine / "shared" / "made.so").write_text("mine")
    perf_base.keep(mine, perf_base.key(mine))
    assert perf_base.compile_base(base, limit=0.0)
    assert (base / "shared" / "made.so").read_text() == "mine"


def test_a_base_that_is_built_in_another_way_is_another(tmp_path: Path) -> None:
    one, other = tree(tmp_path / "a"), tree(tmp_path / "b", setup=SETUP + "# -O3\n")
    assert perf_base.key(one) == perf_base.key(one) != perf_base.key(other)


def test_a_kept_form_that_is_broken_is_made_again(tmp_path: Path, cache: Path) -> None:
    base = tree(tmp_path / "a")
    (cache / perf_base.key(base)).mkdir(parents=True)
    assert perf_base.compile_base(base) and (base / "count").exists()
    assert (cache / perf_base.key(base) / "shared" / "made.so").exists()


def test_the_compiled_forms_that_are_kept_are_few(tmp_path: Path, cache: Path) -> None:
    mine = tree(tmp_path / "a")
    (mine / "shared" / "made.so").write_text("mine")
    for i in range(perf_base.KEPT + 3):
        perf_base.keep(mine, f"k{i}")
        os.utime(cache / f"k{i}", (i, i))
    assert sorted(one.name for one in cache.iterdir()) == sorted(f"k{i}" for i in range(3, perf_base.KEPT + 3))


@pytest.mark.parametrize(
    ("setup", "compiled", "limit", "says"),
    [
        ("", COMPILED, 20.0, "could not be compiled"),
        ("import time; time.sleep(60)", COMPILED, 0.5, "not within"),
        (SETUP, COMPILED, 0.0, "none may be made"),
        (SETUP, "", 20.0, "has no compiled form"),
    ],
)
def test_without_a_compiled_base_both_sides_are_plain(
    setup: str, compiled: str, limit: float, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not perf_base.compile_base(tree(tmp_path / "a", setup, compiled), limit)
    assert says in capsys.readouterr().err


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    perf_base._bounded(["sh", "-c", child], tmp_path, 1.0)
    pid = int((tmp_path / "pid").read_text())
    within(5.0, lambda: not alive(pid), "the child is gone")
