"""A gRPC call that does not take node after node with it: see ``poison`` for when one is refused.

What is looked up costs only those calls that lose their node, and others while any request is remembered.
"""

from __future__ import annotations

from router_node.relay.account import Account
from router_node.relay.fields import Fields
from router_node.relay.methods import Method
from router_node.relay.migrate import Migrations
from router_node.relay.poison import acquits
from router_node.relay.relay_stream import RelayStream
from shared.net.api import CANCEL, Headers, ServerStream
from shared.net.grpc_wire import error_from_trailers


class WaryStream(RelayStream):
    """See the module. A request that is longer than what a splice keeps is not known again."""

    __slots__ = ("_moves",)

    def __init__(
        self,
        down: ServerStream,
        account: Account,
        fields: dict[bytes, bytes],
        forward: Headers,
        method: Method,
        ask: Fields,
        moves: Migrations,
    ) -> None:
        super().__init__(down, account, fields, forward, method, ask)
        self._moves = moves

    def _request(self) -> bytes:
        """The request as it came, while it is at hand; else empty."""
        pieces = self._early
        return b"".join(pieces) if pieces else b""

    def on_data(self, data: bytes, end: bool) -> None:
        """Request bytes; a request that nodes die of is refused at its end."""
        super().on_data(data, end)
        if end and len(self._moves.poisons) and not self.complete and self._moves.poisoned(self._request()):
            self.refuse(self._moves.poisonous())

    def on_response(self, headers: Headers, end: bool) -> None:
        """The node answers: unless it has only begun a journal, the request is not what nodes die of."""
        poisons = self._moves.poisons
        if len(poisons) and self._account.trip is None and acquits(error_from_trailers(headers) if end else None):
            poisons.lives(self._request())
        super().on_response(headers, end)

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        """Before the first byte a request is tried again, but not when it is what nodes die of."""
        account = self._account
        may_be_why = not self.responded and code == CANCEL and not unprocessed and self.request_ended
        if may_be_why and not account.once and self._moves.died(self._request(), account):
            account.node_lost(False)
            self.refuse(self._moves.poisonous())
        else:
            super().upstream_lost(code, unprocessed)
