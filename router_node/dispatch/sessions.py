"""Where each conversation's KV cache is: a bounded memory of the sessions this router has sent somewhere.

A session whose node is the one the ring gives needs no record to be found by any router; one that load, a drain or a
change of the ring has put elsewhere does (a "pin"). Both are remembered here: when the ring changes, a session seen
before stays with its cache rather than following the ring, and the tokens it has seen say what staying is worth.
"""

from __future__ import annotations

from typing import Final

from router_node.dispatch.generations import Generations

OWNER_MASK: Final = (1 << 32) - 1
PINNED: Final = 1 << 32
TOKENS_SHIFT: Final = 33
_MAX_TOKENS: Final = (1 << 27) - 1


class SessionTable(Generations):
    """Session hash -> node and prompt tokens it has seen there, packed into one integer:

    ``tokens << TOKENS_SHIFT | PINNED (when it is not the ring's node) | incarnation of the node``.

    At most ``limit`` sessions; every operation is constant time, forgetting too.
    """

    __slots__ = ()

    def record(self, key: int, incarnation: int, tokens: int, pinned: bool) -> None:
        """Note that a session went to a node with a prompt of ``tokens``; ``pinned`` when the ring says another."""
        value = (tokens if tokens < _MAX_TOKENS else _MAX_TOKENS) << TOKENS_SHIFT | incarnation
        self.put(key, value | PINNED if pinned else value)

    def pins(self) -> list[int]:
        """Hashes of the sessions that the ring alone would not find."""
        return [key for key, value in self.items() if value & PINNED]
