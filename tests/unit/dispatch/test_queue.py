"""The order of those who wait."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import Ask, DispatchSettings
from router_node.dispatch.pool import Pool
from router_node.dispatch.queue import RETRY_MAX, RETRY_MIN, RETRY_UNKNOWN, Ticket, WaitQueue

AGEING = 2.0
POOL = Pool("m", "", DispatchSettings())


def queue_with(weights: Mapping[str, float] | None = None) -> WaitQueue:
    return WaitQueue(AGEING, weights or {})


def ticket(tenant: str = "", priority: int = 0, arrived: float = 0.0, total: int = 100) -> Ticket:
    ask = Ask("m", tenant=tenant, priority=priority, arrived=arrived)
    return Ticket(POOL, ask, total, total, arrived, arrived + 10, lambda _: None, lambda _: None, lambda _: None)


def drain(queue: WaitQueue, count: int | None = None, now: float = 0.0) -> list[Ticket]:
    out: list[Ticket] = []
    while (head := queue.head()) is not None and (count is None or len(out) < count):
        queue.take(head, now)
        out.append(head)
    return out


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    queue = queue_with()
    tickets = [ticket(arrived=float(i)) for i in range(20)]
    for each in tickets:
        queue.push(each)
    assert drain(queue) == tickets


def test_lower_priority_numbers_go_first_whatever_the_order_of_arrival() -> None:
    queue = queue_with()
    late, early, urgent = (ticket(priority=p, arrived=i * 0.1) for i, p in enumerate((5, 0, -3)))
    for each in (late, early, urgent):
        queue.push(each)
    assert drain(queue) == [urgent, early, late]


def test_waiting_long_enough_outranks_a_better_priority() -> None:
    queue = queue_with()
    patient = ticket(priority=1, arrived=0.0)
    queue.push(patient)
    fresh = ticket(priority=0, arrived=AGEING + 0.1)
    queue.push(fresh)
    assert drain(queue) == [patient, fresh]
    queue.push(ticket(priority=1, arrived=0.0))
    queue.push(ticket(priority=0, arrived=AGEING - 0.1))
    assert [each.priority for each in drain(queue)] == [0, 1]


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 30)), min_size=1, max_size=40))
def test_across_priorities_the_order_is_priority_plus_age(requests: list[tuple[int, float]]) -> None:
    queue = queue_with()
    tickets = [ticket(priority=p, arrived=a) for p, a in sorted(requests, key=lambda request: request[1])]
    for each in tickets:
        queue.push(each)
    served = drain(queue)
    assert served == sorted(tickets, key=lambda each: (each.priority * AGEING + each.arrived, each.priority))


def test_a_flood_of_one_tenant_delays_another_by_one_turn() -> None:
    queue = queue_with()
    for i in range(500):
        queue.push(ticket("flood", arrived=i * 1e-3))
    drain(queue, 10)
    single = ticket("small", arrived=1.0)
    queue.push(single)
    assert single in drain(queue, 2)


@pytest.mark.parametrize("weight", [1.0, 2.0, 4.0])
def test_tenants_share_tokens_by_weight(weight: float) -> None:
    queue = queue_with({"heavy": weight})
    rng = random.Random(1)
    for _ in range(600):
        queue.push(ticket("heavy", total=rng.randrange(50, 400)))
        queue.push(ticket("light", total=rng.randrange(50, 400)))
    tokens: Counter[str] = Counter()
    for each in drain(queue, 500):
        tokens[each.ask.tenant] += each.total
    assert tokens["heavy"] / tokens["light"] == pytest.approx(weight, rel=0.1)


def test_a_tenant_gets_no_second_turn_by_leaving_and_coming_back() -> None:
    queue = queue_with()
    for i in range(10):
        queue.push(ticket("steady", arrived=i * 0.01))
    turns = []
    for _ in range(8):
        if not queue.holds(Ask("m", tenant="popper")):
            queue.push(ticket("popper"))
        turns.append(drain(queue, 1)[0].ask.tenant)
    assert turns.count("popper") <= 5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=60), st.randoms(use_true_random=False))
def test_cancelled_tickets_are_never_served_and_all_others_are(
    requests: list[tuple[str, int]], rng: random.Random
) -> None:
    queue = queue_with()
    tickets = [ticket(tenant, priority, float(i)) for i, (tenant, priority) in enumerate(requests)]
    for each in tickets:
        queue.push(each)
    gone = [each for each in tickets if rng.random() < 0.4]
    for each in gone:
        queue.remove(each)
        queue.remove(each)
    assert len(queue) == len(tickets) - len(gone)
    for tenant in "abc":
        for priority in range(3):
            kept = any((t.ask.tenant, t.priority) == (tenant, priority) and t not in gone for t in tickets)
            assert queue.holds(Ask("m", tenant=tenant, priority=priority)) == kept
    served = drain(queue)
    assert set(served) == set(tickets) - set(gone)
    assert len(queue) == 0 and queue.head() is None and not any(each.waiting for each in tickets)
    for tenant in "abc":
        for priority in range(3):
            mine = [t for t in served if t.ask.tenant == tenant and t.ask.priority == priority]
            assert mine == sorted(mine, key=lambda t: t.arrived)


def test_after_the_head_come_the_first_of_other_tenants_and_none_twice() -> None:
    queue = queue_with()
    first_a, second_a = ticket("a", arrived=0), ticket("a", arrived=1)
    first_b = ticket("b", arrived=2)
    old_low = ticket("c", priority=1, arrived=-10)
    for each in (old_low, first_a, second_a, first_b):
        queue.push(each)
    order = list(queue.ahead())
    assert order == [old_low, first_a, first_b]
    assert queue.head() is old_low


def test_absurd_priorities_are_bounded() -> None:
    queue = queue_with()
    for priority in range(-2000, 2000, 7):
        queue.push(ticket(priority=priority))
    served = drain(queue)
    assert len({each.priority for each in served}) <= 201


def test_many_passing_tenants_do_not_starve_one_that_stays_and_leave_nothing_behind() -> None:
    queue = queue_with()
    stay = [ticket("stay", arrived=float(i)) for i in range(1000)]
    for each in stay:
        queue.push(each)
    for i in range(1000):
        queue.push(ticket(f"t{i}", arrived=1000.0 + i))
        drain(queue, 1)
    # Each turn it gets leaves one more tenant in line, so that its k-th turn comes after k others': 44 make 1,000.
    assert sum(not each.waiting for each in stay) >= 44
    while len(queue) > 1:
        drain(queue, 1)
    assert [len(level.flows) for level in queue._levels.values()] == [1]


def test_retry_hint_follows_the_drain_rate() -> None:
    queue = queue_with()
    assert queue.retry_after() == RETRY_UNKNOWN
    for _ in range(200):
        queue.push(ticket(arrived=0.0))
    for i in range(100):
        drain(queue, 1, now=i * 0.05)
    assert queue.retry_after() == pytest.approx(101 * 0.05, rel=0.05)
    for i in range(100):
        drain(queue, 1, now=5 + i * 0.001)
    assert RETRY_MIN <= queue.retry_after() <= 0.2
    for _ in range(10_000):
        queue.push(ticket())
    drain(queue, 1, now=20.0)
    drain(queue, 1, now=80.0)
    assert queue.retry_after() == RETRY_MAX
