"""Child processes of ``laya up``: started, watched, restarted with back-off, and never left behind.

A child that dies is started again after 0.5 s, then twice as long each time up to 30 s; a minute of good running
resets that. Exit codes 2 and 3 (bad configuration, missing engine) are final: starting again would not help. Every
child gets a parent-death signal, so that a killed parent leaves no orphan.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.tasks import cancel_all

FINAL_CODES = frozenset((2, 3))
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_GOOD_RUN = 60.0
_LOG_LIMIT = 16 << 20
_TAIL = 32  # lines: a refusal may be a screen
_LAST_WORDS = 1.0  # seconds to read what a dead child still said
_LONGEST_LINE = 1 << 16
_PR_SET_PDEATHSIG = 1
_REFUSED = "successor_refused"  # what a router logs that was asked to replace itself: only its log would tell


# Looked up here and not between fork and exec: another thread may hold the loader's lock at the fork, for ever.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel for this signal when the parent of this process dies (Linux; elsewhere nothing)."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _why(line: str) -> str:
    """The reason in a line of a log, be it text or JSON."""
    try:
        return str(json.loads(line)["why"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return line.partition(" why=")[2].strip("'\"") or line


class Child:
    """One supervised process. ``run`` lives as long as it should; ``stop`` ends it."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_dir: Path,
        on_event: Callable[[Child, dict[str, Any]], None],
        verbose: bool = False,
        has_ready_fd: bool = True,
    ) -> None:
        self.name = name
        self.restarts = 0
        self.ready: dict[str, Any] | None = None
        self._argv = list(argv)
        self._env = dict(env)
        self._log_path = log_dir / f"{name}.log"
        self._on_event = on_event
        self._verbose = verbose
        self._has_ready_fd = has_ready_fd
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL)

    @property
    def pid(self) -> int | None:
        """Process id, or None while it does not run."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def log_path(self) -> Path:
        """Where its output goes."""
        return self._log_path

    @property
    def tail(self) -> list[str]:
        """The last lines of its output."""
        return list(self._tail)

    async def run(self) -> None:
        """Start it, restart it when it dies, return when stopped or when its exit code is final."""
        delay = _FIRST_DELAY
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            self.ready = None
            if self._stopping.is_set():
                return
            if time.monotonic() - began > _GOOD_RUN:
                delay = _FIRST_DELAY
            final = code in FINAL_CODES
            self._on_event(self, {"event": "died", "code": code, "final": final, "retry_in": delay})
            if final:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            delay = min(delay * 2, _LONGEST_DELAY)
            self.restarts += 1

    async def _run_once(self) -> int:
        argv = list(self._argv)
        # Pipes of our own: asyncio's would have ``wait`` last until everybody who inherited them is gone.
        output = os.pipe()
        ready = os.pipe() if self._has_ready_fd else None
        if ready is not None:
            argv += ["--ready-fd", str(ready[1])]
        readers: list[asyncio.Task[None]] = []
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output[1],
                stderr=output[1],
                pass_fds=(ready[1],) if ready is not None else (),
                preexec_fn=die_with_parent,
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on, once and in order
            )
        except BaseException:
            os.close(output[0])
            if ready is not None:
                os.close(ready[0])
            raise
        finally:
            os.close(output[1])
            if ready is not None:
                os.close(ready[1])
        self._process = process
        readers.append(asyncio.create_task(self._read(output[0], self._on_output)))
        if ready is not None:
            readers.append(asyncio.create_task(self._read(ready[0], self._on_ready_lines)))
        try:
            return await process.wait()
        finally:
            self._sweep_group(process.pid)
            await asyncio.wait(readers, timeout=_LAST_WORDS)
            await cancel_all(readers)

    def _sweep_group(self, pid: int) -> None:
        """Kill what a dead child left in its process group (an engine's worker, say)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    async def _read(self, fd: int, take: Callable[[bytes], None]) -> None:
        """Hand on what comes through a pipe, whole lines at a time, until its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        pipe = os.fdopen(fd, "rb", buffering=0)
        try:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        except BaseException:
            pipe.close()
            raise
        rest = b""
        try:
            while chunk := await reader.read(1 << 15):
                lines, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline or len(rest) > _LONGEST_LINE:
                    take(lines + newline or rest)
                    rest = rest if newline else b""
            if rest:
                take(rest)
        finally:
            transport.close()

    def _on_ready_lines(self, data: bytes) -> None:
        for line in data.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if event.get("event") == "ready":
                    self.ready = event
                self._on_event(self, event)

    def _on_output(self, data: bytes) -> None:
        with contextlib.suppress(OSError), open(self._log_path, "ab") as log:  # a full disk stops no process
            if log.tell() > _LOG_LIMIT:
                log.truncate(0)
            log.write(data)
        for line in data.decode("utf-8", "replace").splitlines():
            self._tail.append(line)
            if _REFUSED in line:
                self._on_event(self, {"event": "refused", "why": _why(line)})
            if self._verbose:
                print(f"[{self.name}] {line}", file=sys.stderr, flush=True)

    async def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after ``grace`` seconds. Idempotent."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """SIGKILL at once, with everything in its process group."""
        self._stopping.set()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
