"""Hosts on one machine: network namespaces on a bridge, which the tests reach from the machine's own namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

_NET = "10.214.7"


def _ip(*args: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False, timeout=20)
    if check and done.returncode != 0:
        raise AssertionError(f"ip {' '.join(args)}: {done.stderr}")
    return done.stdout


class Host:
    """One namespace with an address; ``number`` is unique on this machine."""

    def __init__(self, number: int, bridge: str) -> None:
        self.namespace = f"laya-t{os.getpid() % 10_000}-{number}"
        self.address = f"{_NET}.{number}"
        self._link = f"lv{os.getpid() % 10_000}-{number}"
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("link", "set", self._link, "master", bridge, "up")
        for args in (("addr", "add", f"{self.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            _ip("-n", self.namespace, *args)
        _ip("-n", self.namespace, "link", "set", "lo", "up")

    def unplug(self) -> None:
        """Cut it off: nothing in, nothing out, nobody told."""
        _ip("link", "set", self._link, "down")

    def plug(self) -> None:
        """Connect it again."""
        _ip("link", "set", self._link, "up")

    def close(self) -> None:
        """End what still runs in it, and take it away."""
        for pid in _ip("netns", "pids", self.namespace, check=False).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "del", self.namespace, check=False)
        _ip("link", "del", self._link, check=False)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts that reach each other."""
    bridge = f"lb{os.getpid() % 10_000}"
    made: list[Host] = []
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{_NET}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for i in range(count):
            made.append(Host(11 + i, bridge))
        yield made
    finally:
        for host in made:
            host.close()
        _ip("link", "del", bridge, check=False)
