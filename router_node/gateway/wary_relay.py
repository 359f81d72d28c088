"""An OpenAI request that does not take node after node with it: see ``relay.poison`` for when one is refused."""

from __future__ import annotations

from router_node.gateway.http_relay import STREAMING, WAITING, HttpRelay
from router_node.gateway.tunnel import ResponseHead
from router_node.relay.account import Account
from router_node.relay.fields import Fields
from router_node.relay.migrate import Migrations
from router_node.relay.poison import acquits, acquits_http
from shared.errors import LayaError
from shared.net.api import CANCEL, Headers
from shared.net.exchange import HttpExchange


class WaryRelay(HttpRelay):
    """See the module."""

    __slots__ = ("_moves",)

    def __init__(
        self,
        account: Account,
        exchange: HttpExchange,
        message: bytes,
        forward: Headers,
        extra: Headers,
        moves: Migrations,
    ) -> None:
        super().__init__(account, exchange, message, forward, extra)
        self._moves = moves

    def begin(self, fields: Fields, since: float) -> None:
        """Route the request, unless nodes have died of it. Raises LayaError."""
        moves = self._moves
        if len(moves.poisons) and moves.poisoned(self._message + self._exchange.body):
            raise moves.poisonous()
        super().begin(fields, since)

    def _successor(self) -> HttpRelay:
        """Another try of all of it."""
        made = WaryRelay(self._account, self._exchange, self._message, self._forward, self._extra, self._moves)
        made._fields = self._fields
        return made

    # The node answers: the request is not what nodes die of. One that has only begun a journal must give a token.

    def _start(self, head: ResponseHead) -> None:
        """Begin the answer."""
        if len(self._moves.poisons):
            self._acquit(head)
        super()._start(head)

    def _hold(self, body: bytes) -> None:
        """Keep a piece of the answer."""
        if self._held is None and len(self._moves.poisons):
            self._acquit(self._reader.head)
        super()._hold(body)

    def _acquit(self, head: ResponseHead | None) -> None:
        if self._account.trip is None and head is not None and acquits_http(head.status):
            self._moves.poisons.lives(self._message + self._exchange.body)

    def _node_failed(self, error: LayaError, wait: float = 0.0) -> None:
        """The node said why it cannot answer."""
        if len(self._moves.poisons) and self._state != STREAMING and acquits(error):
            self._moves.poisons.lives(self._message + self._exchange.body)
        super()._node_failed(error, wait)

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """Before the answer begins a request is tried again, but not when it is what nodes die of."""
        account = self._account
        may_be_why = self._state < STREAMING and code == CANCEL and not unprocessed and not account.once
        request = self._message + self._exchange.body if may_be_why else b""
        if request and self._moves.died(request, account, self._state > WAITING):
            self._stream = None
            account.node_lost(False)
            self.refuse(self._moves.poisonous())
        else:
            super().on_response_closed(code, unprocessed)
