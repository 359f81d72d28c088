"""Flow control of an answer that comes from several nodes, one after the other.

Bytes are acknowledged to the node that sent them as they leave for the client. ``ahead`` counts bytes on their way to
the client that no node is to be told of: those of a node that is gone, and as many as were acknowledged before they
were passed on, since a message may be longer than a stream's window.
"""

from __future__ import annotations

from typing import Final

EARLY: Final = 16 << 10  # bytes of a message that is not whole which wait before any is acknowledged


class Flow:
    """One answer's bytes. ``flowing`` are on their way to the client, ``acked`` were acknowledged of a message that is
    not whole; see the module for ``ahead``.
    """

    __slots__ = ("acked", "ahead", "flowing")

    def __init__(self) -> None:
        self.flowing = self.ahead = self.acked = 0

    def early(self, held: int) -> int:
        """Of ``held`` bytes that wait for the rest of their message: how many to acknowledge now.

        The rest may not fit into the window otherwise. Worth asking only where more than ``EARLY`` wait, and again
        when bytes have left: a client that does not take what it has is not fetched more than a window.
        """
        more = held - self.acked
        if more <= 0 or self.flowing > EARLY:
            return 0
        self.acked = held
        return more

    def whole(self, beside: int) -> int:
        """A message is whole, of which ``beside`` bytes do not pass on: how many of these to acknowledge now."""
        acked = self.acked
        self.acked = 0
        if acked <= beside:
            return beside - acked
        self.ahead += acked - beside
        return 0

    def left(self, n: int) -> int:
        """So many bytes left for the client: how many of them to acknowledge to the node there is."""
        self.flowing -= n
        ahead = self.ahead
        if not ahead:
            return n
        if n <= ahead:
            self.ahead = ahead - n
            return 0
        self.ahead = 0
        return n - ahead

    def orphaned(self) -> None:
        """The node is gone: nobody is to be told of what came from it."""
        self.ahead = self.flowing
        self.acked = 0
