"""Settings of the data plane come from the configuration; what must not pass to nodes cannot be let through."""

from __future__ import annotations

import pytest

from router_node.relay.settings import RelaySettings
from shared.config.schema import Config, ConfigError, RouterConfig, ServerConfig


def test_settings_follow_the_configuration():
    config = Config(
        server=ServerConfig(cluster_token="t", max_body_bytes=2048),
        router=RouterConfig(max_n=3, timeout_ms=500, forward_metadata=["X-Team"], cors_origins=["https://a.example"]),
    )
    settings = RelaySettings.from_config(config)
    assert settings.cluster_token == b"t"
    assert settings.max_n == 3
    assert settings.max_body_bytes == 2048
    assert settings.forward_metadata == {b"x-team"}
    assert settings.cors_origins == {b"https://a.example"}


@pytest.mark.parametrize(
    ("cpus", "workers", "awake"), [(2.0, 1, True), (1.5, 1, False), (2.0, 2, False), (3.0, 2, True)]
)
def test_a_worker_stays_awake_only_where_a_processor_is_left_for_others(monkeypatch, cpus, workers, awake):
    monkeypatch.setattr("router_node.relay.settings.usable_cpus", lambda: cpus)
    settings = RelaySettings.from_config(Config(router=RouterConfig(workers=workers, busy_poll_us=150)))
    assert settings.busy_poll == (pytest.approx(150e-6) if awake else 0)
    assert not RelaySettings.from_config(Config(router=RouterConfig(busy_poll_us=0))).busy_poll


@pytest.mark.parametrize(
    "name", ["authorization", "Cookie", ":path", "laya-tenant", "grpc-status", "laya-model", "", "x-api-key"]
)
def test_credentials_and_reserved_names_are_refused(name):
    with pytest.raises(ConfigError, match=r"router\.forward_metadata"):
        RelaySettings.from_config(Config(router=RouterConfig(forward_metadata=[name])))
