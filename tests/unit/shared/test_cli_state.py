"""Commands find the running cluster, and forget one that is gone."""

from __future__ import annotations

import json
import os
import stat
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


def test_a_running_cluster_is_found_by_this_user_alone(own_folders: Path) -> None:
    state.write_state({"pid": os.getpid(), "address": "127.0.0.1:5", "admin": "127.0.0.1:6"})
    assert state.address(None) == "127.0.0.1:5"
    assert state.admin_address(None) == "127.0.0.1:6"
    assert stat.S_IMODE((own_folders / "laya" / "up.json").stat().st_mode) == 0o600
    state.clear_state()
    assert state.address(None) == state.DEFAULT_ADDRESS


def test_a_cluster_whose_process_is_gone_is_not_there(own_folders: Path) -> None:
    state.write_state({"pid": 2**22 + 1, "address": "127.0.0.1:5"})
    assert state.address(None) == state.DEFAULT_ADDRESS
    (own_folders / "laya" / "up.json").write_text("{")
    assert state.admin_address(None) == state.DEFAULT_ADMIN


def test_a_flag_goes_before_the_environment_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    state.write_state({"pid": os.getpid(), "address": "c:3"})
    monkeypatch.setenv("LAYA_ADDRESS", "b:2")
    assert state.address("a:1") == "a:1"
    assert state.address(None) == "b:2"


def test_another_clusters_state_is_left_alone(own_folders: Path) -> None:
    path = own_folders / "laya" / "up.json"
    state.write_state({"pid": os.getppid(), "address": "c:3"})
    state.clear_state()
    assert json.loads(path.read_text())["address"] == "c:3"


def test_the_key_file_is_the_flag_the_configuration_or_the_users_own(own_folders: Path) -> None:
    config = own_folders / "laya.yaml"
    config.write_text("server: {keys_file: /etc/laya/keys.json}")
    assert state.keys_file("x.json", str(config)) == Path("x.json")
    assert state.keys_file(None, str(config)) == Path("/etc/laya/keys.json")
    assert state.keys_file(None, None) == own_folders / "config" / "laya" / "keys.json"
    config.write_text("server: {port: 1}")
    with pytest.raises(ConfigError, match="keys_file"):
        state.keys_file(None, str(config))
