"""Who gets the room that is freed, and who has waited too long."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_node.dispatch import Ask, Reservation, Ticket
from router_node.dispatch.waiting import LOOK_AHEAD
from shared.errors import Code, LayaError
from tests.unit.dispatch.support import MODEL, Bed


def full(nodes: int = 1, **settings: object) -> Bed:
    """Nodes without any room."""
    bed = Bed(**settings)  # type: ignore[arg-type]
    bed.nodes(nodes, headroom=0)
    return bed


def test_a_report_of_room_wakes_those_who_wait_in_order() -> None:
    bed = full()
    tickets = [bed.wait(prompt_tokens=10 + i, max_new_tokens=1) for i in range(3)]
    bed.clock.now += 0.5
    bed.report("n0", 32)
    assert [granted.ask for granted in bed.granted] == [ticket.ask for ticket in tickets[:2]]
    assert bed.granted[0].waited == pytest.approx(0.5)
    bed.report("n0", 32, counted_dispatches=[granted.id for granted in bed.granted])
    assert len(bed.granted) == 3 and bed.dispatcher.queued == 0


def test_an_ended_reservation_wakes_those_who_wait() -> None:
    bed = Bed()
    bed.node("a", headroom=160)
    first = bed.reserve(prompt_tokens=100, max_new_tokens=60)
    bed.wait(prompt_tokens=100, max_new_tokens=60)
    first.end()
    assert len(bed.granted) == 1 and bed.granted[0].node is first.node


def test_links_readiness_and_new_nodes_wake_those_who_wait() -> None:
    bed = full()
    bed.wait()
    bed.node("fresh")
    assert [granted.node.id for granted in bed.granted] == ["fresh"]
    bed.report("fresh", closed_reason="memory")
    bed.report("n0", 0)
    bed.wait()
    bed.report("fresh", closed_reason="")
    assert len(bed.granted) == 2
    bed.dispatcher.set_link("fresh", False)
    bed.wait()
    bed.dispatcher.set_link("fresh", True)
    assert len(bed.granted) == 3


def test_a_cancelled_ticket_is_never_called_and_cancel_is_idempotent() -> None:
    bed = full()
    ticket = bed.wait()
    ticket.cancel()
    ticket.cancel()
    bed.report("n0")
    bed.clock.now += 100
    bed.dispatcher.expire(bed.clock.now)
    assert not bed.granted and not bed.refused and bed.dispatcher.queued == 0


def test_a_granted_ticket_cannot_be_cancelled_any_more() -> None:
    bed = full()
    ticket = bed.wait()
    bed.report("n0")
    ticket.cancel()
    assert len(bed.granted) == 1 and bed.granted[0].held


def test_waiting_ends_after_the_timeout_with_a_hint() -> None:
    bed = full(timeout=2.0)
    bed.wait()
    assert bed.woken == [bed.clock.now + 2.0]
    assert bed.dispatcher.expire(bed.clock.now + 1.9) == bed.clock.now + 2.0
    bed.clock.now += 2.0
    assert bed.dispatcher.expire(bed.clock.now) is None
    (error,) = bed.refused
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
    assert error.retry_after is not None and "160 tokens" in error.message


def test_waiting_ends_at_the_request_s_own_deadline() -> None:
    bed = full()
    bed.wait(deadline=bed.clock.now + 0.5)
    bed.clock.now += 0.5
    bed.dispatcher.expire(bed.clock.now)
    assert [(error.code, error.reason) for error in bed.refused] == [(Code.DEADLINE_EXCEEDED, "DEADLINE")]
    with pytest.raises(LayaError) as caught:
        bed.ask(deadline=bed.clock.now - 0.1)
    assert caught.value.reason == "DEADLINE"


def test_waiting_for_nodes_that_all_went_dark_says_so() -> None:
    bed = full()
    bed.wait()
    bed.dispatcher.set_link("n0", False)
    with pytest.raises(LayaError) as caught:
        bed.ask()
    assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "NO_NODE")
    bed.clock.now += 11
    bed.dispatcher.expire(bed.clock.now)
    assert bed.refused[0].reason == "NO_NODE"


def test_the_line_is_bounded() -> None:
    bed = full(max_queued=5)
    for _ in range(5):
        bed.wait()
    with pytest.raises(LayaError) as caught:
        bed.ask()
    assert (caught.value.code, caught.value.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert caught.value.retry_after is not None


def test_the_earliest_wake_up_is_announced_and_only_when_it_moves_forward() -> None:
    bed = full()
    now = bed.clock.now
    bed.wait(deadline=now + 5)
    bed.wait(deadline=now + 7)
    bed.wait(deadline=now + 3)
    assert bed.woken == [now + 5, now + 3]
    assert bed.dispatcher.expire(now) == now + 3


def test_newcomers_do_not_pass_those_who_could_use_the_same_room() -> None:
    bed = full()
    first = bed.wait(prompt_tokens=100, max_new_tokens=60)
    bed.report("n0", 150)
    late = bed.ask(prompt_tokens=10, max_new_tokens=6)  # it would fit, but would be served for ever before the first
    assert isinstance(late, Ticket) and first.waiting


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Two nodes whose room is always taken by small requests at once; one of them is kept for the large one."""
    bed = Bed(timeout=100.0)
    bed.nodes(2, capacity=1600, headroom=1600)
    small = [bed.reserve(prompt_tokens=60, max_new_tokens=100) for _ in range(20)]
    large = bed.wait(prompt_tokens=600, max_new_tokens=800, tenant="large")
    for step in range(60):
        bed.clock.now += 0.1
        small.pop(0).end()
        small += bed.granted
        bed.granted.clear()
        if not large.waiting:
            break
        got = bed.ask(prompt_tokens=60, max_new_tokens=100, tenant=f"small-{step}")
        if isinstance(got, Reservation):
            small.append(got)
    else:
        pytest.fail("the large request was never served")
    assert any(reservation.ask is large.ask for reservation in small)


