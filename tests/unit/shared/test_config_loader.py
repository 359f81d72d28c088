"""The configuration file, the environment over it, flags over that, and messages that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.config import Config, ConfigError, load, redact_url, to_yaml

WORKSTATION = """
server: {host: 0.0.0.0, port: 8000, log_level: info}
router: {mode: memory, cache_size: 4096, timeout_ms: 50}
inference: {engine: auto, model: /models/q, max_seq_len: 4096, gpu_memory_utilization: 0.85}
"""
BARE = "max_seq_len: 4096\nmax_num_seqs: 1\nenable_streaming: true\nquantization: awq\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "laya.yaml"
    path.write_text(text)
    return path


def test_defaults_are_loopback_and_need_no_file() -> None:
    config = load(None, environ={})
    assert config.server.host == "127.0.0.1"
    assert config.server.insecure is False


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    path = write(tmp_path, WORKSTATION)
    environ = {"LAYA_ROUTER__TIMEOUT_MS": "75", "LAYA_SERVER__PORT": "9000", "HOME": "/"}
    config = load(path, environ=environ, overrides={"server.port": 9100, "server.host": None})
    assert config.router.timeout_ms == 75
    assert config.server.port == 9100
    assert config.server.host == "0.0.0.0"


def test_bare_keys_belong_to_inference(tmp_path: Path) -> None:
    inference = load(write(tmp_path, BARE), environ={}).inference
    assert (inference.max_seq_len, inference.max_num_seqs, inference.quantization) == (4096, 1, "awq")


def test_a_key_both_bare_and_in_its_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_seq_len stands both"):
        load(write(tmp_path, BARE + "inference: {max_seq_len: 1}\n"), environ={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {prot: 1}", r"server\.prot: unknown key; did you mean 'port'"),
        ("server: {port: x}", r"server\.port: expected `int`, got `str` \(it is 'x'\)"),
        ("server: {port: 70000}", r"server\.port: must be 0 to 65535"),
        ("router: {mode: fast}", r"router\.mode: invalid enum value 'fast'"),
        ("inference: {sim: {kv_tokns: 1}}", r"inference\.sim\.kv_tokns: unknown key; did you mean 'kv_tokens'"),
        ("inference: {max_seq_len: -1}", r"inference\.max_seq_len: must be 0"),
        ("router: {nodes: [nowhere]}", r"router\.nodes\[0\]: must be host:port"),
        ("serve: {port: 1}", r"unknown key 'serve'; did you mean 'server'"),
        ("[1, 2]", "must hold keys and values"),
        ("server: 5", "server must hold keys and values"),
        ("server: {port: [", r"line \d: not valid YAML"),
    ],
)
def test_a_bad_file_gets_one_sentence_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(write(tmp_path, text), environ={})
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load(tmp_path / "none.yaml", environ={})


def test_an_unknown_environment_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.prot: unknown key"):
        load(None, environ={"LAYA_SERVER__PROT": "1"})
    with pytest.raises(ConfigError, match="no such section"):
        load(None, environ={"LAYA_SERVE__PORT": "1"})


def test_a_token_of_digits_stays_text() -> None:
    config = load(None, environ={"LAYA_SERVER__CLUSTER_TOKEN": "0123", "LAYA_ROUTER__NODES": "[a:1, b:2]"})
    assert config.server.cluster_token == "0123"
    assert config.router.nodes == ["a:1", "b:2"]


def test_no_secret_is_ever_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "server: {cluster_token: 8675309}"), environ={})
    assert "8675309" not in str(caught.value)
    environ = {"LAYA_SERVER__CLUSTER_TOKEN": "hush", "LAYA_SERVER__REDIS": "redis://u:pass@h:1/0"}
    text = to_yaml(load(None, environ=environ))
    assert "hush" not in text
    assert "pass" not in text


def test_redacted_urls_keep_everything_but_the_password() -> None:
    assert redact_url("redis://u:p@h:1/0") == "redis://u:***@h:1/0"
    assert redact_url("redis://h:1/0") == "redis://h:1/0"


def test_written_out_configuration_reads_back(tmp_path: Path) -> None:
    assert load(write(tmp_path, to_yaml(Config())), environ={}) == Config()


def test_a_secret_is_read_from_the_file_that_the_environment_names(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("0123456789\n")
    config = load(None, environ={"LAYA_SERVER__CLUSTER_TOKEN_FILE": str(secret)})
    assert config.server.cluster_token == "0123456789"


def test_a_key_that_ends_with_file_is_still_that_key() -> None:
    environ = {"LAYA_SERVER__KEYS_FILE": "/keys.json", "LAYA_SERVER__TLS__CA_FILE": "/ca.pem"}
    server = load(None, environ=environ).server
    assert (server.keys_file, server.tls.ca_file) == ("/keys.json", "/ca.pem")


@pytest.mark.parametrize(
    ("content", "more", "why"),
    [
        (None, {}, "cannot be read (No such file or directory)"),
        ("", {}, "must hold one line of text"),
        ("one\ntwo\n", {}, "must hold one line of text"),
        ("one", {"LAYA_SERVER__CLUSTER_TOKEN": "two"}, "both are set; keep one"),
    ],
)
def test_a_secret_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, more: dict[str, str], why: str
) -> None:
    secret = tmp_path / "token"
    if content is not None:
        secret.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(None, environ={"LAYA_SERVER__CLUSTER_TOKEN_FILE": str(secret), **more})
    assert "LAYA_SERVER__CLUSTER_TOKEN_FILE" in str(caught.value)
    assert why in str(caught.value)


def test_the_token_for_consul_is_not_shown() -> None:
    overrides = {"server.consul.address": "http://127.0.0.1:8500", "server.consul.token": "s3cret"}
    text = to_yaml(load(None, environ={}, overrides=overrides))
    assert "s3cret" not in text and "http://127.0.0.1:8500" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.consul.address", "127.0.0.1:8500"),
        ("server.consul.wait", 0),
        ("router.routes.watch", True),
        ("router.routes.reconcile_interval", 0),
        ("router.dns", [{"name": "", "port": 1}]),
        ("router.dns", [{"name": "x", "port": 70000}]),
    ],
)
def test_settings_of_routes_and_discovery_must_make_sense(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key.rpartition(".")[0] if key != "router.dns" else "router.dns"):
        load(None, environ={}, overrides={key: value})
