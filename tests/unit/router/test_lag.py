"""A loop that was blocked shows it."""

from __future__ import annotations

import time

import pytest

from router_node.admin import lag
from router_node.admin.lag import LoopLag
from tests.support.ports import until


async def test_a_blocked_loop_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_EVERY", 0.01)
    probe = LoopLag()
    probe.start()
    try:
        await until(lambda: probe.worst > 0, "a first look")
        time.sleep(0.2)  # noqa: ASYNC251 - blocking the loop is the point
        await until(lambda: probe.worst > 0.15, "the delay is seen")
    finally:
        await probe.close()


async def test_a_delay_is_forgotten_after_two_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_EVERY", 0.01)
    monkeypatch.setattr(lag, "_WINDOW", 0.1)
    probe = LoopLag()
    probe.start()
    try:
        await until(lambda: probe.worst > 0, "a first look")
        time.sleep(0.3)  # noqa: ASYNC251 - blocking the loop is the point
        await until(lambda: probe.worst > 0.2, "the delay is seen")
        await until(lambda: probe.worst < 0.2, "the delay is forgotten")
    finally:
        await probe.close()
