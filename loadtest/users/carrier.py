"""The gevent side of the process that makes gRPC calls: starts it, speaks to it, starts it again when it has died."""

from __future__ import annotations

import contextlib
import itertools
import logging
import subprocess
import sys
from pathlib import Path

import gevent
import msgspec
from gevent import socket
from gevent.event import AsyncResult
from gevent.lock import RLock

from loadtest.users.call import CARRIER_LOST, Ask, Call, Drop, Outcome, Said

ROOT = Path(__file__).resolve().parents[2]
STARTS = 5
"""Times it is started before its calls are refused."""
_GRACE = 10.0
"""Seconds beyond a call's own limit after which its outcome is missing."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Said).decode
_log = logging.getLogger("loadtest.carrier")


class Carrier:
    """One such process; ``ask`` may be called from many greenlets."""

    def __init__(self, url: str, model: str, ca_file: str = "") -> None:
        """Nothing is started before the first call."""
        self._argv = ["--host", url, "--model", model, "--ca-file", ca_file]
        self._numbers = itertools.count()
        self._waiting: dict[int, AsyncResult[Outcome]] = {}
        self._lock = RLock()
        self._writing = RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader: gevent.Greenlet | None = None
        self._closed = False
        self.starts = 0

    @property
    def pid(self) -> int:
        """Its process, 0 when there is none."""
        return self._process.pid if self._process is not None else 0

    def ask(self, call: Call) -> Outcome:
        """One answer. A greenlet that is killed meanwhile gives its call up."""
        number = next(self._numbers)
        waiting: AsyncResult[Outcome] = AsyncResult()
        ended = False
        try:
            if not self._running():
                return Outcome(reason=CARRIER_LOST, detail=f"the process for gRPC calls has ended {STARTS} times")
            self._waiting[number] = waiting
            self._send(Ask(number, call))
            out: Outcome = waiting.get(timeout=call.timeout + _GRACE)
            ended = True
            return out
        except OSError as e:
            ended = True
            return Outcome(reason=CARRIER_LOST, detail=str(e))
        except gevent.Timeout:
            return Outcome(reason="TIMEOUT", detail="the process for gRPC calls does not answer")
        finally:
            self._waiting.pop(number, None)
            if not ended and self._socket is not None:
                with contextlib.suppress(OSError):
                    self._send(Drop(number))

    def close(self) -> None:
        """End it."""
        self._closed = True
        if self._reader is not None:
            self._reader.kill()
        self._hang_up()
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)

    def _send(self, message: object) -> None:
        raw = _encode(message)
        with self._writing:  # a long message goes out in parts
            if self._socket is None:
                raise ConnectionResetError("the process for gRPC calls has ended")
            self._socket.sendall(len(raw).to_bytes(4, "big") + raw)

    def _running(self) -> bool:
        with self._lock:
            if self._socket is not None:
                return True
            if self._closed or self.starts >= STARTS:
                return False
            if self.starts:
                _log.warning("the process for gRPC calls has ended (start %d of %d)", self.starts + 1, STARTS)
            self.starts += 1
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "loadtest.users.sidecar", "--fd", str(theirs.fileno()), *self._argv],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            self._socket = ours
            self._reader = gevent.spawn(self._read, ours)
            return True

    def _read(self, sock: socket.socket) -> None:
        data = b""
        try:
            while chunk := sock.recv(1 << 18):
                data += chunk
                at = 0
                while len(data) - at >= 4:
                    size = int.from_bytes(data[at : at + 4], "big")
                    if len(data) - at - 4 < size:
                        break
                    said = _decode(data[at + 4 : at + 4 + size])
                    at += 4 + size
                    waiting = self._waiting.pop(said.number, None)
                    if waiting is not None:
                        waiting.set(said.outcome)
                data = data[at:]
        except (OSError, msgspec.DecodeError) as e:
            _log.warning("the process for gRPC calls: %s", e)
        self._hang_up()

    def _hang_up(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.set(Outcome(reason=CARRIER_LOST, detail="the process for gRPC calls has ended"))
