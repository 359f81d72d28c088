"""Hosts for faults: network namespaces on a bridge of their own, whose links can be cut, thinned and reset.

Everything made here has a name that begins with ``lf`` and the process's number, and is taken down again by ``close``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Final, TypeVar

_CLONE_NEWNET: Final = 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def possible() -> str:
    """Why namespaces cannot be used here, in one sentence, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Network() as network:
            host = network.host("a")
            host.rule("-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP")
            host.rule("-A", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces, bridges or iptables do not work here ({_said(error)})"
    return ""


def _said(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()[-1:][0] if error.stderr else "?"
    return str(error)


def run(*argv: str) -> None:
    """Run a command that must succeed. Raises CalledProcessError, or OSError where there is no such command."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Network:
    """A bridge; the process that makes it is on it too, at ``address``."""

    _made = 0

    def __init__(self) -> None:
        Network._made += 1
        self._tag = f"lf{os.getpid() % 10_000}{chr(96 + Network._made % 26)}"
        self._net = f"10.{200 + os.getpid() % 50}.{(os.getpid() // 50 + 7 * Network._made) % 250}"
        self._bridge = f"{self._tag}b"
        self.address = f"{self._net}.1"
        self.hosts: list[Host] = []

    def __enter__(self) -> Network:
        try:
            run("ip", "link", "add", self._bridge, "type", "bridge")
            run("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
            run("ip", "link", "set", self._bridge, "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def host(self, name: str) -> Host:
        """A new host."""
        host = Host(name, f"{self._tag}{name}", f"{self._net}.{len(self.hosts) + 2}")
        self.hosts.append(host)
        run("ip", "netns", "add", host.namespace)
        link = f"{host.namespace}v"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        run("ip", "link", "set", link, "master", self._bridge, "up")
        run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        run("ip", "-n", host.namespace, "link", "set", "eth0", "up")
        run("ip", "-n", host.namespace, "link", "set", "lo", "up")
        return host

    def close(self) -> None:
        """Take everything down; processes in the hosts must have ended."""
        for host in self.hosts:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                run("ip", "netns", "del", host.namespace)
        self.hosts = []
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            run("ip", "link", "del", self._bridge)


class Host:
    """One namespace. Rules are of its own firewall; ``heal`` takes all of them away."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before a command that is to run in this host."""
        return ("ip", "netns", "exec", self.namespace)

    def rule(self, *what: str) -> None:
        """One firewall rule, as ``iptables`` takes it."""
        run(*self.prefix, "iptables", "-w", "5", *what)

    def heal(self) -> None:
        """No rules any more."""
        self.rule("-F")

    def cut(self, other: str, both: bool = True) -> None:
        """Drop what comes from ``other``, an address, and with ``both`` what goes there."""
        self.rule("-A", "INPUT", "-s", other, "-j", "DROP")
        if both:
            self.rule("-A", "OUTPUT", "-d", other, "-j", "DROP")

    def lose(self, share: float) -> None:
        """Lose so many of the packets, both ways; the loopback's are not touched."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:g}", "-j", "DROP")
        self.rule("-A", "INPUT", "-i", "eth0", *chance)
        self.rule("-A", "OUTPUT", "-o", "eth0", *chance)

    def reset(self, other: str, port: int) -> None:
        """Answer what comes from ``other`` to a port with a TCP reset."""
        self.rule(
            *("-A", "INPUT", "-s", other, "-p", "tcp", "--dport", str(port)),
            *("-j", "REJECT", "--reject-with", "tcp-reset"),
        )

    def inside(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread whose sockets are this host's."""
        result: list[T] = []
        failure: list[BaseException] = []

        def enter() -> None:
            try:
                fd = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
                try:
                    if _libc.setns(fd, _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
                finally:
                    os.close(fd)
                result.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=enter, name=f"in-{self.name}", daemon=True)
        thread.start()
        thread.join(30)
        if failure:
            raise failure[0]
        if not result:
            raise TimeoutError(f"{self.name}: no answer within 30 s")
        return result[0]
