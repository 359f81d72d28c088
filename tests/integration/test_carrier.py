"""The process that makes a load test's gRPC calls: it can be cancelled, it can die, and it is started again."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator

import gevent
import pytest

from loadtest.users import carrier as module
from loadtest.users.call import Call
from loadtest.users.carrier import Carrier
from tests.support.ports import free_port

CALL = Call(name="c", messages=(("user", "x"),), timeout=30.0)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def make() -> Iterator[Callable[[str], Carrier]]:
    made: list[Carrier] = []

    def one(url: str) -> Carrier:
        made.append(Carrier(url, "m"))
        return made[-1]

    yield one
    for each in made:
        each.close()


def asking(carrier: Carrier) -> gevent.Greenlet:
    """A call that waits in the process."""
    task = gevent.spawn(carrier.ask, CALL)
    with gevent.Timeout(20):
        while not carrier.pid:
            gevent.sleep(0.01)
    return task


def test_nobody_there_is_an_outcome(make: Callable[[str], Carrier]) -> None:
    carrier = make(f"http://127.0.0.1:{free_port()}")
    outs = [carrier.ask(CALL) for _ in range(2)]
    assert [out.reason for out in outs] == ["UNREACHABLE"] * 2 and outs[0].total > 0
    assert carrier.starts == 1


def test_a_process_that_dies_fails_its_calls_and_is_started_again(
    make: Callable[[str], Carrier], silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STARTS", 2)
    carrier = make(silent)
    pids = []
    for _ in range(2):
        task = asking(carrier)
        gevent.sleep(0.01)  # to its first wait
        pids.append(carrier.pid)
        os.kill(carrier.pid, signal.SIGKILL)
        assert task.get(timeout=20).reason == "CARRIER_LOST"
    assert pids[0] != pids[1] and carrier.starts == 2
    assert "ended 2 times" in carrier.ask(CALL).detail


def test_it_ends_with_the_one_who_started_it(make: Callable[[str], Carrier], silent: str) -> None:
    carrier = make(silent)
    task = asking(carrier)
    process = carrier._process
    task.kill()
    carrier.close()
    assert process is not None and process.returncode == 0
    assert carrier.ask(CALL).reason == "CARRIER_LOST"
