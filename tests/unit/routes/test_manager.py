"""What requests go by: swaps that are few, whole and in order, and a desk that checks before anything is kept."""

from __future__ import annotations

import asyncio
import gc

import pytest

from router_node.dispatch import Dispatcher, DispatchSettings
from router_node.routes import manager as module
from router_node.routes import slices
from router_node.routes.book import Book, Change, Put, Remove
from router_node.routes.desk import Desk, LocalKeeper
from router_node.routes.manager import RouteManager
from router_node.routes.rules import RouteError, Rule
from router_node.routes.table import RouteTable
from shared.errors import LayaError
from tests.support.ports import until
from tests.support.routes import CAPS, rule


class Site:
    def __init__(self, *rules: Rule) -> None:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher("w", DispatchSettings(), loop.time)
        self.table = RouteTable(dispatcher)
        self.manager = RouteManager(self.table, dispatcher, loop, CAPS)
        self.desk = Desk(self.manager, LocalKeeper(self.manager))
        if rules:
            self.manager.reset(Book.begun({r.name: r for r in rules}))

    @property
    def live(self) -> tuple[int, list[str]]:
        live = self.table.live
        return (live.number, sorted(live.rules)) if live is not None else (0, [])

    async def put(self, *rules: Rule) -> None:
        await self.desk.change(rules, [], author="me")


async def test_the_first_change_is_live_at_once_and_a_burst_is_few_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST", 0.0)
    site = Site(rule("a"))
    assert site.live == (1, ["a"])
    began = asyncio.get_running_loop().time()
    for i in range(30):
        await site.put(rule("a", pool=f"p{i}"))
    await until(lambda: site.live == (31, ["a"]), "the last is live")
    spent = asyncio.get_running_loop().time() - began
    assert site.manager.swaps <= 2 + spent / module.SWAP_EVERY
    assert site.table.live is not None and site.table.live.rules["a"].targets[0].pool == "p29"


async def test_listeners_hear_every_version_in_order() -> None:
    site = Site()
    heard: list[tuple[int, int | None]] = []

    def listen(book: Book, changes: list[Change] | None) -> None:
        heard.append((book.number, None if changes is None else len(changes)))

    site.manager.listeners.append(listen)  # type: ignore[arg-type]
    await site.put(rule("a"))
    await site.put(rule("b"))
    await site.desk.change([], [Remove("a")], author="me")
    assert heard == [(1, None), (2, 1), (3, 1)]
    site.manager.close()


async def test_a_change_that_does_not_follow_changes_nothing() -> None:
    site, other = Site(rule("a")), Site(rule("a"))
    change = other.manager.book.change([Remove("a")], "me")
    assert change is not None
    with pytest.raises(RouteError):
        site.manager.take_all([change])
    assert site.manager.book.number == 1 and not site.manager.history


async def test_a_bad_change_among_good_ones_changes_nothing() -> None:
    site = Site(rule("a"))
    before = site.manager.book
    with pytest.raises(LayaError, match="Nothing was changed: route 'c'"):
        await site.put(rule("b"), rule("c", fallback={"route": "nowhere"}))
    assert site.manager.book is before
    made = await site.desk.change([rule("b")], [], author="me", dry=True)
    assert made.change is not None and site.manager.book is before


async def test_the_expected_version_must_be_the_one_there_is() -> None:
    site = Site(rule("a"))
    with pytest.raises(LayaError) as caught:
        await site.desk.change([rule("b")], [], author="me", expected=7)
    assert caught.value.reason == "VERSION_MOVED" and caught.value.metadata == {"version": "1"}
    await site.desk.change([rule("b")], [], author="me", expected=1)


async def test_going_back_is_a_new_version_and_bounded_by_memory() -> None:
    site = Site(rule("a"))
    await site.put(rule("b"))
    await site.desk.change([], [Remove("a")], author="me")
    made = await site.desk.roll_back(1, author="me")
    assert made.book.number == 4 and sorted(made.book.rules) == ["a"]
    with pytest.raises(LayaError, match="there are 1 to 4"):
        await site.desk.roll_back(0, author="me")
    site.manager.close()


async def test_no_rules_are_no_table() -> None:
    site = Site(rule("a"))
    await site.desk.change([], [Remove("a")], author="me")
    await until(lambda: site.table.live is None, "requests go by models alone")
    assert not site.table.reads_body


async def test_a_large_table_is_swapped_slice_by_slice_and_requests_go_by_the_old_one_until_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REST", 0.0)
    monkeypatch.setattr(module, "SWAP_EVERY", 0.0)
    monkeypatch.setattr(slices, "SLICE", 100)
    rules = {r.name: r for r in (rule(f"r{i:04}", when={"model": "m", "tenant": f"t{i}"}) for i in range(600))}
    site = Site(*rules.values())
    assert site.live == (1, sorted(rules))  # the first is whole at once

    def put(name: str, pool: str) -> None:
        change = site.manager.book.change([Put(rule(name, pool=pool, when={"model": "m", "tenant": "x"}))], "me")
        assert change is not None
        site.manager.take(change)

    def pools(*names: str) -> list[str]:
        assert site.table.live is not None
        return [site.table.live.matcher.rules[name].rule.targets[0].pool for name in names]

    put("r0100", "one")
    assert site.live[0] == 1 and site.manager.book.number == 2
    put("r0200", "two")  # while the one before is being compiled
    assert pools("r0100", "r0200") == ["p", "p"]
    turns = 0
    while site.manager.swaps < 2 and turns < 10_000:
        turns += 1
        await asyncio.sleep(0)
    assert 5 < turns < 10_000
    assert site.live[0] == 2 and pools("r0100", "r0200") == ["one", "p"]
    await until(lambda: site.live[0] == 3, "so is the one that came meanwhile")
    assert pools("r0100", "r0200") == ["one", "two"]
    put("r0300", "three")
    site.manager.reset(Book.begun({"r0100": rule("r0100", pool="four")}))  # another table, meanwhile
    await until(lambda: site.live == (1, ["r0100"]), "the other table is live")
    assert pools("r0100") == ["four"]
    site.manager.close()


async def test_the_first_rules_of_all_are_compiled_in_slices_too_and_the_collector_works_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE", 100)
    rules = [rule(f"r{i:04}", when={"model": "m", "tenant": f"t{i}"}) for i in range(600)]
    site = Site()
    made = await site.desk.change(rules, [], author="me")
    assert made.book.number == 1 and site.table.live is None and not gc.isenabled()
    await until(lambda: site.table.live is not None, "swapped")
    assert site.live == (1, [one.name for one in rules])
    await until(gc.isenabled, "the collector is on again")
    gc.unfreeze()
