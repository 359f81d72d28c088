"""What one process leaves to the next, and when there is no next one."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import pytest

from router_node import successor
from router_node.config import parse
from router_node.signals import StopSignals
from router_node.successor import Inherited, Listening, as_able, inherited, until_over
from tests.support.ports import until


def test_nothing_is_inherited_by_a_router_that_succeeds_none() -> None:
    left = inherited({})
    assert (list(left.public), list(left.admin), left.ready_fd) == ([], [], -1)


def test_sockets_and_pipe_are_taken_once_and_not_passed_on() -> None:
    with socket.socket() as public, socket.socket() as admin:
        read, write = os.pipe()
        environ = {"LAYA_SUCCEEDS": f"ready:{write} public:{public.detach()} admin:{admin.detach()} able:9999"}
        left = inherited(environ)
        assert environ == {} and left.able == 9999
        assert [sock.family for sock in (*left.public, *left.admin)] == [socket.AF_INET] * 2
        assert left.ready_fd == write
        assert not any(sock.get_inheritable() for sock in (*left.public, *left.admin))
        assert not os.get_inheritable(write)
        for sock in (*left.public, *left.admin):
            sock.close()
        os.close(read)
        os.close(write)


def test_the_pipe_of_the_process_before_stands_over_its_flag() -> None:
    assert parse(["--ready-fd", "9999"], Inherited((), (), 7)).ready_fd == 7


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch):
    """Has a small program stand in for the router that is started."""

    def set_program(text: str) -> None:
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", text])

    return set_program


SERVES = """
import os
fd = int(os.environ["LAYA_SUCCEEDS"].split()[0].split(":")[1])
os.write(fd, b"ready\\n")
"""


async def replaced() -> bool:
    with socket.socket() as sock:
        return await successor.succeeded(asyncio.Event(), Listening([sock], []))


async def test_an_end_that_was_asked_for_is_not_put_off() -> None:
    signals = StopSignals(asyncio.get_running_loop())
    signals.stop.set()
    signals.replace.set()
    assert not await until_over(signals, lambda: Listening([], []))


async def test_a_successor_that_serves_is_the_end_of_the_wait(stand_in) -> None:
    stand_in(SERVES)
    assert await replaced()


@pytest.mark.parametrize("text", ["raise SystemExit(2)", "import time; time.sleep(60)"])
async def test_one_that_ends_or_says_nothing_changes_nothing(
    stand_in, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(successor, "START_LIMIT", 0.5)
    stand_in(text)
    assert not await replaced()


async def test_where_not_even_a_pipe_can_be_had_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", no_descriptor)
    assert not await replaced()


async def test_a_program_that_is_gone_changes_nothing_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = len(os.listdir("/proc/self/fd"))
    assert not await replaced()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_one_that_succeeds_an_able_process_waits_for_a_node() -> None:
    why = ["no node is ready"]
    waiting = asyncio.ensure_future(as_able(os.getppid(), lambda: why[0], asyncio.Event()))
    assert (await asyncio.wait((waiting,), timeout=0.2))[1]
    why[0] = ""
    assert await waiting


async def test_nobody_waits_for_nodes_where_none_answers_meanwhile() -> None:
    stop = asyncio.Event()
    assert await as_able(0, lambda: "no node is ready", stop)
    assert await as_able(os.getpid(), lambda: "no node is ready", stop), "the process before is not our parent any more"


async def test_one_that_waits_for_nodes_can_be_ended() -> None:
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(as_able(os.getppid(), lambda: "no node is ready", stop))
    stop.set()
    await until(waiting.done, "it ends")
    assert not waiting.result()


SERVICE = {"INVOCATION_ID": "1"}


@pytest.mark.parametrize(
    ("environ", "pid", "first", "why"),
    [
        ({"LAYA_KEPT_BY": "laya up"}, 5, "", "laya up"),
        ({}, 1, "", "container"),
        ({}, 5, "tini", "container"),
        (SERVICE, 5, "systemd", "Type=notify"),
        ({**SERVICE, "NOTIFY_SOCKET": "/run/n"}, 5, "systemd", ""),
        (SERVICE, 5, "", ""),
        ({}, 5, "systemd", ""),
        ({}, 5, "", ""),
    ],
)
def test_who_would_be_started_again_or_end_with_its_first_process_is_not_replaced(
    environ: dict[str, str], pid: int, first: str, why: str
) -> None:
    said = successor.refusal(environ, pid, first)
    assert why in said and bool(said) == bool(why)
