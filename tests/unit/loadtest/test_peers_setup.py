"""What is known of the peers on a machine: their versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest import peers_setup
from loadtest.peers_setup import version, versions


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_package_has_the_version_that_is_installed_in_its_own_environment(home: Path) -> None:
    found = home / "laya" / "peers" / "litellm" / "lib" / "python3.11" / "site-packages" / "litellm-9.8.7.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: litellm\nVersion: 9.8.7\n")
    assert version("litellm") == "9.8.7"


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("nginx version: nginx/1.22.1 >&2", "1.22.1"),
        ("HAProxy version 2.6.12-1 2026/10/17", "2.6.12-1"),
        ("", "unknown"),
    ],
)
def test_a_program_is_asked_for_its_version(said: str, known: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = home / "wrk"
    program.write_text(f"#!/bin/sh\necho {said}\n")
    program.chmod(0o755)
    monkeypatch.setattr(peers_setup, "find", lambda _: str(program))
    assert version("wrk") == known


def test_policies_of_one_router_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_setup, "version", lambda name: f"{name}-1")
    assert versions(["vllm-router", "vllm-router/rr"]) == {"vllm-router": "vllm-router-1"}
    monkeypatch.undo()
    assert version("no-such-peer") == "unknown"
