"""Where a request's cache may be. ``test_picker`` has what comes of it."""

from __future__ import annotations

import random

from router_node.dispatch import Ask, NodeState, Reservation, hash_blocks
from router_node.dispatch.types import SESSION_NEXT, SESSION_RING, SESSION_RING_NEXT, Candidate
from tests.unit.dispatch.support import MODEL, Bed

TEXT = random.Random(7).randbytes(8192)


def bed_of(count: int, seed: int = 1) -> Bed:
    bed = Bed(seed)
    bed.nodes(count)
    return bed


def homes(bed: Bed, session: bytes, prompt: int = 1000, prefix: tuple[int, ...] = ()) -> list[Candidate]:
    """The candidates where other routers may have sent the session, its own record's first."""
    picker, pool = bed.dispatcher._picker, bed.dispatcher.resolve(MODEL)[0]
    keys = picker.keys(pool, Ask(MODEL, session=session, prefix=prefix))
    found = picker.affine(pool, keys, prompt)
    picker.homes(pool, keys, prompt, found)
    return found


def send(bed: Bed, node: NodeState, session: bytes) -> Reservation:
    """A request of the session that only this node may take."""
    for other in bed.dispatcher.nodes():
        bed.dispatcher.set_serving(other.id, other is node)
    reservation = bed.reserve(session=session, prompt_tokens=400)
    for other in bed.dispatcher.nodes():
        bed.dispatcher.set_serving(other.id, True)
    assert reservation.node is node
    return reservation


def test_routers_that_do_not_talk_look_for_a_session_at_the_same_two_nodes() -> None:
    beds = [bed_of(8, seed) for seed in range(3)]
    seconds = set()
    for i in range(50):
        named = [[(node.id, why, guess) for node, _, why, guess in homes(bed, b"s-%d" % i)] for bed in beds]
        assert named[0] == named[1] == named[2]
        (first, _, _), (second, why, guess) = named[0]
        assert first != second and why == SESSION_NEXT and guess
        seconds.add(second)
    assert len(seconds) == 8  # what is too much for one node falls on all the others


def test_a_session_on_record_elsewhere_is_also_looked_for_where_others_go() -> None:
    bed = bed_of(8)
    first, second = (candidate[0] for candidate in homes(bed, b"s"))
    elsewhere = next(node for node in bed.dispatcher.nodes() if node not in (first, second))
    send(bed, elsewhere, b"s").end()
    found = homes(bed, b"s")
    assert [(node, why) for node, _, why, _ in found] == [
        (elsewhere, "session"),
        (first, SESSION_RING),
        (second, SESSION_RING_NEXT),
    ]
    assert found[0][1] == 400 and not found[0][3] and found[1][3] and found[2][3]


def test_a_node_that_is_gone_is_passed_over_by_all() -> None:
    beds = [bed_of(8, seed) for seed in range(2)]
    first = homes(beds[0], b"s")[0][0]
    for bed in beds:
        bed.dispatcher.set_link(first.id, False)
    named = [[node.id for node, _, _, _ in homes(bed, b"s")] for bed in beds]
    assert named[0] == named[1] and len(named[0]) == 2 and first.id not in named[0]


def test_what_is_found_at_each_is_learned_by_itself() -> None:
    bed = bed_of(8)
    pool = bed.dispatcher.resolve(MODEL)[0]
    for _ in range(200):
        pool.learned.guess(SESSION_NEXT, 0.9, 1000)
        pool.learned.guess(SESSION_RING, 0.6, 1000)
    (_, at_first, _, _), (_, at_second, _, _) = homes(bed, b"s")
    assert at_first == 500 and 880 < at_second <= 900
    assert pool.learned.session_share(1000, SESSION_RING) > 0.59


def test_blocks_that_are_known_there_are_no_guess() -> None:
    bed = bed_of(8)
    prefix = hash_blocks(TEXT)
    second = homes(bed, b"s")[1][0]
    for other in bed.dispatcher.nodes():
        bed.dispatcher.set_serving(other.id, other is second)
    bed.reserve(prefix=prefix, prompt_tokens=2000).end()
    found = homes(bed, b"s", 2000, prefix)
    assert (second, 2000, "prefix", False) in found
