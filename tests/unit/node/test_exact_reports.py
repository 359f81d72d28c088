"""A node's real admission and reports with real routers' dispatch: exact under loss, reordering and restarts.

Two router workers, two nodes, and between them wires that lose and reorder reports (serialized, as they go out) and
deliver requests late. Nodes and workers restart, watches break, clients leave, requests wait, expire and are refused. A
perfect observer sees all of it and says after each step what each router must believe of each node.
"""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference_node.admission import Admitted, Need
from router_node.dispatch import Ask, Reservation, Verdict
from shared.errors import LayaError
from shared.pb.laya.v1.node_pb2 import WatchResponse
from tests.unit.node.exact_rig import CAPACITY, NODES, WORKERS, Clock, Node, Sent, Worker, result


class ExactReports(RuleBasedStateMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.boots = 0
        self.nodes = {name: Node(name, self.clock) for name in NODES}
        self.gone: list[tuple[str, str]] = []  # requests of workers that died, which nodes have yet to notice
        self.workers = [self.new_worker(number) for number in WORKERS]

    def new_worker(self, number: int) -> Worker:
        self.boots += 1
        worker = Worker(number, self.boots, self.clock)
        for name in NODES:
            self.rewatch(worker, name)
            view = worker.views[name]
            while not view.wire:  # the node's budget of reports may be spent
                self.compose(worker, name)
                self.clock.now += 0.01
                self.nodes[name].reporter.tick()
            self.deliver(worker, name, 0)
        return worker

    def rewatch(self, worker: Worker, name: str) -> None:
        view = worker.views[name]
        view.hang_up()
        view.reporter = self.nodes[name].reporter
        view.watch = view.reporter.open(worker.id)
        view.inexact = False
        worker.dispatcher.on_watch_reset(name)

    def compose(self, worker: Worker, name: str) -> None:
        """A report goes out if the node says that one is due."""
        view, node = worker.views[name], self.nodes[name]
        assert view.watch is not None
        if view.watch.due:
            view.wire.append(Sent(node, result(view.watch.next()), worker.id))

    def deliver(self, worker: Worker, name: str, at: int) -> Verdict | None:
        view = worker.views[name]
        if at >= len(view.wire):
            return None
        for overtaken in view.wire[:at]:
            view.missing |= overtaken.told
        sent = view.wire.pop(at)
        report = WatchResponse.FromString(sent.raw)
        verdict = worker.dispatcher.on_report(name, report)
        view.inexact = view.inexact or verdict in (Verdict.GAP, Verdict.WAITING_FULL)
        if verdict is Verdict.WAITING_FULL:
            view.missing |= sent.told
            return verdict
        worker.told |= sent.told
        view.missing -= sent.told
        if verdict in (Verdict.ACCEPTED, Verdict.GAP):
            view.believed = sent
        return verdict

    def refusals(self) -> None:
        """What nodes refused after a wait reaches the routers."""
        for node in self.nodes.values():
            for name in node.refused:
                for worker in self.workers:
                    if name.encode() in worker.open:
                        worker.dispatcher.on_refused(worker.open[name.encode()][0], 0.1)
                        worker.end(name.encode())
            node.refused.clear()

    # What may happen.

    @rule(which=st.sampled_from(WORKERS), prompt=st.integers(1, 300), new=st.integers(1, 200))
    def dispatch(self, which: int, prompt: int, new: int) -> None:
        worker = self.workers[which]
        ask = Ask("m", prompt_tokens=prompt, max_new_tokens=new, n=1, exact=True)
        granted: list[Reservation] = []
        try:
            got = worker.dispatcher.submit(ask, granted.append, lambda error: None)
        except LayaError:
            return
        if not isinstance(got, Reservation):
            got.cancel()
            return
        worker.open[got.id] = (got, self.nodes[got.node.id].state.boot_id)
        worker.under_way.append((got.id, Need([prompt], new)))

    @rule(which=st.sampled_from(WORKERS), at=st.integers(0, 5))
    def arrive(self, which: int, at: int) -> None:
        worker = self.workers[which]
        if not worker.under_way:
            return
        name, need = worker.under_way.pop(at % len(worker.under_way))
        reservation, boot = worker.open[name]
        node = self.nodes[reservation.node.id]
        if node.state.boot_id != boot:
            worker.end(name)
        elif (error := node.accept(name.decode(), need)) is not None:
            worker.dispatcher.on_refused(reservation, error.retry_after)
            worker.end(name)

    @rule(name=st.sampled_from(NODES), at=st.integers(0, 9), how=st.sampled_from(("token", "node", "client")))
    def progress(self, name: str, at: int, how: str) -> None:
        """A first token; or the end, of which the node reports before the router's stream ends, or the other way."""
        node = self.nodes[name]
        if not node.requests:
            return
        request = list(node.requests)[at % len(node.requests)]
        got = node.requests[request]
        if how == "token" and isinstance(got, Admitted):
            got.prefill_done()
            return
        owner = next((w for w in self.workers if request.encode() in w.open), None)
        if how == "node":
            node.leave(request)
            self.time_passes(0.05)
        if owner is not None:
            owner.end(request.encode())
        node.leave(request)

    @rule(seconds=st.sampled_from((0.0, 0.02, 0.05, 0.3, 1.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        for node in self.nodes.values():
            node.admission.expire(self.clock.now)
            node.reporter.tick()
        self.refusals()
        for worker in self.workers:
            worker.dispatcher.expire(self.clock.now)

    @rule(which=st.sampled_from(WORKERS), name=st.sampled_from(NODES))
    def report(self, which: int, name: str) -> None:
        self.time_passes(0.05)
        self.compose(self.workers[which], name)

    @rule(which=st.sampled_from(WORKERS), name=st.sampled_from(NODES), at=st.sampled_from((0, 0, 0, 1, 2)))
    def deliver_one(self, which: int, name: str, at: int) -> None:
        self.deliver(self.workers[which], name, at)

    @rule(which=st.sampled_from(WORKERS), late=st.booleans())
    def overtake(self, which: int, late: bool) -> None:
        """A request arrives and is told of; the next report comes before that one, which may come after all."""
        worker = self.workers[which]
        self.dispatch(which, 20, 20)
        if not worker.under_way:
            return
        name = worker.open[worker.under_way[-1][0]][0].node.id
        view = worker.views[name]
        self.arrive(which, len(worker.under_way) - 1)
        self.report(which, name)
        self.report(which, name)
        if len(view.wire) > 1:
            first = view.wire[-2]
            self.deliver(worker, name, len(view.wire) - 1)
            if late and first in view.wire:
                self.deliver(worker, name, view.wire.index(first))

    @rule(which=st.sampled_from(WORKERS), name=st.sampled_from(NODES), at=st.integers(0, 2))
    def lose(self, which: int, name: str, at: int) -> None:
        view = self.workers[which].views[name]
        if at < len(view.wire):
            view.missing |= view.wire.pop(at).told

    @rule(which=st.sampled_from(WORKERS), name=st.sampled_from(NODES), sure=st.integers(0, 3))
    def break_watch(self, which: int, name: str, sure: int) -> None:
        if not sure:
            self.rewatch(self.workers[which], name)

    @rule(name=st.sampled_from(NODES), sure=st.integers(0, 3))
    def restart_node(self, name: str, sure: int) -> None:
        if sure:
            return
        node = self.nodes[name]
        node.start()
        self.gone = [entry for entry in self.gone if entry[0] != name]
        for worker in self.workers:
            for request, (reservation, boot) in list(worker.open.items()):
                if reservation.node.id == name and boot != node.state.boot_id:
                    worker.end(request)
            self.rewatch(worker, name)

    @rule(which=st.sampled_from(WORKERS), sure=st.integers(0, 3))
    def restart_worker(self, which: int, sure: int) -> None:
        if sure:
            return
        old = self.workers[which]
        for view in old.views.values():
            view.hang_up()
        self.gone += [(name, r) for name in NODES for r in self.nodes[name].requests if r.encode() in old.open]
        self.workers[which] = self.new_worker(which)

    @precondition(lambda self: self.gone)
    @rule()
    def notice_dead_streams(self) -> None:
        for name, request in self.gone:
            self.nodes[name].leave(request)
        self.gone.clear()

    # What must be true.

    @invariant()
    def a_reservation_is_held_until_a_report_has_told_of_it(self) -> None:
        for worker in self.workers:
            for name, (reservation, _) in worker.open.items():
                assert reservation.held == (name not in worker.told)

    @invariant()
    def the_view_is_the_report_and_what_no_report_has_told_of(self) -> None:
        for worker in self.workers:
            for name, view in worker.views.items():
                node = worker.dispatcher.node(name)
                assert node is not None and view.believed is not None and not node.bad_reports
                mine = [r for r, _ in worker.open.values() if r.node.id == name]
                assert node.reserved_tokens == sum(r.tokens for r in mine if r.held)
                assert node.used == view.believed.used + node.reserved_tokens

    @invariant()
    def every_request_is_counted_once_and_twice_only_after_a_loss(self) -> None:
        for worker in self.workers:
            under_way = {name for name, _ in worker.under_way}
            for name, (reservation, boot) in worker.open.items():
                view, node = worker.views[reservation.node.id], self.nodes[reservation.node.id]
                assert view.believed is not None
                in_report = name in view.believed.alive
                alive = name.decode() in node.requests and node.state.boot_id == boot
                if alive or name in under_way:
                    assert reservation.held or in_report
                if alive:
                    assert reservation.tokens == node.tokens[name.decode()]
                if reservation.held and in_report:
                    assert name in view.missing

    @invariant()
    def nodes_keep_no_more_than_what_is_alive(self) -> None:
        for node in self.nodes.values():
            live = {name for names in node.reporter._live.values() for name in names}
            assert live == set(node.requests)

    @rule()
    def settle(self) -> None:
        """With every report delivered in order, and a new watch where one was lost, each view is the node's truth."""
        rounds = 0
        while not self.catch_up():
            rounds += 1
            assert rounds < 5
        for worker in self.workers:
            held = {i: r for i, (r, _) in worker.open.items() if r.held}
            assert held.keys() == {i for i, _ in worker.under_way}
            for name in NODES:
                node = worker.dispatcher.node(name)
                late = sum(r.tokens for r in held.values() if r.node.id == name)
                assert node is not None and node.used == self.nodes[name].used + late

    def catch_up(self) -> bool:
        """Let a report of each node reach each worker; whether all views are exact by what the verdicts say."""
        self.time_passes(1.0)
        exact = True
        for worker in self.workers:
            for name, view in worker.views.items():
                self.compose(worker, name)
                count = len(view.wire)
                while view.wire:
                    self.deliver(worker, name, 0)
                exact = exact and count > 0 and not view.inexact
                if view.inexact:
                    self.rewatch(worker, name)  # as a router does
        return exact

    def teardown(self) -> None:
        """At rest nothing is left anywhere."""
        self.notice_dead_streams()
        for worker in self.workers:
            for name, (reservation, _) in list(worker.open.items()):
                self.nodes[reservation.node.id].leave(name.decode())
                worker.end(name)
        self.settle()
        for worker in self.workers:
            assert worker.dispatcher.reserved_tokens == 0
        for node in self.nodes.values():
            admission = node.admission
            assert (admission.running, admission.waiting, node.reporter._live) == (0, 0, {})
            assert admission.headroom_tokens == CAPACITY


TestExactReports = ExactReports.TestCase
TestExactReports.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
