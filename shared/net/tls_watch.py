"""Certificates that change while a process runs: read again, and used from the next handshake on.

A context is built anew and takes the old one's place, so authorities that are gone are gone too. Connections that are
open keep what they were made with. Files that cannot be used change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from typing import Any, Final

from shared.config.schema import ConfigError, TlsConfig
from shared.logging import event, get
from shared.net.tls import client_context, server_context

log = get("tls")

INTERVAL: Final = 2.0  # seconds between two looks

_Mark = tuple[tuple[int, int, int] | None, ...]
_Make = Callable[[TlsConfig, str], ssl.SSLContext | None]


class LiveContext(ssl.SSLContext):
    """Stands in for the context that is current: what a listener or a pool is given once and keeps."""

    current: ssl.SSLContext

    def __new__(cls, current: ssl.SSLContext) -> LiveContext:
        """Stand in for this context for now."""
        live = super().__new__(cls, current.protocol)
        live.current = current
        return live

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """A new connection; event loops ask for one by this call alone."""
        return self.current.wrap_bio(*args, **kwargs)


class _Watched:
    """One context and its files."""

    __slots__ = ("_config", "_key", "_make", "_seen", "context", "mark")

    def __init__(self, context: ssl.SSLContext, make: _Make, config: TlsConfig, key: str) -> None:
        self.context = LiveContext(context)
        self._make = make
        self._config = config
        self._key = key
        self.mark = self._seen = self.look()

    def look(self) -> _Mark:
        """What the files are like: changes with each of them."""
        return tuple(_mark_of(path) for path in (self._config.cert_file, self._config.key_file, self._config.ca_file))

    def changed(self) -> bool:
        """Whether the files differ from those in use, and have settled: a pair is not replaced in one step."""
        mark = self.look()
        settled = mark == self._seen
        self._seen = mark
        if not settled or mark == self.mark:
            return False
        self.mark = mark
        return True

    def load(self) -> None:
        """Put a new context in place. Raises ConfigError, and changes nothing then."""
        context = self._make(self._config, self._key)
        if context is not None:
            self.context.current = context


class CertificateWatch:
    """Makes the contexts of a process, and owns the task that keeps them in step with their files.

    ``reloaded`` and ``refused`` count; a change that cannot be used is logged once.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        """``interval``: seconds between two looks; a change is used after one or two of them."""
        self.reloaded = 0
        self.refused = 0
        self._interval = interval
        self._watched: list[_Watched] = []
        self._task: asyncio.Task[None] | None = None

    def server(self, config: TlsConfig, key: str = "server.tls") -> ssl.SSLContext | None:
        """As ``tls.server_context``, kept up to date."""
        return self._watch(server_context, config, key)

    def client(self, config: TlsConfig, key: str = "router.node_tls") -> ssl.SSLContext | None:
        """As ``tls.client_context``, kept up to date."""
        return self._watch(client_context, config, key)

    def start(self) -> None:
        """Begin to look, if there is anything to look at."""
        if self._watched:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="certificate-watch")

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _watch(self, make: _Make, config: TlsConfig, key: str) -> ssl.SSLContext | None:
        context = make(config, key)
        if context is None:
            return None
        self._watched.append(_Watched(context, make, config, key))
        return self._watched[-1].context

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for watched in self._watched:
                # In a thread: the files may be on a file system that hangs, and the loop must not.
                if await asyncio.to_thread(watched.changed):
                    await self._load(watched)

    async def _load(self, watched: _Watched) -> None:
        try:
            await asyncio.to_thread(watched.load)
        except (ConfigError, OSError) as error:
            self.refused += 1
            event(log, logging.ERROR, "certificates_not_reloaded", detail=f"{error}; the old ones stay in use")
        else:
            self.reloaded += 1
            event(log, logging.INFO, "certificates_reloaded")


def _mark_of(path: str) -> tuple[int, int, int] | None:
    if not path:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
