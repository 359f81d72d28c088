"""Reservations and reports are exact under loss, reordering, reconnects and restarts; a perfect observer is the oracle.

The node here is the simplest one that keeps the protocol: it holds what was delivered to it, and lists in each report
the dispatches of the watcher that it counts for the first time. The wire between may lose and reorder reports,
dispatches may be late, and everything may restart. The observer sees all of it, and says after each step what the
router must believe.
"""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_node.dispatch import Report, Reservation, Verdict
from tests.unit.dispatch.support import MODEL, Bed

CAPACITY = 1 << 20


# Explaining a failure of a state machine takes longer than finding it.
NO_EXPLAIN = tuple(phase for phase in Phase if phase is not Phase.explain)


class Node:
    """A node as it really is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = 1
        self.holds: dict[bytes, int] = {}
        self.ended: set[bytes] = set()  # dispatches of this boot that it has finished
        self.begin_watch()

    def begin_watch(self) -> None:
        self.sequence = 0
        self.listed: set[bytes] = set()

    def restart(self) -> None:
        self.boot += 1
        self.holds.clear()
        self.begin_watch()


class Sent:
    """A report on the wire, and what the node held when it was made."""

    def __init__(self, report: Report, held: dict[bytes, int]) -> None:
        self.report = report
        self.held = held
        self.ids = {i.encode() if isinstance(i, str) else i for i in report.counted_dispatches}


class Exactness(RuleBasedStateMachine):
    """One router worker and two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0
        self.nodes = {name: Node(name) for name in ("a", "b")}
        self.wires: dict[str, list[Sent]] = {"a": [], "b": []}
        self.believed: dict[str, dict[bytes, int]] = {"a": {}, "b": {}}  # holds behind the numbers the router goes by
        self.counted: set[bytes] = set()  # ids that some report has told the router of
        self.missing: dict[str, set[bytes]] = {"a": set(), "b": set()}  # ids in lost or overtaken reports of this watch
        self.missed: dict[str, set[bytes]] = {"a": set(), "b": set()}  # and of those before, until the full report
        self.heard: dict[str, int] = {"a": 0, "b": 0}  # the latest report of this watch that was believed
        self.others = 0

    @initialize()
    def begin(self) -> None:
        self.start_worker()

    def start_worker(self) -> None:
        self.generation += 1
        self.bed = Bed(worker=f"w{self.generation}")
        self.dispatcher = self.bed.dispatcher
        self.open: dict[bytes, tuple[Reservation, int]] = {}  # streams, with the boot they go to
        self.under_way: list[bytes] = []  # dispatched, not yet at the node
        self.counted.clear()
        for name in self.nodes:
            self.missing[name].clear()
            self.missed[name].clear()
        for node in self.nodes.values():
            self.bed.node(node.name, capacity=CAPACITY)
            self.rewatch(node)
            self.send_report(node)
            self.deliver(node, 0)

    def rewatch(self, node: Node) -> None:
        """The watch stream is opened anew; what was on the old one is gone."""
        self.missed[node.name] |= self.missing[node.name].union(*(sent.ids for sent in self.wires[node.name]))
        self.missing[node.name].clear()
        self.wires[node.name].clear()
        self.heard[node.name] = 0
        node.begin_watch()
        self.dispatcher.on_watch_reset(node.name)

    def send_report(self, node: Node) -> None:
        node.sequence += 1
        mine = [i for i in node.holds if i.startswith(f"w{self.generation}-".encode())]
        full = node.sequence == 1
        fresh = [i for i in mine if full or i not in node.listed]
        node.listed.update(fresh)
        report = Report(
            node.sequence,
            f"boot-{node.boot}",
            CAPACITY,
            CAPACITY - sum(node.holds.values()),
            running=len(node.holds),
            prefill_tokens_per_second=8000.0,
            counted_dispatches=[i.decode() for i in fresh],
            full=full,
        )
        self.wires[node.name].append(Sent(report, dict(node.holds)))

    def deliver(self, node: Node, at: int) -> None:
        wire = self.wires[node.name]
        sent = wire.pop(at)
        verdict = self.dispatcher.on_report(node.name, sent.report)
        assert verdict is self.due(node, sent.report)
        if verdict is Verdict.WAITING_FULL:
            self.missing[node.name] |= sent.ids
            return
        self.counted |= sent.ids
        self.missing[node.name] -= sent.ids
        if sent.report.full:
            self.missed[node.name].clear()
        self.heard[node.name] = max(self.heard[node.name], sent.report.sequence)
        if verdict in (Verdict.ACCEPTED, Verdict.GAP):
            self.believed[node.name] = sent.held

    def due(self, node: Node, report: Report) -> Verdict:
        """What the router must make of a report."""
        heard = self.heard[node.name]
        if not heard and not report.full:
            return Verdict.WAITING_FULL
        if report.sequence < heard:
            return Verdict.STALE
        return Verdict.ACCEPTED if report.full or report.sequence == heard + 1 else Verdict.GAP

    # What may happen.

    @rule(prompt=st.integers(1, 400), late=st.booleans())
    def dispatch(self, prompt: int, late: bool) -> None:
        reservation = self.bed.reserve(prompt_tokens=prompt, max_new_tokens=16)
        assert reservation.id.startswith(f"w{self.generation}-".encode())
        self.open[reservation.id] = (reservation, self.nodes[reservation.node.id].boot)
        self.under_way.append(reservation.id)
        if not late:
            self.arrive()

    @precondition(lambda self: self.under_way)
    @rule()
    def arrive(self) -> None:
        dispatch_id = self.under_way.pop()
        reservation, boot = self.open[dispatch_id]
        node = self.nodes[reservation.node.id]
        if node.boot == boot:
            node.holds[dispatch_id] = reservation.tokens

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5), node_first=st.booleans())
    def finish(self, which: int, node_first: bool) -> None:
        """A stream ends: by its node, which then reports, or by the client, which the node learns of a little later."""
        dispatch_id = list(self.open)[which % len(self.open)]
        reservation, _ = self.open.pop(dispatch_id)
        node = self.nodes[reservation.node.id]
        if dispatch_id in self.under_way:
            self.under_way.remove(dispatch_id)
        if node_first:
            node.holds.pop(dispatch_id, None)
            self.send_report(node)
        reservation.end()
        reservation.end()
        node.holds.pop(dispatch_id, None)

    @rule()
    def report(self) -> None:
        for node in self.nodes.values():
            self.send_report(node)

    @rule(which=st.sampled_from((0, 0, 1, -1)))
    def deliver_one_each(self, which: int) -> None:
        for name, node in self.nodes.items():
            wire = self.wires[name]
            if wire:
                at = which % len(wire)
                for overtaken in wire[:at]:
                    self.missing[name] |= overtaken.ids
                self.deliver(node, at)

    @rule(name=st.sampled_from("ab"), at=st.integers(0, 3))
    def lose(self, name: str, at: int) -> None:
        wire = self.wires[name]
        if at < len(wire):
            self.missing[name] |= wire.pop(at).ids

    @rule(
        kind=st.sampled_from(("watch", "watch", "node", "worker")), name=st.sampled_from("ab"), sure=st.integers(0, 3)
    )
    def disaster(self, kind: str, name: str, sure: int) -> None:
        """The watch breaks, the node dies, or the router's worker does. Rare, so that much happens in between."""
        node = self.nodes[name]
        if sure:
            return
        if kind == "worker":  # a new one knows nothing; the nodes hold the old one's requests until they notice
            self.start_worker()
            return
        if kind == "node":
            node.restart()
        self.rewatch(node)
        self.send_report(node)
        for dispatch_id, (reservation, boot) in list(self.open.items()):
            if reservation.node.id == name and boot != node.boot:  # its stream breaks with its process
                self.open.pop(dispatch_id)
                if dispatch_id in self.under_way:
                    self.under_way.remove(dispatch_id)
                reservation.end()

    @rule(name=st.sampled_from("ab"), tokens=st.integers(1, 40))
    def other_router_sends(self, name: str, tokens: int) -> None:
        self.others += 1
        self.nodes[name].holds[b"x-%d" % self.others] = 16 * tokens

    @rule(name=st.sampled_from("ab"))
    def others_end(self, name: str) -> None:
        node = self.nodes[name]
        prefix = f"w{self.generation}-".encode()
        node.holds = {i: tokens for i, tokens in node.holds.items() if i.startswith(prefix)}

    @rule(name=st.sampled_from("ab"))
    def flap_link(self, name: str) -> None:
        """Health says nothing about counts."""
        self.dispatcher.set_link(name, False)
        self.dispatcher.set_link(name, True)

    # What must be true.

    @invariant()
    def a_reservation_is_held_until_a_report_has_told_of_it(self) -> None:
        for dispatch_id, (reservation, _) in self.open.items():
            assert reservation.held == (dispatch_id not in self.counted)

    @invariant()
    def the_sums_are_those_of_the_reservations_held(self) -> None:
        total = 0
        for name in self.nodes:
            held = [r for r, _ in self.open.values() if r.node.id == name and r.held]
            node = self.dispatcher.node(name)
            assert node is not None
            assert node.reserved_tokens == sum(r.tokens for r in held)
            assert node.reserved_prompt_tokens == sum(r.prompt_tokens for r in held)
            total += node.reserved_tokens
        assert self.dispatcher.reserved_tokens == total

    @invariant()
    def every_open_request_is_counted_and_only_a_lost_report_makes_it_count_twice(self) -> None:
        for name, truth in self.nodes.items():
            node = self.dispatcher.node(name)
            assert node is not None
            believed = self.believed[name]
            assert node.capacity - node.headroom == sum(believed.values())
            assert node.used == sum(believed.values()) + node.reserved_tokens
            for dispatch_id, (reservation, _) in self.open.items():
                if reservation.node.id != name:
                    continue
                in_report = dispatch_id in believed
                if dispatch_id in truth.holds or dispatch_id in self.under_way:
                    assert reservation.held or in_report
                if reservation.held and in_report:
                    assert dispatch_id in self.missing[name] | self.missed[name]

    @invariant()
    def the_view_is_exact_when_nothing_is_missing(self) -> None:
        """Reported holds and reservations are exactly the holds of the report and every request it did not know."""
        for name in self.nodes:
            if self.missing[name] or self.missed[name]:
                continue
            node = self.dispatcher.node(name)
            assert node is not None
            believed = self.believed[name]
            unknown = sum(
                r.tokens for i, (r, _) in self.open.items() if r.node.id == name and i not in believed and r.held
            )
            assert node.used == sum(believed.values()) + unknown

    def teardown(self) -> None:
        """At rest nothing is left, and the router knows exactly what the nodes know."""
        if not hasattr(self, "dispatcher"):
            return
        for reservation, _ in self.open.values():
            reservation.end()
        assert self.dispatcher.reserved_tokens == 0
        for node in self.nodes.values():
            self.rewatch(node)
            self.send_report(node)
            self.deliver(node, 0)
            state = self.dispatcher.node(node.name)
            assert state is not None and not state.uncounted
            assert state.used == sum(node.holds.values())
        assert self.dispatcher.models()[0].name == MODEL


TestExactness = Exactness.TestCase
TestExactness.settings = settings(max_examples=120, stateful_step_count=80, deadline=None, phases=NO_EXPLAIN)
