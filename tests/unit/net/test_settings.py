"""Settings refuse sums that could deadlock, and follow the configuration."""

from __future__ import annotations

import pytest

from shared.config.schema import RouterConfig, ServerConfig
from shared.net.settings import NetSettings


def test_the_connection_window_holds_twice_what_stalled_streams_may_hold():
    settings = NetSettings()
    assert settings.connection_window >= 2 * (settings.max_streams + settings.stream_slack) * settings.stream_window
    with pytest.raises(ValueError, match="connection_window"):
        NetSettings(connection_window=settings.max_streams * settings.stream_window)


def test_a_window_beyond_what_http2_can_say_is_refused():
    with pytest.raises(ValueError, match="2 GiB"):
        NetSettings(connection_window=1 << 31)


def test_the_engine_tolerates_more_streams_than_a_peer_is_told():
    assert NetSettings().stream_slack >= 2
    with pytest.raises(ValueError, match="stream_slack"):
        NetSettings(stream_slack=1)


def test_connections_stay_within_their_maximum():
    with pytest.raises(ValueError, match="max_connections"):
        NetSettings(connections=9, max_connections=8)


def test_they_come_from_the_configuration():
    server = ServerConfig(keepalive_time=3.0, max_streams_per_connection=5000, max_connections=7, header_timeout=2.0)
    router = RouterConfig(connect_timeout=1.5, connections_per_node=2, max_connections_per_node=5)
    settings = NetSettings.from_config(server, router)
    assert settings.keepalive_time == 3.0
    assert settings.max_streams == 5000
    assert settings.connection_window >= 2 * 5000 * settings.stream_window
    assert settings.max_connections_served == 7
    assert settings.header_timeout == 2.0
    assert (settings.connect_timeout, settings.connections, settings.max_connections) == (1.5, 2, 5)
    assert NetSettings.from_config(server).connections == NetSettings().connections
