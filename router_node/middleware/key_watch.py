"""Reads the key file again when it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

from router_node.middleware.keys import Authorizer, KeyFileError, KeyStore
from shared.logging import event, get

log = get("keys")

_Mark = tuple[int, int, int] | None


class KeyWatch:
    """Owns the task that keeps an authorizer in step with its file.

    The file is watched by its modification time, size and inode, which also catches an atomic replace and a mounted
    secret whose link was moved. A broken file changes nothing and is reported once, until it changes again.
    """

    def __init__(self, store: KeyStore, authorizer: Authorizer, interval: float = 1.0) -> None:
        self.errors = 0
        self._store = store
        self._authorizer = authorizer
        self._interval = interval
        self._mark: _Mark = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch. The keys that are loaded now should be the file's as it stands."""
        self._mark = self._look()
        self._task = asyncio.create_task(self._run(), name="key-watch")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            # In a thread: the file may be on a file system that hangs, and the loop must not.
            mark = await asyncio.to_thread(self._look)
            if mark == self._mark:
                continue
            self._mark = mark
            try:
                keys = await asyncio.to_thread(self._store.list)
            except KeyFileError as error:
                self.errors += 1
                event(log, logging.ERROR, "keys_not_reloaded", detail=str(error), valid=len(self._authorizer))
                continue
            self._authorizer.replace(keys)
            event(log, logging.INFO, "keys_reloaded", valid=len(keys))

    def _look(self) -> _Mark:
        try:
            status = os.stat(self._store.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