def test_what_was_kept_for_a_request_that_gave_up_goes_to_others() -> None:
    bed = Bed()
    bed.nodes(2, capacity=1600, headroom=480)
    large = bed.wait(prompt_tokens=800, max_new_tokens=400, tenant="large")
    bed.reserve(prompt_tokens=400, max_new_tokens=80)
    small = bed.wait(prompt_tokens=400, max_new_tokens=80, tenant="small")
    assert small.waiting
    large.cancel()
    assert [granted.ask for granted in bed.granted] == [small.ask]


def test_priorities_decide_who_gets_the_room() -> None:
    bed = full()
    bed.wait(priority=5)
    bed.wait(priority=0)
    bed.wait(priority=-5)
    bed.report("n0", 16_384)
    assert [granted.ask.priority for granted in bed.granted] == [-5, 0, 5]


def test_while_others_wait_a_node_gets_no_more_prefill_than_the_pace() -> None:
    """A joining node does not swallow the whole line: what waits in the router can still be ordered."""
    bed = full(pace=0.25)
    for _ in range(60):
        bed.wait(prompt_tokens=500, max_new_tokens=12)
    bed.node("fresh", capacity=1 << 20)
    taken = len(bed.granted)
    assert 4 <= taken <= 6
    bed.report("fresh", 1 << 20, capacity=1 << 20, counted_dispatches=[granted.id for granted in bed.granted])
    assert len(bed.granted) > taken


def test_callbacks_may_end_and_submit_at_once() -> None:
    bed = full()
    order: list[str] = []

    def grant(reservation: Reservation) -> None:
        order.append("granted")
        reservation.end()
        if len(order) < 6:
            bed.dispatcher.submit(Ask(MODEL, prompt_tokens=100, max_new_tokens=60), grant, bed.refused.append)

    for _ in range(3):
        bed.dispatcher.submit(Ask(MODEL, prompt_tokens=100, max_new_tokens=60), grant, bed.refused.append)
    bed.report("n0", 160)
    assert len(order) == 3 + 5
    assert bed.dispatcher.reserved_tokens == 0 and bed.dispatcher.queued == 0


def test_a_callback_that_fails_leaks_nothing_and_stops_nobody() -> None:
    bed = full()

    def fail(_: Reservation) -> None:
        raise RuntimeError("planted")

    bed.dispatcher.submit(Ask(MODEL, prompt_tokens=10, max_new_tokens=6), fail, bed.refused.append)
    bed.wait(prompt_tokens=10, max_new_tokens=6)
    with pytest.raises(RuntimeError, match="planted"):
        bed.report("n0", 16)
    assert bed.dispatcher.reserved_tokens == 0
    bed.report("n0", 16)
    assert len(bed.granted) == 1


# Explaining a failure of a state machine takes longer than finding it.
NO_EXPLAIN = tuple(phase for phase in Phase if phase is not Phase.explain)


