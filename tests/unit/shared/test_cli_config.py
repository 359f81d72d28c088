"""``laya config check`` says what is wrong, warns of what would be, and shows no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shared.cli.config import command
from shared.config import ConfigError

WORKSTATION = """
server: {host: 0.0.0.0, port: 8000, log_level: info}
router: {mode: memory, cache_size: 4096, timeout_ms: 50}
inference: {engine: auto, model: /models/qwen-q3-27b-awq, max_seq_len: 4096, gpu_memory_utilization: 0.85}
"""
SMALL_CARD = """
inference: {engine: nano-vllm, model: /models/q, max_seq_len: 2048, max_num_seqs: 2, enforce_eager: true, swap_space: 1}
"""
BARE = "max_seq_len: 4096\nmax_num_seqs: 1\nenable_streaming: true\nquantization: awq\n"


def check(tmp_path: Path, text: str, *args: str) -> Result:
    path = tmp_path / "laya.yaml"
    path.write_text(text)
    return CliRunner().invoke(command, ["check", str(path), *args])


@pytest.mark.parametrize("text", [WORKSTATION, SMALL_CARD, BARE])
def test_the_files_people_have_are_good(tmp_path: Path, text: str) -> None:
    done = check(tmp_path, text)
    assert done.exit_code == 0
    assert done.stdout.rstrip().endswith("laya.yaml: good")


def test_swap_space_warns_that_it_does_nothing(tmp_path: Path) -> None:
    [warning] = json.loads(check(tmp_path, SMALL_CARD, "--json").stdout)["warnings"]
    assert "inference.swap_space does nothing" in warning


def test_a_wide_bind_without_keys_is_warned_about(tmp_path: Path) -> None:
    warnings = json.loads(check(tmp_path, WORKSTATION, "--json").stdout)["warnings"]
    assert any("no API keys" in w for w in warnings)


def test_a_bad_value_is_refused_with_its_key(tmp_path: Path) -> None:
    done = check(tmp_path, "router: {workers: 0}")
    assert isinstance(done.exception, ConfigError)
    assert "router.workers" in str(done.exception)


def test_show_leaves_secrets_out(tmp_path: Path) -> None:
    path = tmp_path / "laya.yaml"
    path.write_text("server: {cluster_token: hush-hush}")
    shown = CliRunner().invoke(command, ["show", str(path)]).stdout
    assert "hush" not in shown
    assert "cluster_token" in shown
