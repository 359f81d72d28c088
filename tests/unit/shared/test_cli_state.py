"""Commands find the running cluster, and forget one that is gone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.cli import state
from shared.config import ConfigError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("LAYA_ADDRESS", "LAYA_ADMIN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def other() -> Iterator[int]:
    """The process of another ``laya up``."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def file_of(folder: Path, pid: int) -> Path:
    return folder / "laya" / "up" / f"{pid}.json"


def test_a_running_cluster_is_found_by_this_user_alone(own_folders: Path) -> None:
    state.write_state({"pid": os.getpid(), "address": "127.0.0.1:5", "admin": "127.0.0.1:6"})
    assert state.address(None) == "127.0.0.1:5"
    assert state.admin_address(None) == "127.0.0.1:6"
    assert stat.S_IMODE(file_of(own_folders, os.getpid()).stat().st_mode) == 0o600
    state.clear_state()
    assert state.address(None) == state.DEFAULT_ADDRESS
    assert state.admin_address(None) == state.DEFAULT_ADMIN


def test_a_cluster_whose_process_is_gone_is_not_there_and_forgotten_at_last(own_folders: Path) -> None:
    gone = 2**22 + 1
    state.write_state({"pid": gone, "address": "127.0.0.1:5"})
    assert state.address(None) == state.DEFAULT_ADDRESS
    state.clear_state()
    assert not file_of(own_folders, gone).exists()


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"pid": 1}', '{"pid": "x", "address": "a:1"}'])
def test_a_broken_state_is_none(own_folders: Path, text: str) -> None:
    state.write_state({"pid": os.getpid(), "address": "127.0.0.1:5", "admin": "127.0.0.1:6"})
    file_of(own_folders, os.getpid()).write_text(text)
    assert state.admin_address(None) == state.DEFAULT_ADMIN


def test_a_process_that_has_the_number_of_a_dead_one_is_no_cluster(own_folders: Path) -> None:
    state.write_state({"pid": os.getpid(), "address": "127.0.0.1:5"})
    path = file_of(own_folders, os.getpid())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"born": "1"}))
    assert state.running() == []


def test_a_flag_goes_before_the_environment_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    state.write_state({"pid": os.getpid(), "address": "c:3", "admin": "c:4"})
    monkeypatch.setenv("LAYA_ADDRESS", "b:2")
    monkeypatch.setenv("LAYA_ADMIN", "b:3")
    assert state.address("a:1") == "a:1"
    assert state.address(None) == "b:2"
    assert state.admin_address("a:1") == "a:1"
    assert state.admin_address(None) == "b:3"


def test_one_of_several_clusters_is_named_or_they_are_told(own_folders: Path, other: int) -> None:
    state.write_state({"pid": os.getpid(), "address": "127.0.0.1:5", "admin": "127.0.0.1:6"})
    state.write_state({"pid": other, "address": "127.0.0.1:7", "admin": "127.0.0.1:8"})
    for look in (state.address, state.admin_address):
        with pytest.raises(ConfigError, match="127.0.0.1:.*, 127.0.0.1:.*say which with --a"):
            look(None)
    assert state.admin_address("127.0.0.1:5") == "127.0.0.1:6"
    assert state.admin_address("7") == "127.0.0.1:8"
    with pytest.raises(ConfigError, match="port 9"):
        state.admin_address("9")
    state.clear_state()
    assert file_of(own_folders, other).exists()
    assert state.address(None) == "127.0.0.1:7"
    assert state.admin_address(None) == "127.0.0.1:8"


def test_the_environments_router_names_one_of_several(monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    state.write_state({"pid": os.getpid(), "address": "127.0.0.1:5", "admin": "127.0.0.1:6"})
    state.write_state({"pid": other, "address": "127.0.0.1:7", "admin": "127.0.0.1:8"})
    monkeypatch.setenv("LAYA_ADDRESS", "localhost:7")
    assert state.admin_address(None) == "127.0.0.1:8"


@pytest.mark.parametrize(
    ("listens", "asked", "found"),
    [
        ("127.0.0.1:5", "127.0.0.1:5", True),
        ("127.0.0.1:5", "localhost:5", True),
        ("0.0.0.0:5", "127.0.0.1:5", True),
        ("[::1]:5", "localhost:5", True),
        ("127.0.0.1:5", "5", True),
        ("127.0.0.1:5", "localhost:6", False),
        ("127.0.0.1:5", "10.0.0.9:5", False),
        ("10.0.0.9:5", "localhost:5", False),
        ("10.0.0.9:5", "10.0.0.9:5", True),
    ],
)
def test_a_cluster_is_found_by_any_name_of_its_address(listens: str, asked: str, found: bool) -> None:
    state.write_state({"pid": os.getpid(), "address": listens, "admin": "127.0.0.1:6"})
    assert bool(state.find(asked)) is found


def test_the_key_file_is_the_flag_the_configuration_or_the_users_own(own_folders: Path) -> None:
    config = own_folders / "laya.yaml"
    config.write_text("server: {keys_file: /etc/laya/keys.json}")
    assert state.keys_file("x.json", str(config)) == Path("x.json")
    assert state.keys_file(None, str(config)) == Path("/etc/laya/keys.json")
    assert state.keys_file(None, None) == own_folders / "config" / "laya" / "keys.json"
    config.write_text("server: {port: 1}")
    with pytest.raises(ConfigError, match="keys_file"):
        state.keys_file(None, str(config))
