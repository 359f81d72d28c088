"""A way to a port that can be made slow: each piece of bytes is late by as much as is asked for, and never overtakes.

``python -m tests.faults.slow_link HOST PORT BEHIND FILE`` listens on PORT and connects to BEHIND of the same host.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final

from shared.cli.supervise import die_with_parent
from tests.faults.hosts import Host

_FORM: Final = "dd"  # seconds of delay, and how much more it may be
_ROOT: Final = Path(__file__).resolve().parents[2]
_WAITING: Final = 256  # pieces on their way, per direction


class SlowLink:
    """One, in a process of its own on a host."""

    def __init__(self, host: Host, port: int, behind: int, folder: str) -> None:
        self._file = f"{folder}/slow-{host.name}"
        self.set(0.0, 0.0)
        argv = ["-m", "tests.faults.slow_link", host.address, str(port), str(behind), self._file]
        self._process = subprocess.Popen(
            [*host.prefix, sys.executable, *argv], cwd=_ROOT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
        )

    def set(self, delay: float, jitter: float) -> None:
        """From now on each piece is late by ``delay`` seconds, and by up to ``jitter`` more."""
        with open(self._file, "r+b" if os.path.exists(self._file) else "w+b") as file:
            file.write(struct.pack(_FORM, delay, jitter))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(5)


class _Way:
    """One direction of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: mmap.mmap) -> None:
        self._reader = reader
        self._writer = writer
        self._settings = settings
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Until either end is gone; what has come is delivered first."""
        loop = asyncio.get_running_loop()
        delivering = asyncio.create_task(self._deliver())
        due = 0.0
        try:
            while data := await self._reader.read(1 << 16):
                delay, jitter = struct.unpack_from(_FORM, self._settings)
                due = max(due, loop.time() + delay + jitter * random.random())
                self._pieces.append((due, data))
                self._news.set()
                while len(self._pieces) >= _WAITING:
                    self._room.clear()
                    await self._room.wait()
            self._pieces.append((due, b""))
            self._news.set()
            await delivering
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._pieces:
                self._news.clear()
                await self._news.wait()
            due, data = self._pieces.popleft()
            self._room.set()
            if (late := due - loop.time()) > 0:
                await asyncio.sleep(late)
            if not data:
                return
            self._writer.write(data)
            await self._writer.drain()


async def _serve(host: str, port: int, behind: int, settings: mmap.mmap) -> None:
    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        ways: list[asyncio.Task[None]] = []
        try:
            other_reader, other_writer = await asyncio.open_connection(host, behind)
            writers.append(other_writer)
            pairs = ((reader, other_writer), (other_reader, writer))
            ways += [asyncio.create_task(_Way(*pair, settings).run()) for pair in pairs]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for one in writers:
                with contextlib.suppress(OSError):
                    one.close()

    server = await asyncio.start_server(joined, host, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with open(sys.argv[4], "rb") as control:
        asyncio.run(
            _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), mmap.mmap(control.fileno(), 0, prot=mmap.PROT_READ))
        )
