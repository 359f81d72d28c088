"""Which streams may go on elsewhere, and the budget of those that do."""

from __future__ import annotations

import asyncio

from router_node.admin.counters import RouterMetrics
from router_node.dispatch import DispatchSettings, Pool
from router_node.relay.journal import first_charge
from router_node.relay.migrate import MAX_POOLS, Migrations, journal_value, stays
from router_node.relay.settings import MigrationSettings
from shared import headers as names
from shared.errors import LayaError, unavailable
from tests.support.relay_rig import Rig
from tests.unit.gateway.test_moving_relay import Ask, chunk, head, part, say
from tests.unit.relay.test_moving_stream import GRANT, Call, said


async def make(**settings: object) -> Migrations:
    loop = asyncio.get_running_loop()
    return Migrations(MigrationSettings(**settings), loop, RouterMetrics())  # type: ignore[arg-type]


def pool() -> Pool:
    return Pool("m", "", DispatchSettings())


async def test_a_node_s_word_decides_then_the_client_s_and_the_router_s_bounds() -> None:
    moves = await make(max_request_bytes=100)
    assert moves.unfit(100, False) == moves.refusal(b"1", 100) == ""
    assert moves.unfit(101, False) == moves.refusal(b"1", 101) == "the request is over 100 bytes"
    assert moves.unfit(1, True) == "the client said laya-no-migrate"
    assert moves.refusal(b"0; beam search", 1) == "beam search"
    assert moves.refusal(b"0", 1) == "the node keeps no journal"
    assert len(moves.refusal(b"0;" + b"x" * 5000, 1)) <= 200


async def test_memory_of_all_journals_is_bounded() -> None:
    moves = await make(memory=3 * first_charge(b"x" * 100))
    assert [moves.room(b"x" * 100) for _ in range(4)] == [True, True, True, False]


class Router:
    """Says whether it stood still."""

    still = True

    def __call__(self) -> bool:
        return self.still

    def rig(self) -> Rig:
        return Rig(6, migration=MigrationSettings(attempts=8), retry_backoff=0.001, max_attempts=4, stood_still=self)


async def test_nodes_that_a_router_lost_by_standing_still_did_not_die_of_a_call() -> None:
    router = Router()
    call = Call(router.rig())
    call.node().lose()
    (await call.next_node()).lose()
    router.still = False
    (await call.next_node()).lose()  # the first that counts
    node = await call.next_node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1, finish=1), False)
    node.finish()
    assert call.ids() == [1]
    call.over()
    assert call.rig.metrics.moves.sample().poisonous == 0


async def test_nor_did_they_of_a_stream_that_was_moved_without_a_token() -> None:
    router = Router()
    call = Call(router.rig())
    for _ in range(3):
        node = await call.next_node()
        node.begin(GRANT)
        node.lose()
    router.still = False
    for _ in range(2):
        node = await call.next_node()
        node.begin(GRANT)
        node.lose()
    assert call.error().reason == "POISONOUS"
    call.over()


async def test_nor_did_they_of_a_request_over_http() -> None:
    router = Router()
    ask = Ask(router.rig())
    ask.node().lose()
    (await ask.next_node()).lose()
    node = await ask.next_node()
    node.begin(GRANT)
    say(node, head(), part(chunk(0), 1, finish="stop"))
    node.finish()
    assert ask.text == chunk(0)
    ask.over()
    assert ask.rig.metrics.moves.sample().poisonous == 0


async def test_each_pool_has_a_budget_of_its_own() -> None:
    moves = await make(share=0.5, burst=2)
    one, other = pool(), pool()
    one.sent = 10
    assert [moves.may_move("a@", one) for _ in range(3)] == [True, True, False]
    assert moves.may_move("b@", other)
    one.sent = 12
    assert moves.may_move("a@", one), "it fills with what the pool is sent"
    assert not moves.may_move("a@", one)
    assert moves.may_move("a@", pool()), "one that comes in its place begins anew"


async def test_budgets_are_bounded_in_number() -> None:
    moves, shared = await make(), pool()
    for i in range(2 * MAX_POOLS):
        moves.may_move(f"m{i}@", shared)
    assert len(moves._budgets) <= MAX_POOLS


async def test_reasons_are_counted_and_told_in_ascii() -> None:
    moves = await make()
    assert moves.note("the field naïve") == b"0; the field na?ve"
    assert moves.metrics.moves.sample().kept == {"the field naïve": 1}


def test_the_value_is_found_among_a_node_s_headers() -> None:
    assert journal_value([(b":status", b"200"), (names.JOURNAL, b"1")]) == b"1"
    assert journal_value([(b":status", b"200")]) == b""


def test_an_error_says_why_its_stream_stayed() -> None:
    error = unavailable("Node a was lost.", "NODE_LOST")
    error.metadata = {}
    told = stays(error, "n is over 1")
    assert told.message == "Node a was lost; it cannot go on elsewhere: n is over 1."
    assert told.metadata == {"not_migrated": "n is over 1"}
    bare: LayaError = stays(unavailable("Lost.", "NODE_LOST"), "x")
    assert bare.metadata is None
