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
    "name", ["authorization", "Cookie", ":path", "laya-tenant", "grpc-status", "laya-model", "", "x-api-key"]
)
def test_credentials_and_reserved_names_are_refused(name):
    with pytest.raises(ConfigError, match=r"router\.forward_metadata"):
        RelaySettings.from_config(Config(router=RouterConfig(forward_metadata=[name])))
