"""Routers' tables in memory, kept in step by a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from router_node.admin.routes_view import RoutesView
from router_node.dispatch import Dispatcher, DispatchSettings
from router_node.routes.book import Remove
from router_node.routes.desk import Desk, LocalKeeper, Outcome
from router_node.routes.manager import RouteManager
from router_node.routes.replica import Replica
from router_node.routes.rules import Rule, parse
from router_node.routes.table import RouteTable
from tests.support.ports import until

CAPS = {"max_n": 16, "max_max_tokens": 1000}


def rule(name: str, pool: str = "p", **more: Any) -> Rule:
    """A rule for the model of its own name."""
    return parse({"name": name, "targets": pool, "when": {"model": name}, **more})


class Site:
    """One router's table and its replica."""

    def __init__(
        self,
        url: str,
        seed: Mapping[str, Rule] | None = None,
        *,
        token: str = "t",
        cluster: str = "c",
        op_timeout: float = 0.5,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher("w", DispatchSettings(), loop.time)
        self.table = RouteTable(self.dispatcher)
        self.manager = RouteManager(self.table, self.dispatcher, loop, CAPS)
        rules = dict(seed or {})
        self.replica = Replica(
            self.manager, url, cluster, token, seed=lambda: rules, reconcile=0.5, op_timeout=op_timeout
        )
        self.desk = Desk(self.manager, self.replica)

    @property
    def names(self) -> list[str]:
        """Rules that requests go by now."""
        live = self.table.live
        return sorted(live.rules) if live is not None else []

    @property
    def version(self) -> tuple[str, int]:
        return (self.manager.book.lineage, self.manager.book.number)

    async def put(self, *rules: Rule, expected: int = -1) -> Outcome:
        return await self.desk.change(rules, [], author="test", expected=expected)

    async def remove(self, *names: str) -> Outcome:
        return await self.desk.change([], [Remove(name) for name in names], author="test")

    async def up(self) -> Site:
        await until(lambda: self.replica.up, "the store was read")
        return self

    async def shows(self, *names: str, timeout: float = 10.0) -> None:
        await until(lambda: self.names == sorted(names), f"routes {names}", timeout)

    async def close(self) -> None:
        await self.replica.close()
        self.manager.close()


class Sites:
    """Several of them, closed in the end."""

    def __init__(self, url: str, *, op_timeout: float = 0.5) -> None:
        self.url = url
        self.op_timeout = op_timeout
        self._all: list[Site] = []

    async def one(self, *seed: Rule, start: bool = True, **more: Any) -> Site:
        site = Site(more.pop("url", self.url), {r.name: r for r in seed}, op_timeout=self.op_timeout, **more)
        self._all.append(site)
        if start:
            await site.replica.start()
            await site.up()
        return site

    async def close(self) -> None:
        await asyncio.gather(*(site.close() for site in self._all))


def view_of(table: RouteTable, dispatcher: Dispatcher) -> RoutesView:
    """What Admin shows of a table that is kept in this process alone."""
    manager = RouteManager(table, dispatcher, asyncio.get_running_loop(), CAPS)
    return RoutesView(table, manager, Desk(manager, LocalKeeper(manager)), lambda: "routes: kept by a test")


def no_routes() -> RoutesView:
    """What Admin shows of no rules and no nodes."""
    dispatcher = Dispatcher("w", DispatchSettings(), asyncio.get_running_loop().time)
    return view_of(RouteTable(dispatcher), dispatcher)
