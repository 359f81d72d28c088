"""What the router refuses to serve with, and what it says then."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_node.config import check, parse
from router_node.middleware.keys import KeyStore
from shared.config import ConfigError, load


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("LAYA_"):
            monkeypatch.delenv(name)


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(list(argv))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_defaults_are_loopback_and_open() -> None:
    options = parse([])
    assert options.config.server.host == "127.0.0.1"
    assert options.keys is None and options.warnings == []


def test_flags_stand_over_the_environment_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "laya.yaml"
    file.write_text("server: {port: 1, host: 127.0.0.2, cluster: a}\nrouter: {admin_port: 2}\n")
    monkeypatch.setenv("LAYA_SERVER__PORT", "3")
    monkeypatch.setenv("LAYA_SERVER__CLUSTER", "b")
    config = parse(["--config", str(file), "--port", "5", "--node", "127.0.0.1:7", "--node", "[::1]:8"]).config
    assert (config.server.port, config.server.cluster, config.server.host) == (5, "b", "127.0.0.2")
    assert config.router.admin_port == 2 and config.router.nodes == ["127.0.0.1:7", "[::1]:8"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "router.example"])
def test_a_wide_bind_without_keys_is_refused(host: str) -> None:
    text = refusal("--host", host)
    assert "server.host" in text and "laya keys add" in text and "--insecure" in text


def test_a_wide_bind_without_keys_that_was_asked_for_warns() -> None:
    (warning,) = parse(["--host", "0.0.0.0", "--insecure"]).warnings
    assert "server.host" in warning and "API keys" in warning


def test_a_wide_bind_with_keys_is_served_without_a_word(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.json")
    store.add("acme")
    options = parse(["--host", "0.0.0.0", "--keys-file", str(store.path)])
    assert options.warnings == [] and options.keys is not None and len(options.keys) == 1


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    text = refusal("--keys-file", str(tmp_path / "none.json"))
    assert "server.keys_file" in text and "none.json" in text and "laya keys add" in text


def test_admin_beyond_loopback_wants_a_cluster_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "server.cluster_token" in refusal("--admin-host", "0.0.0.0")
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", "a-long-secret")
    assert parse(["--admin-host", "0.0.0.0"]).warnings == []


def test_far_nodes_want_a_cluster_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "router.nodes" in refusal("--node", "10.0.0.1:9000")
    assert parse(["--node", "10.0.0.1:9000", "--insecure"]).warnings
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", "a-long-secret")
    assert parse(["--node", "10.0.0.1:9000"]).warnings == []


@pytest.mark.parametrize("url", ["http://x", "redis://", "localhost:6379", "unix://", "redis://h:port"])
def test_a_store_url_that_is_none_is_refused(url: str) -> None:
    assert "server.redis" in refusal("--redis", url)


def test_a_refused_store_url_keeps_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hunter2" not in refusal("--redis", "http://:hunter2@host:6379")


@pytest.mark.parametrize("token", ["with space", "tüken", "x" * 2000])
def test_a_token_that_cannot_be_a_header_is_refused_unseen(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", token)
    text = refusal()
    assert "server.cluster_token" in text and token not in text


def test_a_closed_ready_fd_is_refused() -> None:
    assert "--ready-fd" in refusal("--ready-fd", "987")


def test_an_unknown_flag_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--prot", "1"])
    assert caught.value.code == 2
    assert "--prot" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "warned"), [("memory", False), ("hybrid", True), ("persistent", True)])
def test_a_mode_that_needs_a_store_is_warned_about_without_one(mode: str, warned: bool) -> None:
    config = load(None, environ={}, overrides={"router.mode": mode})
    assert any("router.mode" in warning for warning in check(config)) is warned
