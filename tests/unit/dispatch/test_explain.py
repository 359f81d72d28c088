"""The choice, explained."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_node.dispatch import Ask, CandidateTerms, Explanation, NodeState, Reservation, cost, hash_blocks
from router_node.dispatch.unseen import FROM_SECONDS
from shared.errors import LayaError
from shared.pb.laya.v1 import admin_pb2
from tests.unit.dispatch.support import CAPACITY, MODEL, Bed

TEXT = random.Random(7).randbytes(8192)


def explain(bed: Bed, **ask: Any) -> Explanation:
    ask.setdefault("prompt_tokens", 100)
    ask.setdefault("max_new_tokens", 60)
    return bed.dispatcher.explain(Ask(ask.pop("model", MODEL), **ask))


def test_terms_have_the_names_of_the_message() -> None:
    assert set(CandidateTerms._fields) == {field.name for field in admin_pb2.Candidate.DESCRIPTOR.fields}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 1024)), min_size=1, max_size=8),
    st.lists(
        st.tuples(
            st.sampled_from((b"", b"s", b"t")),
            st.integers(0, 16),
            st.integers(1, 9000),
            st.sampled_from(("", "a")),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 99),
    st.booleans(),
)
def test_what_is_explained_is_what_then_happens(
    loads: list[tuple[int, int]], asks: list[tuple[bytes, int, int, str, bool]], seed: int, strict: bool
) -> None:
    bed = Bed(seed, require_session_affinity=strict)
    for i, (queued, room) in enumerate(loads):
        bed.node(f"n{i}")
        bed.report(f"n{i}", 16 * room, queued_prefill_tokens=queued)
    for session, blocks, prompt, tenant, end in asks:
        ask = {
            "session": session,
            "prefix": hash_blocks(TEXT[: 512 * blocks]),
            "prompt_tokens": prompt,
            "tenant": tenant,
        }
        told = explain(bed, **ask)
        assert told == explain(bed, **ask)
        alone = not bed.dispatcher.queued
        got = bed.ask(**ask)
        if not alone:
            continue
        if isinstance(got, Reservation):
            assert told.node_id == got.node.id
            assert told.candidates[0].node_id == got.node.id
            assert told.candidates[0].reason == got.reason
            assert told.candidates[0].uncached_prompt_tokens == pytest.approx(got.prompt_tokens, abs=1)
            if end:
                got.end()
        else:
            assert told.node_id == ""
            assert told.summary.startswith("The request would wait")


def test_every_term_is_shown() -> None:
    bed = Bed()
    bed.node("a")
    bed.report("a", CAPACITY - 1600, queued_prefill_tokens=800)
    bed.reserve(prompt_tokens=240, max_new_tokens=80).end()
    held = bed.reserve(prompt_tokens=240, max_new_tokens=80)
    (terms,) = explain(bed, prompt_tokens=100, max_new_tokens=60).candidates
    share = (1600 + held.tokens + 160) / CAPACITY
    assert terms.node_id == "a" and terms.reason == "headroom"
    assert (terms.queued_tokens, terms.reserved_tokens, terms.uncached_prompt_tokens) == (800, 240, 100)
    assert terms.prefill_rate == pytest.approx(8000)
    assert terms.kv_share == pytest.approx(share)
    assert terms.barrier_seconds == pytest.approx(cost.barrier(share))
    assert terms.cost_seconds == pytest.approx((800 + 240 + cost.WORK_WEIGHT * 100) / 8000 + cost.barrier(share))


TERMS = (
    "pending_seconds",
    "reserved_seconds",
    "prompt_seconds",
    "step_seconds",
    "barrier_seconds",
    "unseen_seconds",
    "stale_seconds",
    "penalty_seconds",
)


def test_terms_are_all_that_are_in_seconds() -> None:
    assert {*TERMS, "cost_seconds"} == {name for name in CandidateTerms._fields if name.endswith("_seconds")}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9000),  # queued
            st.integers(0, 900),  # blocks of room
            st.floats(0, 1),  # hit rate
            st.integers(0, 20),  # running
            st.floats(0, 5),  # seconds since the report
            st.booleans(),  # refused of late
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 4),
    st.integers(1, 6000),
)
def test_terms_sum_to_the_cost_by_which_the_node_is_chosen(
    loads: list[tuple[int, int, float, int, float, bool]], sent: int, prompt: int
) -> None:
    bed = Bed(7)
    pool_of: Any = bed.nodes(len(loads))[0].pool
    begun = bed.clock.now
    for i, (queued, room, hits, running, age, refused) in enumerate(loads):
        bed.clock.now = begun + 5.0 - age
        bed.report(
            f"n{i}",
            16 * room,
            queued_prefill_tokens=queued,
            prefix_hit_rate=hits,
            running=running,
            decode_tokens_per_second=500.0,
        )
        if refused:
            bed.dispatcher.on_refused(f"n{i}", 0.2)
    bed.clock.now = begun + 5.0
    for _ in range(sent):
        bed.ask(prompt_tokens=prompt, session=b"s", prefix=hash_blocks(TEXT[:2048]))
    told = explain(bed, prompt_tokens=prompt, session=b"s", prefix=hash_blocks(TEXT))
    hidden = pool_of.unseen.tokens * pool_of.quickest > FROM_SECONDS
    for terms in told.candidates:
        total = sum(getattr(terms, name) for name in TERMS)
        node: Any = bed.dispatcher.node(terms.node_id)
        need = node.need(prompt + 60)
        more = need + pool_of.unseen.beside(prompt + 60) if hidden else need
        uncached = terms.prompt_seconds / terms.prompt_weight / node.inv_rate
        assert total == pytest.approx(cost.score(node, more, uncached, bed.clock.now))
        assert math.isinf(terms.cost_seconds) or terms.cost_seconds == pytest.approx(total)
        assert terms.pending_tokens <= terms.queued_tokens


def test_what_other_routers_may_send_unseen_is_a_term() -> None:
    bed = Bed(3)
    bed.nodes(4)
    for _ in range(200):
        for i in range(4):
            bed.report(f"n{i}", CAPACITY - 4096, running=40)
    for _ in range(8):
        bed.reserve(prompt_tokens=800)
    told = explain(bed, prompt_tokens=800)
    assert all(terms.unseen_seconds > 0 for terms in told.candidates)
    # Drawn, not the cheapest, at least once in so many: then the summary says so.
    summaries = set()
    for _ in range(60):
        summaries.add("unseen" in explain(bed, prompt_tokens=800).summary)
        bed.reserve(prompt_tokens=16).end()
    assert True in summaries


def test_those_left_out_say_why() -> None:
    bed = Bed(draws=1)
    for name in ("dark", "draining", "full", "seats", "shut", "starting", "busy", "crowded", "fine"):
        bed.node(name, max_num_seqs=2)
    bed.dispatcher.set_link("dark", False)
    bed.report("draining", draining=True)
    bed.report("full", 16)
    bed.report("seats", running=3)
    bed.report("shut", closed_reason="memory is short")
    bed.report("starting", ready=False)
    bed.report("busy", queued_prefill_tokens=10_000)
    bed.report("crowded", queued_prefill_tokens=100_000)
    told = explain(bed)
    assert told.node_id == "fine" and "fine is chosen" in told.summary
    reasons = {terms.node_id: terms.reason for terms in told.candidates}
    assert reasons == {
        "fine": "headroom",
        "dark": "dark",
        "draining": "draining",
        "full": "no room: 16 tokens free of 160 needed",
        "seats": "no sequence free of 2",
        "shut": "closed: memory is short",
        "starting": "starting",
        "busy": "not drawn: others were as good or better",
        "crowded": "12.5 s of prefill ahead of it, more than 2.0 s",
    }
    assert all(math.isinf(terms.cost_seconds) == (terms.node_id != "fine") for terms in told.candidates)


def test_the_list_is_bounded_and_the_candidates_come_first() -> None:
    bed = Bed()
    bed.nodes(200)
    told = bed.dispatcher.explain(Ask(MODEL, session=b"s", prompt_tokens=10), limit=10)
    assert len(told.candidates) == 10
    assert told.candidates[0].node_id == told.node_id
    costs = [terms.cost_seconds for terms in told.candidates if not terms.reason.startswith("not drawn")]
    assert costs == sorted(costs)


def test_explaining_changes_nothing() -> None:
    def state_of(node: NodeState) -> tuple[object, ...]:
        return tuple(getattr(node, name) for name in dir(node) if not name.startswith("_") and name != "need")

    bed = Bed()
    bed.nodes(5)
    bed.reserve(session=b"s", prefix=hash_blocks(TEXT))
    picker = bed.dispatcher._picker
    before = [state_of(node) for node in bed.dispatcher.nodes()]
    tables = (list(picker.sessions._values), list(picker.prefixes._entries.items()), picker.rng.getstate())
    for _ in range(20):
        explain(bed, session=b"s", prefix=hash_blocks(TEXT))
        explain(bed, session=b"new", prompt_tokens=9000)
    assert before == [state_of(node) for node in bed.dispatcher.nodes()]
    assert tables == (list(picker.sessions._values), list(picker.prefixes._entries.items()), picker.rng.getstate())


def test_what_stands_in_the_way_of_a_request_is_said() -> None:
    bed = Bed()
    bed.nodes(2, headroom=0)
    assert "no node has room for 160 tokens" in explain(bed).summary
    bed.wait()
    bed.wait()
    assert "2 others wait before it" in explain(bed).summary
    with pytest.raises(LayaError, match="No model is named"):
        explain(bed, model="other")
    with pytest.raises(LayaError, match="holds 16384 tokens"):
        explain(bed, prompt_tokens=90_000)
    bed.dispatcher.set_link("n0", False)
    bed.dispatcher.set_link("n1", False)
    assert {terms.reason for terms in explain(bed, tenant="t").candidates} == {"dark"}
