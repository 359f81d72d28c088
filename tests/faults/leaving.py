"""Leaving in order, under load: nodes that drain with their streams moved, routers that replace themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.faults.site import ADMIN_PORT, Member, Site
from tests.support.processes import ROOT, children

_LIMIT: Final = 20.0  # seconds for a successor to serve, or to wait, on a busy machine
_STAY: Final = 1.0  # seconds that a drained node stays so
_POLL: Final = 0.005
_LOOK: Final = 0.1


async def drain(site: Site) -> None:
    """The last node's streams go on elsewhere; then it takes requests again."""
    name = site.nodes[-1].name
    try:
        await _drain(site, name, "--migrate")
        await asyncio.sleep(_STAY)
    finally:
        await _drain(site, name, "--undo")


async def _drain(site: Site, name: str, flag: str) -> None:
    """By whichever router does it. Raises AssertionError when none does."""
    said = ""
    for router in site.routers:
        argv = [*router.host.prefix, sys.executable, "-m", "shared.cli.main", "drain", name, flag]
        argv += ["--admin", f"127.0.0.1:{ADMIN_PORT}"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = await asyncio.to_thread(
                subprocess.run, argv, cwd=ROOT, capture_output=True, timeout=10, stdin=subprocess.DEVNULL
            )
            if done.returncode == 0:
                return
            said = done.stderr.decode("utf-8", "replace")
    raise AssertionError(f"{name}: no router could `laya drain {flag}` it: {said}")


async def replace(site: Site) -> None:
    """The first router is followed by another process, which serves on."""
    await asyncio.to_thread(_replaced, site.routers[0])


def _replaced(router: Member) -> None:
    assert router.proc is not None and router.runs, f"{router.name} does not run"
    router.replacing = True  # and is healed, if what else is broken keeps its successor from serving now
    before = router.proc.replace(_LIMIT)
    router.replacing = False
    code = before.wait(30)
    assert code == 0, f"{router.name}, replaced, ended with {code}\n{router.tail()}"


async def replace_without_store(site: Site) -> None:
    """A successor that cannot learn of any node: it has to wait, and the process before goes on."""
    router = site.routers[0]
    for server in site.store.servers:
        await asyncio.to_thread(router.host.cut, server.host.address)
    before = _waits(router)
    router.replacing = True
    router.signal(signal.SIGUSR2)
    await asyncio.to_thread(_waits_now, router, before)


def _waits(router: Member) -> int:
    """How often successors of a router have said that they wait."""
    return Path(router.logs[-1]).read_text("utf-8", "replace").count("successor_waits")


def _waits_now(router: Member, before: int) -> None:
    deadline = time.monotonic() + _LIMIT
    while _waits(router) == before:
        assert time.monotonic() < deadline, f"the successor of {router.name} does not wait\n{router.tail()}"
        time.sleep(_LOOK)


async def kill_successors(site: Site) -> None:
    """Successors of the first router die while they start."""
    router = site.routers[0]
    assert router.runs, f"{router.name} does not run"
    for late in (0.0, 0.15, 0.3):
        router.signal(signal.SIGUSR2)
        found = await asyncio.to_thread(_successor, router)
        await asyncio.sleep(late)
        with contextlib.suppress(ProcessLookupError):
            os.kill(found, signal.SIGKILL)
        await asyncio.to_thread(_gone, router)


def _pid(router: Member) -> int:
    assert router.proc is not None
    return router.proc.popen.pid


def _successor(router: Member) -> int:
    deadline = time.monotonic() + 5
    while not (found := children(_pid(router))):
        assert time.monotonic() < deadline, f"{router.name} starts no successor\n{router.tail()}"
        time.sleep(_POLL)
    return found[0]


def _gone(router: Member) -> None:
    deadline = time.monotonic() + 5
    while children(_pid(router)):
        assert time.monotonic() < deadline, f"{router.name} keeps a dead successor\n{router.tail()}"
        time.sleep(_POLL)
