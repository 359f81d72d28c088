"""Rules written in the configuration and in a file beside it, and what follows a change of that file."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from router_node.routes.desk import Desk
from router_node.routes.rules import MAX_RULES, RouteError, Rule, parse
from shared.config.loader import Loader
from shared.errors import LayaError
from shared.logging import event, get
from shared.tasks import cancel_all

log = get("routes.file")

EVERY: Final = 1.0  # seconds between two looks at the file
MAX_FILE: Final = 32 << 20  # bytes


def read(path: Path) -> list[Rule]:
    """The rules in a YAML file: a list, or ``rules`` with a list. Raises RouteError with the file's name."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise RouteError(f"{path}: larger than {MAX_FILE} bytes")
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise RouteError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RouteError(f"{path}: is not UTF-8 text") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise RouteError(f"{path}{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if isinstance(tree, dict) and tree.keys() == {"rules"}:
        tree = tree["rules"]
    if tree is None:
        return []
    if not isinstance(tree, list):
        raise RouteError(f"{path}: must hold a list of rules")
    try:
        return rules_of(tree)
    except RouteError as error:
        raise RouteError(f"{path}: {error}") from None


def rules_of(trees: Sequence[Any]) -> list[Rule]:
    """Rules from plain values, each name once. Raises RouteError."""
    if len(trees) > MAX_RULES:
        raise RouteError(f"{len(trees)} routes are more than {MAX_RULES}")
    out: dict[str, Rule] = {}
    for tree in trees:
        rule = parse(tree)
        if rule.name in out:
            raise RouteError(f"route {rule.name!r} is there twice; give each a name of its own")
        out[rule.name] = rule
    return list(out.values())


class FileWatch:
    """Puts a file's rules in place when it changes. ``also`` are those that the configuration itself has."""

    def __init__(self, path: Path, desk: Desk, also: Sequence[Rule]) -> None:
        self.trouble = ""
        """Why the file's last change was not taken, one sentence, or ""."""
        self._path = path
        self._desk = desk
        self._also = also
        self._seen = _stamp(path)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="routes-file")

    async def close(self) -> None:
        """Stop looking."""
        await cancel_all([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            stamp = _stamp(self._path)
            if stamp is None or stamp == self._seen:
                continue
            if await self._take():
                self._seen = stamp

    async def _take(self) -> bool:
        """Put the rules in place; False when it is worth another try as it is."""
        try:
            rules = [*self._also, *await asyncio.to_thread(read, self._path)]
            made = await self._desk.change(rules, [], author=f"file {self._path.name}", replace=True)
        except (RouteError, LayaError) as error:
            said = error.message if isinstance(error, LayaError) else str(error)
            if said != self.trouble:
                event(log, logging.ERROR, "routes_file_refused", detail=said, effect="the routes stay as they are")
            self.trouble = said
            return not (isinstance(error, LayaError) and error.reason in ("STORE_AWAY", "VERSION_MOVED"))
        self.trouble = ""
        if made.change is not None:
            event(log, logging.INFO, "routes_file_taken", file=str(self._path), version=made.book.number)
        for warning in made.warnings:
            event(log, logging.WARNING, "route_warning", detail=warning)
        return True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
