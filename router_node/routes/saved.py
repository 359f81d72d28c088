"""The last table in a small file, so that a router that starts while the store is away knows the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from router_node.routes.book import FORMAT, Book, Change
from router_node.routes.rules import RouteError, Rule, check
from shared.logging import event, get
from shared.tasks import cancel_all

log = get("routes.saved")

EVERY: Final = 1.0  # seconds between two writings at least
MAX_FILE: Final = 256 << 20  # bytes


class _Saved(msgspec.Struct):
    format: int
    lineage: str
    number: int
    digest: str
    rules: list[Rule]


_decode: Final = msgspec.json.Decoder(_Saved).decode


def read(path: Path) -> Book | None:
    """The table in a file, None where there is no file. Raises RouteError for a file that cannot be used."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise RouteError(f"{path} is larger than {MAX_FILE} bytes: it is no snapshot of routes")
        saved = _decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RouteError(f"{path} cannot be read ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise RouteError(f"{path} is no snapshot of routes ({error}); remove it") from None
    if saved.format != FORMAT:
        raise RouteError(f"{path} is of format {saved.format}, and this router reads {FORMAT}; remove it")
    for rule in saved.rules:
        check(rule)
    return Book(saved.lineage, saved.number, saved.digest, {rule.name: rule for rule in saved.rules})


def write(path: Path, book: Book) -> None:
    """Replace the file whole. Raises OSError."""
    saved = _Saved(FORMAT, book.lineage, book.number, book.digest, list(book.rules.values()))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(saved))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()


class Saver:
    """Keeps a file in step with the table, a second behind at most; a listener of the manager."""

    def __init__(self, path: Path) -> None:
        self.trouble = ""
        """Why the file could not be written last, one sentence, or ""."""
        self.path = path
        self._book: Book | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def heard(self, book: Book, changes: Sequence[Change] | None) -> None:
        """See RouteManager.listeners."""
        if not book.partial:  # else what is in the file already is worth more
            self._book = book
            self._news.set()

    def start(self) -> None:
        """Begin to write; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="routes-save")

    async def close(self) -> None:
        """Write what is not written yet, and stop."""
        await cancel_all([self._task])
        if self._news.is_set():
            await self._write()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._write()
            await asyncio.sleep(EVERY)

    async def _write(self) -> None:
        book = self._book
        if book is None or not book.lineage:
            return
        try:
            await asyncio.to_thread(write, self.path, book)
            self.trouble = ""
        except OSError as error:
            if not self.trouble:
                event(log, logging.WARNING, "routes_not_saved", file=str(self.path), detail=str(error))
            self.trouble = f"the routes cannot be saved to {self.path} ({error.strerror})"
