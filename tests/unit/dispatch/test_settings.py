"""Settings of dispatch."""

from __future__ import annotations

import math
from typing import Any

import pytest

from router_node.dispatch import DispatchSettings
from shared.config.schema import RouterConfig


def test_settings_come_from_the_router_section() -> None:
    router = RouterConfig(cache_size=99, timeout_ms=2500, max_queued=7, require_session_affinity=True)
    settings = DispatchSettings.from_config(router)
    assert (settings.cache_size, settings.timeout, settings.max_queued) == (99, 2.5, 7)
    assert settings.require_session_affinity


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache_size": 1},
        {"timeout": 0.0},
        {"timeout": math.inf},
        {"max_queued": -1},
        {"draws": 0},
        {"ageing": 0.0},
        {"pace": -1.0},
        {"max_backlog": 0.0},
        {"tenant_weights": {"a": 0.0}},
        {"tenant_weights": {"a": math.nan}},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DispatchSettings(**wrong)