class Line(RuleBasedStateMachine):
    """Small nodes, many requests: nothing is overrun, nobody is told twice, no room lies idle beside one who fits."""

    CAPACITY = 640

    @initialize(nodes=st.integers(1, 3), strict=st.booleans())
    def begin(self, nodes: int, strict: bool) -> None:
        self.bed = Bed(max_queued=30, timeout=5.0, require_session_affinity=strict)
        self.dispatcher = self.bed.dispatcher
        self.holds: dict[str, dict[bytes, int]] = {}
        self.listed: set[bytes] = set()
        self.open: list[Reservation] = []
        self.waiting: list[Ticket] = []
        self.told: list[object] = []
        for i in range(nodes):
            self.holds[f"n{i}"] = {}
            self.bed.node(f"n{i}", capacity=self.CAPACITY)

    def granted(self, reservation: Reservation) -> None:
        self.told.append(reservation.ask)
        self.take(reservation)

    def take(self, reservation: Reservation) -> None:
        node = self.holds[reservation.node.id]
        node[reservation.id] = reservation.tokens
        assert sum(node.values()) <= self.CAPACITY  # the node would have to refuse it
        self.open.append(reservation)

    @rule(
        tokens=st.integers(1, 640),
        tenant=st.sampled_from(("a", "b")),
        priority=st.integers(-1, 1),
        session=st.sampled_from((b"", b"", b"s", b"t")),
        deadline=st.one_of(st.none(), st.floats(0.1, 8.0)),
    )
    def submit(self, tokens: int, tenant: str, priority: int, session: bytes, deadline: float | None) -> None:
        now = self.bed.clock.now
        ask = Ask(
            MODEL,
            prompt_tokens=(tokens + 1) // 2,
            max_new_tokens=max(1, tokens // 2),
            tenant=tenant,
            priority=priority,
            session=session,
            deadline=None if deadline is None else now + deadline,
        )
        try:
            got = self.dispatcher.submit(ask, self.granted, lambda _: self.told.append(ask))
        except LayaError as error:
            assert error.reason == "QUEUE_FULL"
            assert self.dispatcher.queued == 30
            return
        if isinstance(got, Reservation):
            self.take(got)
        else:
            self.waiting.append(got)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 50))
    def finish(self, which: int) -> None:
        reservation = self.open.pop(which % len(self.open))
        del self.holds[reservation.node.id][reservation.id]
        if not reservation.held:
            self.report(int(reservation.node.id[1:]))
        reservation.end()

    @rule(which=st.integers(0, 2))
    def report(self, which: int) -> None:
        name = f"n{which % len(self.holds)}"
        holds = self.holds[name]
        fresh = [i for i in holds if i not in self.listed]
        self.listed.update(fresh)
        # A snapshot: what the report's own consequences add to the node is not in it.
        self.bed.report(
            name, self.CAPACITY - sum(holds.values()), capacity=self.CAPACITY, counted_dispatches=list(fresh)
        )

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 50))
    def cancel(self, which: int) -> None:
        ticket = self.waiting.pop(which % len(self.waiting))
        before = self.told.count(ticket.ask)
        ticket.cancel()
        assert self.told.count(ticket.ask) == before

    @rule(seconds=st.floats(0.0, 3.0))
    def pass_time(self, seconds: float) -> None:
        self.bed.clock.now += seconds
        after = self.dispatcher.expire(self.bed.clock.now)
        assert after is None or after > self.bed.clock.now
        for ticket in self.waiting:
            assert not ticket.waiting or ticket.expires > self.bed.clock.now

    @rule(which=st.integers(0, 2))
    def flap(self, which: int) -> None:
        name = f"n{which % len(self.holds)}"
        self.dispatcher.set_link(name, False)
        self.dispatcher.set_link(name, True)

    @invariant()
    def everybody_is_told_once_and_only_those_who_wait_are_counted(self) -> None:
        self.waiting = [ticket for ticket in self.waiting if ticket.waiting or self.told.count(ticket.ask) != 1]
        assert all(ticket.waiting for ticket in self.waiting)
        assert self.dispatcher.queued == len(self.waiting)
        assert not any(self.told.count(ticket.ask) for ticket in self.waiting)

    @invariant()
    def nobody_near_the_front_waits_beside_room_that_is_theirs(self) -> None:
        pool = self.dispatcher.resolve(MODEL)[0]
        ahead = list(pool.queue.ahead())[:LOOK_AHEAD]
        for node in self.dispatcher.nodes():
            if not self.dispatcher._waiting.allows(node):
                continue
            for ticket in ahead:
                fits = node.free >= node.need(ticket.total)
                kept = self.dispatcher._waiting.kept_from(pool, ticket.priority, ticket.arrived)
                mine = pool.earmark is not node or pool.earmarked is ticket or not kept
                assert not (fits and mine and self.dispatcher._required(ticket) in (None, node))

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        for node in self.dispatcher.nodes():
            assert node.used <= node.capacity
            assert node.reserved_tokens == sum(r.tokens for r in self.open if r.node is node and r.held)

    def teardown(self) -> None:
        if not hasattr(self, "bed"):
            return
        for ticket in self.waiting:
            ticket.cancel()
        while self.open:
            self.finish(0)
        assert self.dispatcher.queued == 0 and self.dispatcher.reserved_tokens == 0
        pool = self.dispatcher.resolve(MODEL)[0]
        assert pool.earmark is None and pool.earmarked is None
        assert self.dispatcher.expire(self.bed.clock.now + 100) is None


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=120, stateful_step_count=60, deadline=None, phases=NO_EXPLAIN)
