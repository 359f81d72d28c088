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

FINAL_CODES = frozenset((2, 3))
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_GOOD_RUN = 60.0
_LOG_LIMIT = 16 << 20
_TAIL = 12
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


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
        fds: tuple[int, ...] = ()
        read_end = write_end = -1
        if self._has_ready_fd:
            read_end, write_end = os.pipe()
            argv += ["--ready-fd", str(write_end)]
            fds = (write_end,)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=fds,
                preexec_fn=die_with_parent,
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on, once and in order
            )
        except BaseException:
            if read_end >= 0:
                os.close(read_end)
            raise
        finally:
            if write_end >= 0:
                os.close(write_end)
        self._process = process
        events = asyncio.create_task(self._read_events(read_end)) if read_end >= 0 else None
        output = asyncio.create_task(self._read_output(process))
        try:
            code = await process.wait()
            await asyncio.wait([output], timeout=1.0)
            return code
        finally:
            for task in (events, output):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, Exception):
                        await task
            self._sweep_group(process.pid)

    def _sweep_group(self, pid: int) -> None:
        """Kill what a dead child left in its process group (an engine's worker, say)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    async def _read_events(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 16)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
        )
        try:
            while line := await reader.readline():
                with contextlib.suppress(json.JSONDecodeError):
                    event = json.loads(line)
                    if event.get("event") == "ready":
                        self.ready = event
                    self._on_event(self, event)
        finally:
            transport.close()

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with open(self._log_path, "ab") as log:  # noqa: ASYNC230 - a local append, never a wait
            while chunk := await process.stdout.read(1 << 15):
                if log.tell() > _LOG_LIMIT:
                    log.truncate(0)
                log.write(chunk)
                log.flush()
                for line in chunk.decode("utf-8", "replace").splitlines():
                    self._tail.append(line)
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
