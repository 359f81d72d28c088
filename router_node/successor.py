"""A router that replaces itself: SIGUSR2 starts another one on the same sockets; once that serves, this one leaves.

Both hold the same listening sockets for a moment, so that no connection meets a closed port, nor is one lost that
nobody has accepted yet. The new process is started from the same command line: it reads its files, and its code, anew.
One that does not come to serve, or that meets no node where this one has some, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

from router_node.signals import StopSignals, first
from shared import logging as logs
from shared.notify import notify

log = logs.get("router.successor")

KEPT: Final = "LAYA_KEPT_BY"  # names who starts the router again when its process ends
START_LIMIT: Final = 60.0  # seconds for a successor to serve
_VARIABLE: Final = "LAYA_SUCCEEDS"
_CONTAINER_INITS: Final = frozenset(("catatonit", "docker-init", "dumb-init", "tini"))
_END_LIMIT: Final = 5.0  # seconds for one that is not wanted to be gone
_LOOK: Final = 0.05  # seconds between two looks at whether nodes are ready


class Inherited(NamedTuple):
    """What the process before has left to this one. ``ready_fd`` is where it waits, -1 where there was none.

    ``able`` is its number where it had a node to send requests to, else 0.
    """

    public: Sequence[socket.socket] = ()
    admin: Sequence[socket.socket] = ()
    ready_fd: int = -1
    able: int = 0


def inherited(environ: MutableMapping[str, str] | None = None) -> Inherited:
    """Take over what is left to us; a second call finds nothing."""
    left = (os.environ if environ is None else environ).pop(_VARIABLE, "")
    numbers: dict[str, list[int]] = {}
    for word in left.split():
        name, _, number = word.partition(":")
        numbers.setdefault(name, []).append(int(number))
    able = numbers.pop("able", [0])[0]
    for some in numbers.values():
        for one in some:
            os.set_inheritable(one, False)
    public, admin = ([socket.socket(fileno=number) for number in numbers.get(name, ())] for name in ("public", "admin"))
    return Inherited(public, admin, numbers.get("ready", [-1])[0], able)


async def as_able(before: int, not_ready: Callable[[], str], stop: asyncio.Event) -> bool:
    """Before this process accepts anything: wait until it has a node too. False when it is to end instead.

    The wait is over where the process ``before`` (0: there was none, or it had no node either) is gone: then nobody
    else answers. That one ends it when it takes too long.
    """
    told = False
    while not stop.is_set():
        why = not_ready()
        if not why or os.getppid() != before:
            return True
        if not told:
            told = True
            logs.event(log, logging.WARNING, "successor_waits", why=why)
        await asyncio.sleep(_LOOK)
    return False


class Listening(NamedTuple):
    """The sockets of a running router, and whether it has a node to send requests to."""

    public: Sequence[socket.socket]
    admin: Sequence[socket.socket]
    able: bool = False


async def until_over(signals: StopSignals, listening: Callable[[], Listening]) -> bool:
    """Wait until an end is asked for, or a successor serves. True for the latter."""
    while not signals.stop.is_set():
        await first(signals.stop, signals.replace)
        if signals.replace.is_set():
            signals.replace.clear()
            why = refusal(os.environ, os.getpid(), _parent())
            if why:
                logs.event(log, logging.ERROR, "successor_refused", why=why)
            elif await succeeded(signals.stop, listening()):
                return True
    return False


def refusal(environ: Mapping[str, str], pid: int, first_parent: str) -> str:
    """Why this process cannot be replaced by another one, in one sentence, or "".

    ``first_parent`` is the name of process 1 where that has started this one, else "".
    """
    if environ.get(KEPT):
        return f"the process is kept by {environ[KEPT]}, which would start a third one; restart it there"
    if pid == 1 or first_parent in _CONTAINER_INITS:
        return "the container ends with its first process; replace the container, one beside the other"
    if first_parent == "systemd" and environ.get("INVOCATION_ID") and not environ.get("NOTIFY_SOCKET"):
        return "systemd would end the service with this process; give the unit Type=notify"
    return ""


def _parent() -> str:
    """The name of process 1 where it is our parent, else ""."""
    if os.getppid() != 1:
        return ""
    try:
        with open("/proc/1/comm", encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


async def succeeded(stop: asyncio.Event, listening: Listening) -> bool:
    """Start a successor; whether it serves."""
    try:
        says, child = _started(listening)
    except OSError as error:
        logs.event(log, logging.ERROR, "successor_failed", why=str(error))
        return False
    logs.event(log, logging.INFO, "successor_starting", pid=child.pid)
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    try:
        await _heard(says, heard, stop)
    finally:
        os.close(says)
    if heard.done() and heard.result() and child.poll() is None:
        notify(f"MAINPID={child.pid}")  # before this process ends, which systemd takes for the service's end
        logs.event(log, logging.INFO, "router_replaced", pid=child.pid)
        child.returncode = 0  # it outlives us: nobody here is to wait for it
        return True
    await asyncio.to_thread(_end, child)
    logs.event(log, logging.ERROR, "successor_failed", pid=child.pid, code=child.returncode)
    return False


async def _heard(fd: int, heard: asyncio.Future[bytes], stop: asyncio.Event) -> None:
    """Set ``heard`` to what the successor says, or to nothing when it ends; left alone when it takes too long."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not heard.done():
            heard.set_result(os.read(fd, 1 << 16))

    loop.add_reader(fd, read)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((heard, stopped), timeout=START_LIMIT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(fd)
        stopped.cancel()


def _started(listening: Listening) -> tuple[int, subprocess.Popen[bytes]]:
    """Where it is heard, and it. Raises OSError."""
    says, tells = os.pipe()
    try:
        return says, _start(listening, tells)
    except OSError:
        os.close(says)
        raise
    finally:
        os.close(tells)


def _start(listening: Listening, tells: int) -> subprocess.Popen[bytes]:
    words = [f"ready:{tells}"]
    words += [f"public:{sock.fileno()}" for sock in listening.public]
    words += [f"admin:{sock.fileno()}" for sock in listening.admin]
    passed = [int(word.partition(":")[2]) for word in words]
    if listening.able:
        words.append(f"able:{os.getpid()}")
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, _VARIABLE: " ".join(words)},
        stdin=subprocess.DEVNULL,
        pass_fds=passed,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_END_LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
