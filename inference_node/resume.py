"""A stream that another node began: what the router says of it, and how its answer is made to fit.

The router appends a ``Resume`` to the request as it came from the client. It is taken only beside the metadata that
no client can send (``laya-resume``), from callers that were let in by the cluster token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from inference_node.call import Call
from inference_node.engines.base import Past
from shared.errors import LayaError, invalid, unavailable
from shared.pb.laya.v1 import inference_pb2 as pb

# The first "created" of an event. Within JSON's strings a quote has a backslash, so a text can not look like it.
_CREATED = re.compile(rb'^(data: \{[^\n]*?"created":)\d+', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A Resume that makes sense. ``begun``: the client has had a message; sizes are bytes that it has."""

    past: Past
    begun: bool
    text_bytes: int
    body_bytes: int
    body_hash: int
    created: int

    @property
    def delivered(self) -> int:
        """Tokens that the client has."""
        return sum(map(len, self.past.parts))


def read(request: pb.GenerateRequest | pb.ChatRequest, call: Call) -> Resumed | None:
    """What a typed request says it resumes, None for a new one. Raises INVALID_ARGUMENT."""
    return taken(request.resume if request.HasField("resume") else None, call)


def taken(resume: pb.Resume | None, call: Call) -> Resumed | None:
    """The message checked, None where there is none. Raises INVALID_ARGUMENT, also for one that no router sent."""
    if resume is None:
        if call.resume:
            raise invalid("The metadata laya-resume announces a Resume, and the request holds none.", "resume")
        return None
    if not call.resume:
        raise invalid("Only a router may set resume: leave it out.", "resume")
    counts = resume.message_tokens
    if sum(counts) != len(resume.token_ids):
        raise invalid(
            f"resume holds {len(resume.token_ids)} token ids, and its messages sum up to {sum(counts)}.", "resume"
        )
    return Resumed(
        Past(_parts(resume.token_ids, counts), resume.finish_reason),
        bool(counts),
        resume.text_bytes,
        resume.body_bytes,
        resume.body_hash,
        resume.created,
    )


def left(max_tokens: int, resumed: Resumed) -> int:
    """New tokens that are still to come at most. Raises INVALID_ARGUMENT where the client has had too many."""
    rest = max_tokens - resumed.delivered
    if rest < 0:
        raise invalid(f"resume holds {resumed.delivered} tokens; the request allows {max_tokens}.", "resume")
    return 0 if resumed.past.finish_reason else rest


def inexact(why: str) -> LayaError:
    """UNAVAILABLE for a stream that cannot go on here; nothing of it has been sent."""
    return unavailable(f"The stream cannot go on on this node: {why}.", "RESUME_INEXACT")


class Suppressor:
    """Takes from an answer what the client has of it, and gives the rest, with the time that it had at first."""

    __slots__ = ("_created", "_hash", "_left", "_wanted")

    def __init__(self, resumed: Resumed) -> None:
        self._left = resumed.body_bytes
        self._wanted = resumed.body_hash
        self._hash: xxhash.xxh3_64 | None = xxhash.xxh3_64() if resumed.body_bytes else None
        self._created = b"\\g<1>%d" % resumed.created if resumed.created else b""

    @property
    def passed(self) -> bool:
        """Whether all that the client has came again as it was."""
        return self._hash is None

    def feed(self, data: bytes) -> bytes:
        """What of it is new. Raises RESUME_INEXACT where it is not what the client has."""
        if self._created:
            data = _CREATED.sub(self._created, data)
        digest = self._hash
        if digest is None:
            return data
        known, data = data[: self._left], data[self._left :]
        digest.update(known)
        self._left -= len(known)
        if not self._left:
            self.end()
        return data

    def end(self) -> None:
        """No more comes of what the client has. Raises RESUME_INEXACT where that is not all of it, or is not it."""
        digest, self._hash = self._hash, None
        if digest is None:
            return
        if self._left:
            raise inexact(f"the answer here ends {self._left} bytes before what the client has of it")
        if digest.intdigest() != self._wanted:
            raise inexact("the answer here differs from what the client has of it")


def _parts(tokens: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    parts = []
    at = 0
    for count in counts:
        if count:
            parts.append(list(tokens[at : at + count]))
            at += count
    return parts
