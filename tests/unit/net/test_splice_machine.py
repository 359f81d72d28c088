"""Any order of what clients and nodes may do, against a model: streams joined, bytes kept in order, windows kept.

The model knows for each call what each side has sent and how it ended it. Whatever happens in between, each side has
received a beginning of what the other sent; what a relay holds of a call never exceeds a window; and once everybody
reads, calls that nobody cut off have arrived whole and nothing is left anywhere.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ngh2 import NGH2Error

from shared.net.api import CANCEL
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS, Seen, UnderTest, server_settings
from tests.support.splice_rig import Relay, Rig

SIZES = st.sampled_from([0, 1, 100, 5000, 20_000, 60_000, 100_000])
WHICH = st.integers(0, 1 << 16)
WINDOW = 65_536


@dataclass
class Call:
    """What the model knows of one call."""

    relay: Relay
    client_id: int
    node_id: int
    asked: bytearray = field(default_factory=bytearray)  # what the client has sent
    answered: bytearray = field(default_factory=bytearray)  # what the node has sent
    asked_all: bool = False
    begun: bool = False
    answered_all: bool = False
    cut: bool = False  # somebody reset it


class SpliceMachine(RuleBasedStateMachine):
    """A client, a relay and a node; ``engine`` runs the relay's connections."""

    engine = "ngh2"

    @initialize(
        client=st.sampled_from([500, 65_535]),
        node=st.sampled_from([1000, 65_535]),
        reads=st.tuples(*[st.booleans()] * 2),
    )
    def start(self, client: int, node: int, reads: tuple[bool, bool]) -> None:
        UnderTest.engine = self.engine
        self.calls: list[Call] = []
        self.rig = Rig(
            client=server_settings(initial_window_size=client),
            node=server_settings(initial_window_size=node),
            client_raw={"reads": reads[0]},
            node_raw={"reads": reads[1]},
        )

    def alive(self, which: int, *, asking: bool = False, answering: bool = False) -> Call | None:
        """One of the calls for which something can still be done."""
        found = [
            call
            for call in self.calls
            if not call.cut
            and not (asking and call.asked_all)
            and not (answering and call.answered_all)
            # An answer that is complete ends the request too; what the client would send then is dropped.
            and not (asking and call.answered_all)
        ]
        return found[which % len(found)] if found else None

    # What clients do.

    @precondition(lambda self: len(self.calls) < 5)
    @rule()
    def a_client_calls(self) -> None:
        before = set(self.rig.node.streams)
        client_id = self.rig.client.connection.send_request(REQUEST)
        self.rig.pump()
        (node_id,) = set(self.rig.node.streams) - before
        self.calls.append(Call(self.rig.relays[-1], client_id, node_id))

    @rule(which=WHICH, size=SIZES, last=st.booleans())
    def a_client_sends(self, which: int, size: int, last: bool) -> None:
        call = self.alive(which, asking=True)
        if call is not None:
            data = bytes([len(call.asked) % 251]) * size
            self.rig.client.connection.send_data(call.client_id, data, end_stream=last)
            call.asked += data
            call.asked_all = last

    @rule(which=WHICH)
    def a_client_leaves(self, which: int) -> None:
        call = self.alive(which)
        if call is not None:
            call.cut = True
            self.rig.client.connection.reset_stream(call.client_id, CANCEL)

    @rule(which=WHICH, size=st.sampled_from([1, 300, 100_000]))
    def a_client_reads(self, which: int, size: int) -> None:
        call = self.alive(which)
        if call is not None and call.client_id in self.rig.client.streams:
            self.rig.client.read(call.client_id, size)

    # What nodes do.

    @rule(which=WHICH, size=SIZES)
    def a_node_answers(self, which: int, size: int) -> None:
        call = self.alive(which, answering=True)
        if call is None:
            return
        connection = self.rig.node.connection
        try:
            if not call.begun:
                connection.send_response(call.node_id, RESPONSE)
                call.begun = True
            data = bytes([len(call.answered) % 241]) * size
            connection.send_data(call.node_id, data)
        except NGH2Error:
            call.cut = True  # the client's reset has come
        else:
            call.answered += data

    @rule(which=WHICH)
    def a_node_ends(self, which: int) -> None:
        call = self.alive(which, answering=True)
        if call is not None and call.begun:
            try:
                self.rig.node.connection.send_trailers(call.node_id, TRAILERS)
            except NGH2Error:
                call.cut = True
            else:
                call.answered_all = True

    @rule(which=WHICH)
    def a_node_gives_up(self, which: int) -> None:
        call = self.alive(which, answering=True)
        if call is not None:
            call.cut = True
            with suppress(NGH2Error):
                self.rig.node.connection.reset_stream(call.node_id, 2)

    @rule(which=WHICH, size=st.sampled_from([1, 300, 100_000]))
    def a_node_reads(self, which: int, size: int) -> None:
        call = self.alive(which)
        if call is not None and call.node_id in self.rig.node.streams:
            self.rig.node.read(call.node_id, size)

    # What the network does.

    @rule(chop=st.sampled_from([0, 0, 1448]))
    def bytes_arrive(self, chop: int) -> None:
        self.rig.front.chop = self.rig.nodes[0].chop = chop
        self.rig.pump()

    @rule()
    def bytes_arrive_from_clients_alone(self) -> None:
        self.rig.front.push()

    @rule()
    def bytes_arrive_from_nodes_alone(self) -> None:
        self.rig.nodes[0].push()

    @rule(full=st.booleans())
    def the_client_s_socket_fills_or_drains(self, full: bool) -> None:
        self.rig.front.wire.room = 20_000 if full else None

    # What holds all the while.

    def seen_by_client(self, call: Call) -> Seen:
        return self.rig.client.streams.get(call.client_id) or Seen()

    def seen_by_node(self, call: Call) -> Seen:
        return self.rig.node.streams[call.node_id]

    @invariant()
    def each_side_has_a_beginning_of_what_the_other_sent(self) -> None:
        for call in getattr(self, "calls", ()):
            assert call.asked.startswith(self.seen_by_node(call).data)
            assert call.answered.startswith(self.seen_by_client(call).data)
            if self.seen_by_client(call).trailers is not None and not call.cut:
                assert call.answered_all and self.seen_by_client(call).data == call.answered
            if self.seen_by_node(call).ended:
                assert call.asked_all and self.seen_by_node(call).data == call.asked

    @invariant()
    def a_relay_holds_at_most_a_window_each_way(self) -> None:
        for call in getattr(self, "calls", ()):
            assert call.relay.down.queued <= WINDOW
            assert call.relay.up is None or call.relay.up.queued <= WINDOW  # type: ignore[attr-defined]

    @invariant()
    def nobody_hears_of_an_end_twice(self) -> None:
        for call in getattr(self, "calls", ()):
            ends = [hook for hook in call.relay.hooks if isinstance(hook, tuple) and hook[0] == "finished"]
            assert len(ends) <= 1 and (not ends or call.relay.hooks[-1] == ends[0])

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        rig = self.rig
        rig.front.wire.room = None
        self.everybody_reads()
        for call in self.calls:
            if not call.cut:
                assert self.seen_by_client(call).data == call.answered
                # What a client sends on after a whole answer has come is nobody's.
                assert call.answered_all or self.seen_by_node(call).data == call.asked
        for call in self.calls:
            if not call.cut and not call.answered_all:
                self.a_node_answers_and_ends(call)
        self.everybody_reads()
        assert rig.empty()
        self.each_side_has_a_beginning_of_what_the_other_sent()
        for call in self.calls:
            assert call.relay.hooks[-1][0] == "finished"
            if not call.cut:
                assert self.seen_by_client(call).data == call.answered
                assert self.seen_by_client(call).trailers == TRAILERS
        for conn in (rig.down, *rig.ups):
            assert not conn.stalled and not conn.waiting and not conn.engine.queued()
            assert conn.window_left() > conn.settings.connection_window // 2
        assert rig.flusher.counters.reasons == {}

    def everybody_reads(self) -> None:
        """Until nothing moves any more."""
        rig = self.rig
        before = -1
        while (
            total := sum(len(seen.data) for raw in (rig.client, rig.node) for seen in raw.streams.values())
        ) != before:
            before = total
            rig.pump()
            for raw in (rig.client, rig.node):
                for stream_id, seen in raw.streams.items():
                    try:
                        raw.read(stream_id)
                    except NGH2Error:
                        seen.unacked = 0  # the stream is over
            rig.pump()

    def a_node_answers_and_ends(self, call: Call) -> None:
        self.rig.pump()
        try:
            if not call.begun:
                self.rig.node.connection.send_response(call.node_id, RESPONSE)
            self.rig.node.connection.send_trailers(call.node_id, TRAILERS)
            call.answered_all = True
        except NGH2Error:
            call.cut = True


class H2SpliceMachine(SpliceMachine):
    """The same on the other engine."""

    engine = "h2"


TestSplice = SpliceMachine.TestCase
TestSplice.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSpliceOnH2 = H2SpliceMachine.TestCase
TestSpliceOnH2.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)


def teardown_module() -> None:
    UnderTest.engine = "ngh2"
