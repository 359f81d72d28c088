"""What a request shows of itself to the rules. What costs something to find out is found out when a rule asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from router_node.routes.patterns import CONTENT_BYTES, PatternSet


class Shape(NamedTuple):
    """What the body of a request says."""

    streaming: bool = False
    structured: bool = False
    tools: bool = False
    text: bytes = b""  # the beginning of its prompt


PLAIN: Final = Shape()
_NOTHING: Final[frozenset[str]] = frozenset()


class Facts:
    """One request. ``look`` reads its body, once, when a rule wants to know.

    ``tokens`` is the estimated length of the prompt; ``headers`` are by lower-case name.
    """

    __slots__ = ("_found", "_look", "_shape", "headers", "model", "priority", "tenant", "tokens")

    def __init__(
        self,
        model: str,
        tenant: str = "",
        priority: int = 0,
        tokens: int = 0,
        headers: Mapping[bytes, bytes] | None = None,
        look: Callable[[], Shape] | None = None,
    ) -> None:
        self.model = model
        self.tenant = tenant
        self.priority = priority
        self.tokens = tokens
        self.headers: Mapping[bytes, bytes] = headers if headers is not None else {}
        self._look = look
        self._shape: Shape | None = None
        self._found: frozenset[str] | None = None

    @property
    def looked(self) -> bool:
        """The body has been read."""
        return self._shape is not None

    @property
    def shape(self) -> Shape:
        """What the body says; the plain shape where there is none to read."""
        shape = self._shape
        if shape is None:
            shape = self._shape = self._look() if self._look is not None else PLAIN
        return shape

    def content(self, patterns: PatternSet) -> frozenset[str]:
        """Those of a table's content patterns that the prompt's beginning holds."""
        found = self._found
        if found is None:
            text = self.shape.text
            at = patterns.match(text[:CONTENT_BYTES]) if text else ()
            found = self._found = frozenset(patterns.patterns[i] for i in at) if at else _NOTHING
        return found
