"""What a request carries beside its body: the ``laya-*`` metadata, read once.

The caller has been let in already (``auth``), so what the router set is taken at its word: it goes over the body.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference_node import clamps as clamping
from inference_node.clamps import Clamps
from shared import headers as names
from shared.errors import invalid

MAX_DISPATCH = 160  # bytes of a dispatch id
MAX_SALT = 512
LOWEST_PRIORITY, HIGHEST_PRIORITY = -(1 << 31), (1 << 31) - 1


class Call:
    """One request's surroundings. ``deadline`` is in the loop's time; ``priority`` None means: as the body says.

    ``timed``: the client wants to know what the node's messages cost. ``journal``: the router can take the stream
    elsewhere, unless the client wants it not to (``no_migrate``); ``resume``: it has just done so.
    """

    __slots__ = (
        "clamps",
        "deadline",
        "dispatch",
        "journal",
        "no_migrate",
        "priority",
        "request_id",
        "resume",
        "rewrite",
        "salt",
        "timed",
        "traceparent",
        "tracestate",
    )

    def __init__(self, metadata: Mapping[bytes, bytes], request_id: str, deadline: float | None = None) -> None:
        """Raises LayaError INVALID_ARGUMENT for metadata that makes no sense."""
        get = metadata.get
        self.request_id = request_id
        self.deadline = deadline
        self.dispatch = _text(get(names.DISPATCH, b""), "laya-dispatch", MAX_DISPATCH)
        self.salt = _text(get(names.SALT, b""), "laya-salt", MAX_SALT)
        self.rewrite = _text(get(names.REWRITE, b""), "laya-rewrite", MAX_SALT)
        self.traceparent = get(names.TRACEPARENT)
        self.tracestate = get(names.TRACESTATE)
        self.timed = get(names.TIMING) == b"1"
        self.journal = get(names.JOURNAL) == b"1"
        self.resume = get(names.RESUME) == b"1"
        self.no_migrate = names.is_set(get(names.NO_MIGRATE))
        raw = get(names.CLAMPS)
        self.clamps: Clamps = clamping.parse(raw) if raw else clamping.NONE
        raw = get(names.PRIORITY)
        self.priority = _priority(raw) if raw else None

    def priority_over(self, body: int) -> int:
        """The priority to run with: the router's word, else the body's within the router's bounds."""
        return self.priority if self.priority is not None else int(self.clamps.apply("priority", body))

    def salt_over(self, body: str) -> str:
        """The prefix-cache salt: the tenant's, and the caller's own beside it."""
        return f"{self.salt}:{body}" if self.salt and body else self.salt or body


def _text(raw: bytes, name: str, most: int) -> str:
    if len(raw) > most:
        raise invalid(f"The metadata {name} has {len(raw)} bytes; {most} are allowed.", name)
    return raw.decode("ascii", "replace") if raw else ""


def _priority(raw: bytes) -> int:
    try:
        value = int(raw) if len(raw) <= 12 else HIGHEST_PRIORITY + 1
    except ValueError:
        value = HIGHEST_PRIORITY + 1
    if not LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY:
        raise invalid(
            "The metadata laya-priority must be a whole number of 32 bits; lower is earlier.", "laya-priority"
        )
    return value
