"""The parts that keep the rules: where they come from, where they are kept, and who may change them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from router_node.admin.metrics import RoutesSample, Snapshot
from router_node.node_side import NodeSide
from router_node.routes.book import Book
from router_node.routes.desk import Desk, LocalKeeper
from router_node.routes.file import FileWatch, read, rules_of
from router_node.routes.manager import RouteManager
from router_node.routes.replica import Replica
from router_node.routes.review import costs, review, told
from router_node.routes.rules import RouteError, Rule
from router_node.routes.saved import Saver
from router_node.routes.saved import read as read_saved
from router_node.routes.slices import whole
from shared import logging as logs
from shared.config import Config, ConfigError

log = logs.get("router.routes")


def caps_of(config: Config) -> Mapping[str, int]:
    """The router's own caps on sampling parameters, which go to nodes beside what a rule says."""
    return {"max_n": config.router.max_n, "max_max_tokens": config.router.max_max_tokens}


class RouteSide:
    """Made once in each router, in the supervisor where there are workers.

    Raises ConfigError for rules of the configuration that cannot be used.
    """

    def __init__(self, config: Config, nodes: NodeSide) -> None:
        server, routes = config.server, config.router.routes
        loop = asyncio.get_running_loop()
        self.manager = RouteManager(nodes.table, nodes.dispatcher, loop, caps_of(config))
        self._written = _written(config)
        self._began_with = ""
        self._saver = Saver(Path(routes.snapshot_file)) if routes.snapshot_file else None
        self._store: Replica | None = None
        if server.redis:
            self._store = Replica(
                self.manager,
                server.redis,
                server.cluster,
                server.cluster_token,
                seed=lambda: self._written,
                reconcile=routes.reconcile_interval,
            )
        self.desk = Desk(self.manager, self._store or LocalKeeper(self.manager))
        self._watch: FileWatch | None = None
        if routes.watch:
            self._watch = FileWatch(Path(routes.file), self.desk, rules_of(routes.rules))
        self._begin()

    def _begin(self) -> None:
        """What to go by until the store says more: the last table, else what is written in the configuration."""
        book: Book | None = None
        if self._saver is not None:
            try:
                book = read_saved(self._saver.path)
            except RouteError as error:
                logs.event(log, logging.WARNING, "routes_snapshot_refused", detail=str(error))
        if book is not None:
            self._began_with = "the snapshot file"
            self.manager.reset(book)
        elif self._written:
            self._began_with = "the configuration"
            self.manager.reset(Book("", 0, "", self._written) if self._store else Book.begun(self._written))
        try:
            # As a whole, once; the rules of the configuration were looked at one by one.
            live = whole(self.manager.compiled(self.manager.book))
            warnings = costs(live.rules.values())
            warnings += whole(review(live.rules, list(live.rules), live.matcher, self.manager.pools()))
            for warning in told(warnings):
                logs.event(log, logging.WARNING, "route_warning", detail=warning)
        except RouteError as error:
            raise ConfigError(f"router.routes: {error}") from None

    async def start(self) -> None:
        """Begin to follow store and file; waits for neither."""
        if self._saver is not None:
            self.manager.listeners.append(self._saver.heard)
            self._saver.start()
            if self.manager.book.lineage:
                self._saver.heard(self.manager.book, None)
        if self._store is not None:
            await self._store.start()
        if self._watch is not None:
            self._watch.start()

    async def close(self) -> None:
        """Stop following; what is not saved yet is."""
        if self._watch is not None:
            await self._watch.close()
        if self._store is not None:
            await self._store.close()
        if self._saver is not None:
            await self._saver.close()
        self.manager.close()

    def kept(self) -> str:
        """Where the rules are kept and how that goes, in one sentence."""
        store, book = self._store, self.manager.book
        if store is None:
            where = f"version {book.number}, kept in this router alone"
        elif store.up:
            where = f"version {book.number}, kept in the store"
        else:
            since = f", begun with {self._began_with}" if self._began_with and not store.reloads else ""
            where = f"version {book.number}{since}; {store.detail}"
        return "; ".join([f"routes: {where}", *self._troubles()])

    def trouble(self) -> str:
        """What is wrong with keeping the rules, "" for nothing; requests are served all the same."""
        away = self._store is not None and not self._store.up
        return self.kept() if away or self._troubles() else ""

    def add_to(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what metrics show of the rules filled in."""
        store = self._store
        snapshot.routes = RoutesSample(
            version=self.manager.version,
            rules=len(self.manager.book.rules),
            swaps=self.manager.swaps,
            store_up=store.up if store is not None else None,
            reloads=dict(store.reloads) if store is not None else {},
            reseeds=store.reseeds if store is not None else 0,
            rejected=store.rejected if store is not None else 0,
        )
        return snapshot

    def _troubles(self) -> list[str]:
        return [part.trouble for part in (self._store, self._saver, self._watch) if part is not None and part.trouble]


def _written(config: Config) -> dict[str, Rule]:
    """The rules of the configuration and of its file."""
    routes = config.router.routes
    try:
        rules = rules_of(routes.rules)
        if routes.file:
            rules += read(Path(routes.file))
    except RouteError as error:
        raise ConfigError(f"router.routes: {error}") from None
    by_name = {rule.name: rule for rule in rules}
    if len(by_name) != len(rules):
        raise ConfigError("router.routes: the file and the configuration have a route of the same name; keep one")
    return by_name
