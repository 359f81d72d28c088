"""The access log: one line a request, written off the hot path.

A request that ends leaves its own record in a bounded ring, which costs a fraction of a microsecond. One task wakes
ten times a second, formats what is there in short slices, and hands the text to a thread that writes it, so that
neither a burst nor a slow disk or pipe holds up the event loop. Where the ring is full, lines are dropped and the next
line written says how many. A line holds names and numbers: no prompt, no header value but the request id, no key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, Protocol

from router_node.middleware.access_lines import Entry, JsonLines, Lines, TextLines

INTERVAL: Final = 0.1  # seconds between two drains
SLICE: Final = 100  # lines formatted before the loop runs other things
WRITE_TIMEOUT: Final = 5.0  # seconds a slow stream may take before close() gives up on it


class Stream(Protocol):
    """Where lines go: a text file."""

    def write(self, text: str, /) -> object:
        """Write all of the text."""

    def flush(self) -> object:
        """Push it out."""


class AccessLog:
    """A bounded ring of entries and the task that writes them out."""

    def __init__(self, stream: Stream, style: Literal["text", "json"] = "text", capacity: int = 65_536) -> None:
        self._stream = stream
        self._lines: Lines = JsonLines() if style == "json" else TextLines()
        self._capacity = capacity
        self._ring: deque[Entry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="access-log")
        self._unsaid = 0
        self.dropped = 0
        self.written = 0

    def add(self, entry: Entry) -> None:
        """Keep one line for the next drain, or count it as dropped."""
        ring = self._ring
        if len(ring) < self._capacity:
            ring.append(entry)
        else:
            self.dropped += 1
            self._unsaid += 1

    @property
    def waiting(self) -> int:
        """Lines not written yet."""
        return len(self._ring)

    def start(self) -> None:
        """Begin to write. Call once, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="access-log")

    async def close(self) -> None:
        """Write what is left, within ``WRITE_TIMEOUT`` seconds, and stop."""
        self._closing.set()
        task, self._task = self._task, None
        if task is not None:
            _, late = await asyncio.wait((task,), timeout=WRITE_TIMEOUT)
            if late:
                task.cancel()
                await asyncio.wait((task,), timeout=WRITE_TIMEOUT)
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), INTERVAL)
            await self._drain()
        await self._drain()  # what came in since, or before the first round

    async def _drain(self) -> None:
        ring, line = self._ring, self._lines.line
        lines: list[str] = []
        for _ in range(len(ring)):
            lines.append(line(ring.popleft()))
            if len(lines) >= SLICE:
                await self._write(lines)
                lines = []
        if lines:
            await self._write(lines)

    async def _write(self, lines: list[str]) -> None:
        if self._unsaid:
            lines.append(self._lines.dropped(self._unsaid))
            self._unsaid = 0
        text = "\n".join(lines) + "\n"
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._put, text)
            self.written += len(lines)
        except (OSError, ValueError):  # a closed or full stream: the requests matter more than their log
            self.dropped += len(lines)

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
