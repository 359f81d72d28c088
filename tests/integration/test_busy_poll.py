"""A router stays awake between requests that come one after another, and goes to sleep when they stop."""

from __future__ import annotations

import http.client
import time
import urllib.request

import pytest

from shared.cpus import usable_cpus
from tests.support.processes import Proc

pytestmark = pytest.mark.integration

WINDOW = 10_000  # microseconds: a request of a slow machine still comes within it


def turns(router: Proc) -> float:
    with urllib.request.urlopen(f"http://{router.ready['admin']}/metrics", timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("laya_router_busy_poll_turns_total "):
                return float(line.split()[1])
    raise AssertionError("the page has no such counter")


def ask(router: Proc, times: int) -> None:
    """Requests that are answered at once: nobody has that model."""
    connection = http.client.HTTPConnection(router.ready["address"], timeout=10)
    try:
        for _ in range(times):
            connection.request("POST", "/v1/completions", '{"model": "none", "prompt": "x"}')
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (404, 503)
    finally:
        connection.close()


@pytest.mark.parametrize("window", [WINDOW, 0])
def test_it_is_awake_between_requests_and_asleep_after_them(window: int) -> None:
    env = {"LAYA_ROUTER__BUSY_POLL_US": str(window)}
    router = Proc("router", ["router_node.main", "--port", "0", "--admin-port", "0"], env)
    try:
        assert turns(router) == 0
        ask(router, 400)
        if not window or usable_cpus() < 2:
            assert turns(router) == 0
            return
        assert turns(router) > 100
        deadline = time.monotonic() + 20
        while True:  # looking is no request: once the window has passed nothing keeps it awake
            before = turns(router)
            time.sleep(0.05)
            if turns(router) == before:
                break
            assert time.monotonic() < deadline, "it does not go to sleep"
    finally:
        assert router.stop() == 0
