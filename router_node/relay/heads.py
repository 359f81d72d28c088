"""What was read from the head of each client's last call.

Most clients send the same head with every call on a connection. Comparing it with the last one costs a fraction of
reading it: the checks, the routing fields and the headers that pass to a node depend on nothing else. Who may call is
asked anew each time.
"""

from __future__ import annotations

from typing import Final

from router_node.relay.fields import Fields
from router_node.relay.methods import Method
from shared.net.api import Headers
from shared.net.fields import header_list_size

MAX_PEERS: Final = 1024  # whose last heads are kept
MAX_BYTES: Final = 2048  # of a head, as HTTP/2 counts them; a larger one is read each time


class Head:
    """A legal head of a dispatched call; nobody changes any of it."""

    __slots__ = ("_ask", "fields", "forward", "headers", "method")

    def __init__(self, headers: Headers, fields: dict[bytes, bytes], method: Method, forward: Headers, ask: Fields):
        self.headers = headers
        self.fields = fields
        self.method = method
        self.forward = forward
        self._ask = ask

    def ask(self) -> Fields:
        """A request of its own."""
        return self._ask.copy()


class Heads:
    """Bounded, by peer."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, Head] = {}

    def find(self, peer: str, headers: Headers) -> Head | None:
        """The peer's last head if these headers are the same, in the same order."""
        head = self._last.get(peer)
        return head if head is not None and head.headers == headers else None

    def keep(self, peer: str, head: Head) -> None:
        """This is the peer's last one now."""
        last = self._last
        if peer not in last and len(last) >= MAX_PEERS:
            last.clear()
        if header_list_size(head.headers) <= MAX_BYTES:
            last[peer] = head
