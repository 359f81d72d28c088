"""The whole of dispatch, as the router calls it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from router_node.dispatch import Ask, NodeSpec, NodeState, Report, Reservation, Verdict
from shared.errors import LayaError
from shared.pb.laya.v1 import node_pb2
from tests.unit.dispatch.support import CAPACITY, MODEL, Bed


def test_dispatch_ids_begin_with_the_worker_and_never_repeat() -> None:
    bed = Bed(worker="host-7-abc")
    bed.node("a", max_num_seqs=0)
    ids = [bed.reserve(prompt_tokens=1, max_new_tokens=1).id for _ in range(100)]
    assert all(i.startswith(b"host-7-abc-") for i in ids) and len(set(ids)) == 100
    assert ids[15] == b"host-7-abc-10"


def test_a_request_s_life_leaves_nothing_behind() -> None:
    bed = Bed()
    node = bed.node("a")
    reservation = bed.reserve()
    assert node.reserved_tokens == bed.dispatcher.reserved_tokens == 160
    bed.report("a", CAPACITY - 160, counted_dispatches=(reservation.id.decode(),))
    assert bed.dispatcher.reserved_tokens == 0 and node.used == 160
    reservation.end()
    bed.report("a")
    assert node.used == 0 and node.room == CAPACITY and not node.uncounted


def test_a_report_may_be_the_message_itself() -> None:
    bed = Bed()
    node = bed.node("a")
    reservation = bed.reserve()
    message = node_pb2.WatchResponse(
        sequence=2,
        boot_id="boot",
        kv_capacity_tokens=CAPACITY,
        headroom_tokens=100,
        running=1,
        queued_prefill_tokens=7,
        prefill_tokens_per_second=123.0,
        counted_dispatches=[reservation.id.decode()],
        ready=True,
    )
    assert bed.dispatcher.on_report("a", message) is Verdict.ACCEPTED
    assert (node.headroom, node.queued, node.reserved_tokens, node.room) == (100, 7, 0, 100)


def test_what_a_request_leaves_open_is_filled_in() -> None:
    bed = Bed()
    bed.node("a", default_max_tokens=40)
    assert bed.reserve(prompt_tokens=24, max_new_tokens=0).tokens == 64
    guess = bed.reserve(prompt_tokens=0)
    assert guess.prompt_tokens == 256
    by_prefix = bed.reserve(prompt_tokens=0, prefix=(1, 2, 3))
    assert by_prefix.tokens == by_prefix.node.need(int(3.5 * 128) + 60)
    by_bytes = bed.reserve(prompt_tokens=7, prompt_bytes=4000)
    assert by_bytes.prompt_tokens == 1001
    assert bed.reserve(prompt_tokens=7, prompt_bytes=4000, exact=True).prompt_tokens == 7


def test_retry_goes_elsewhere_or_nowhere_and_ends_the_first() -> None:
    bed = Bed()
    bed.nodes(2)
    first = bed.reserve(session=b"s")
    second = bed.dispatcher.retry(first, {first.node.id})
    assert second is not None and second.node is not first.node and second.id != first.id
    assert first.ended and bed.dispatcher.reserved_tokens == second.tokens
    assert bed.dispatcher.retry(second, {"n0", "n1"}) is None
    assert second.ended and bed.dispatcher.reserved_tokens == 0
    assert bed.dispatcher.queued == 0


def test_retry_finds_the_one_node_left_among_many() -> None:
    bed = Bed()
    bed.nodes(100)
    excluded = {f"n{i}" for i in range(100) if i != 61}
    again = bed.dispatcher.retry(bed.reserve(), excluded)
    assert again is not None and again.node.id == "n61"
    bed.dispatcher.set_link("n61", False)
    assert bed.dispatcher.retry(again, excluded) is None


def test_retry_after_all_nodes_left_finds_none() -> None:
    bed = Bed()
    bed.node("a")
    reservation = bed.reserve()
    bed.dispatcher.remove_node("a")
    assert bed.dispatcher.retry(reservation, set()) is None
    assert bed.dispatcher.reserved_tokens == 0


def test_health_says_nothing_about_counts() -> None:
    bed = Bed()
    node = bed.node("a")
    bed.reserve()
    for up in (False, True, True, False, True):
        bed.dispatcher.set_link("a", up)
        assert node.reserved_tokens == 160
    bed.dispatcher.on_watch_reset("a")
    assert node.reserved_tokens == 160 and node.room == CAPACITY - 160


def test_a_restart_of_a_node_ends_no_reservation_by_itself() -> None:
    bed = Bed()
    node = bed.node("a")
    old = bed.reserve()
    bed.dispatcher.on_watch_reset("a")
    report = Report(1, "second boot", CAPACITY, CAPACITY, prefill_tokens_per_second=8000.0, full=True)
    assert bed.dispatcher.on_report("a", report) is Verdict.ACCEPTED
    assert node.reserved_tokens == old.tokens
    old.end()
    assert node.reserved_tokens == 0


def test_node_serves_once_it_is_connected_and_has_reported() -> None:
    bed = Bed()
    node = bed.dispatcher.add_node("a", "a:1", NodeSpec(MODEL))
    states = [(node.state, bed.dispatcher.ready)]
    bed.dispatcher.set_link("a", True)
    states.append((node.state, bed.dispatcher.ready))
    with pytest.raises(LayaError, match="1 starting"):
        bed.ask()
    bed.report("a")
    states.append((node.state, bed.dispatcher.ready))
    assert states == [("dark", False), ("starting", False), ("ready", True)]
    assert bed.reserve().node is node


def test_a_pool_that_has_fallen_silent_goes_on_serving() -> None:
    bed = Bed()
    bed.nodes(3)
    bed.clock.now += 3600
    assert len({bed.reserve().node.id for _ in range(30)}) == 3


def test_a_silent_idle_node_does_not_draw_what_speaking_ones_could_take() -> None:
    bed = Bed()
    bed.nodes(3)
    bed.clock.now += 60
    bed.report("n1", queued_prefill_tokens=400)
    bed.report("n2", queued_prefill_tokens=400)
    assert bed.reserve().node.id in {"n1", "n2"}


def test_unknown_nodes_are_nothing() -> None:
    bed = Bed()
    assert bed.dispatcher.on_report("x", Report(1)) is Verdict.UNKNOWN
    bed.dispatcher.set_link("x", True)
    bed.dispatcher.on_watch_reset("x")
    bed.dispatcher.remove_node("x")
    assert bed.dispatcher.node("x") is None and bed.dispatcher.resolve("x") == ()


def test_observed_nonsense_teaches_nothing() -> None:
    bed = Bed()
    node = bed.node("a")
    reservation = bed.reserve(session=b"s", prompt_bytes=100)
    learned = bed.dispatcher.resolve(MODEL)[0].learned
    before = (learned.bytes_per_token, repr(learned.session_shares), node.trust)
    for prompt, cached in ((0, 0), (-5, 0), (10, 11), (10, -1)):
        bed.dispatcher.observe(reservation, prompt, cached)
    assert before == (learned.bytes_per_token, repr(learned.session_shares), node.trust)
    bed.dispatcher.remove_node("a")
    bed.dispatcher.observe(reservation, 10, 5)


def test_share_of_a_session_found_by_the_ring_alone_is_learned() -> None:
    bed = Bed()
    bed.nodes(2)
    for i in range(100):
        reservation = bed.reserve(session=b"first-turn-%d" % i, prompt_tokens=100)
        bed.dispatcher.observe(reservation, 100, 0)
        reservation.end()
    assert bed.dispatcher.resolve(MODEL)[0].learned.session_share(100) < 0.02
    assert bed.reserve(session=b"another", prompt_tokens=100).prompt_tokens >= 98


def test_long_prompts_of_a_session_are_expected_on_the_ring_although_first_turns_are_not() -> None:
    bed = Bed()
    bed.nodes(2)
    for i in range(100):
        first, later = (
            bed.reserve(session=b"a%d" % i, prompt_tokens=100),
            bed.reserve(session=b"b%d" % i, prompt_tokens=3000),
        )
        bed.dispatcher.observe(first, 100, 0)
        bed.dispatcher.observe(later, 3000, 2900)
        first.end()
        later.end()
    learned = bed.dispatcher.resolve(MODEL)[0].learned
    assert learned.session_share(100) < 0.02 and learned.session_share(3000) > 0.9
    # And at lengths that nobody has asked for, who knows.
    assert learned.session_share(50_000) == 0.5 and learned.session_share(1 << 40) == 0.5


def test_a_refused_request_s_prefix_is_not_expected_there() -> None:
    bed = Bed()
    bed.node("a")
    first = bed.reserve(prefix=(1, 2, 3), prompt_tokens=500)
    bed.dispatcher.on_refused(first, 0.05)
    bed.clock.now += 1
    bed.report("a")
    assert bed.reserve(prefix=(1, 2, 3), prompt_tokens=500).expected_cached == 0


def test_same_seed_and_same_calls_give_the_same_choices() -> None:
    def run() -> list[str]:
        bed = Bed(seed=42)
        bed.nodes(20)
        out = []
        for i in range(200):
            got = bed.ask(prompt_tokens=50 + i % 7, session=b"s%d" % (i % 5) if i % 3 else b"")
            assert isinstance(got, Reservation)
            out.append(got.node.id)
            if i % 4:
                got.end()
        return out

    assert run() == run()


def test_the_package_imports_no_io() -> None:
    """Dispatch is pure: neither an event loop, nor sockets, nor protobuf come with it."""
    code = (
        "import sys; import router_node.dispatch; "
        "bad = {'asyncio', 'socket', 'selectors', 'google.protobuf', 'uvloop', 'logging', 'grpc'} & set(sys.modules); "
        "print(sorted(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_nodes_are_listed_by_id_and_carry_what_their_owner_hangs_on_them() -> None:
    bed = Bed()
    for name in ("c", "a", "b"):
        bed.node(name).upstream = name.upper()
    nodes: list[NodeState] = bed.dispatcher.nodes()
    assert [node.id for node in nodes] == ["a", "b", "c"]
    assert bed.reserve().node.upstream in {"A", "B", "C"}


def test_submit_with_an_alias_and_with_the_name_is_one_pool() -> None:
    bed = Bed()
    bed.node("a", aliases=("nick",))
    by_name = bed.dispatcher.submit(Ask(MODEL, session=b"s", prompt_tokens=100), bed.granted.append, bed.refused.append)
    by_alias = bed.reserve(model="nick", session=b"s", prompt_tokens=150)
    assert isinstance(by_name, Reservation)
    assert by_alias.expected_cached == 100
