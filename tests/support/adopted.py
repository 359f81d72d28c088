"""A process that one of ours has left in its place: not our child until that one has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from typing import Final

_SUBREAPER: Final = 36
_POLL: Final = 0.02


def adopt_orphans() -> None:
    """Have what our processes leave behind become our children, so that it can be waited for."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


class Notices:
    """What a process tells the one that manages services (``sd_notify``)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(path)

    def wait(self, begin: str, timeout: float) -> str:
        """The rest of the next notice that begins so, or "" when none comes in time; others are passed over."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._sock.settimeout(left)
            try:
                said = self._sock.recv(4096).decode()
            except TimeoutError:
                break
            if said.startswith(begin):
                return said.removeprefix(begin)
        return ""

    def close(self) -> None:
        """Listen no more."""
        self._sock.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


class Adopted:
    """As much of a ``Popen`` as tests need. ``returncode`` is None until ``poll`` or ``wait`` has seen its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # still the child of the one before
                pid, status = 0, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises TimeoutExpired."""
        deadline = time.monotonic() + (timeout if timeout is not None else 3600)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
            time.sleep(_POLL)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)
