"""What a client has been given of a stream, so that the stream can go on elsewhere.

A journal cuts a node's answer into whole messages: what is passed on is never half a message, so that what has been
passed on is exactly what the journal says. It reads token ids and the length of the text where they lie, and builds
nothing. It is bounded in every direction; where a bound is met it stops, says why, and the rest of the stream passes
as it comes.
"""

from __future__ import annotations

from array import array
from typing import Final

import xxhash
from mypy_extensions import mypyc_attr

from router_node.admin.moves import MoveCounts
from router_node.relay import wire
from shared.net.gather import Piece, gather, whole
from shared.pb.laya.v1 import inference_pb2 as pb

MAX_MESSAGE: Final = 128 << 10  # bytes of a message that may be held until it is whole
MAX_CHUNK: Final = 1100 << 10  # the same for the tunnel, whose nodes send up to 1 MiB of a body at once
LUMP: Final = 8192  # bytes in which memory is asked for
PER_ENTRY: Final = 4  # bytes of a token id, and of a message's count of them
DONE: Final = b"data: [DONE]\n\n"  # the last event of a stream over HTTP
_PREFIX: Final = 5
_RESUME: Final = b"\x7a"  # field 15, a message, of every request that can be resumed
_CREATED: Final = b'"created":'
_DIGITS: Final = 16
_SEARCHED: Final = 16 << 10  # bytes of a body in which its time is looked for


class Purse:
    """Memory that all journals of a worker share: at most ``most`` bytes. ``counts`` has what is held."""

    __slots__ = ("counts", "most")

    def __init__(self, most: int, counts: MoveCounts) -> None:
        self.most = most
        self.counts = counts

    def take(self, size: int) -> bool:
        """So many bytes; False when there are none left."""
        if self.counts.journal_bytes + size > self.most:
            return False
        self.counts.journal_bytes += size
        return True

    def give(self, size: int) -> None:
        """Bytes that were taken."""
        self.counts.journal_bytes -= size


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """One stream. Subclasses say how a message is read.

    ``request`` is the framed request as it came. ``tokens`` are the ids passed on, ``counts`` how many of these each
    message had, ``text_bytes`` or ``body_bytes`` what it had else. ``finished``: the node has said all of it; for a
    tunnel ``finish`` says why it ended. ``stopped`` says why nothing is taken down any more, empty while it is; then
    ``rest`` is what has come of a message that is not whole. ``held`` is how many bytes wait for the rest of theirs.
    """

    __slots__ = (
        "_charged",
        "_most_message",
        "_most_tokens",
        "_need",
        "_pieces",
        "_purse",
        "_room",
        "body_bytes",
        "counts",
        "created",
        "finish",
        "finished",
        "held",
        "messages",
        "request",
        "rest",
        "stopped",
        "text_bytes",
        "tokens",
    )

    def __init__(self, request: bytes, most_tokens: int, purse: Purse) -> None:
        """``purse`` has been asked for ``first_charge(request)`` bytes, which are given back by ``close``."""
        self.request = request
        self.tokens: array[int] = array("I")
        self.counts: array[int] = array("I")
        self.messages = self.text_bytes = self.body_bytes = self.held = self.created = 0
        self.finished = False
        self.finish = self.stopped = ""
        self.rest = b""
        self._pieces: list[Piece] = []
        self._need = _PREFIX
        self._most_message = MAX_MESSAGE
        self._most_tokens = most_tokens
        self._purse = purse
        self._charged = first_charge(request)
        self._room = LUMP // PER_ENTRY
        purse.counts.journals += 1

    def feed(self, data: bytes) -> bytes:
        """The whole messages that ``data`` completes, as they came. Look at ``stopped`` afterwards."""
        if self.held:
            gather(self._pieces, data)
            self.held += len(data)
            if self.held < self._need:
                return b""
            data = whole(self._pieces)
            self._pieces = []
            self.held = 0
        at = 0
        size = len(data)
        need = _PREFIX
        while size - at >= _PREFIX:
            need = _PREFIX + int.from_bytes(data[at + 1 : at + _PREFIX], "big")
            if need > self._most_message or data[at]:
                return self._stop("a message is compressed" if data[at] else "a message is too large", data, at)
            end = at + need
            if end > size:
                break
            before = len(self.tokens)
            if not self._read(data, at + _PREFIX, end):
                return self._stop("a message cannot be read", data, at)
            self.counts.append(len(self.tokens) - before)
            self.messages += 1
            at = end
            need = _PREFIX
        entries = len(self.tokens) + len(self.counts)
        if entries > self._room and not self._grow(entries):
            return self._stop("the router's journals are full", data, at)
        if len(self.tokens) > self._most_tokens:
            return self._stop("the stream is too long", data, at)
        if at == size:
            return data
        self._pieces.append(data[at:] if at else data)
        self.held = size - at
        self._need = need
        return data[:at]

    def forget_part(self) -> None:
        """The node is gone, and with it the rest of the message that was not whole."""
        self._pieces = []
        self.held = 0
        self._need = _PREFIX

    def stop(self, why: str) -> None:
        """Take nothing down any more, for a reason of somebody else's. ``rest`` is what was held."""
        if not self.stopped:
            self.stopped = why
            self.rest = b"".join(self._pieces)
            self.forget_part()

    def close(self) -> None:
        """Give all memory back. Calling it again does nothing."""
        if self._charged:
            self._purse.give(self._charged)
            self._purse.counts.journals -= 1
            self._charged = 0
            self.request = b""
            self.tokens = array("I")
            self.counts = array("I")
            self.forget_part()

    def resumed(self, attempt: int) -> bytes:
        """The framed request that has another node go on behind what was passed on."""
        resume = self._resume(attempt).SerializeToString()
        field = _RESUME + wire.put_varint(len(resume)) + resume
        size = len(self.request) - _PREFIX + len(field)
        return b"\0" + size.to_bytes(4, "big") + self.request[_PREFIX:] + field

    def _resume(self, attempt: int) -> pb.Resume:
        return pb.Resume(token_ids=self.tokens, message_tokens=self.counts, attempt=attempt)

    def _read(self, data: bytes, pos: int, end: int) -> bool:
        """Take one message down; False when it cannot be read, and then nothing of it counts."""
        raise NotImplementedError

    def _stop(self, why: str, data: bytes, at: int) -> bytes:
        self.stopped = why
        self.rest = data[at:]
        return data[:at]

    def _grow(self, entries: int) -> bool:
        more = LUMP * (1 + (entries - self._room) * PER_ENTRY // LUMP)
        if not self._purse.take(more):
            return False
        self._charged += more
        self._room += more // PER_ENTRY
        return True


class TypedJournal(Journal):
    """Of ``GenerateResponse`` or ``ChatResponse``, by the numbers of their fields."""

    __slots__ = ("_finish_tag", "_id_tag", "_ids_tag", "_text_tag")

    def __init__(self, request: bytes, most_tokens: int, purse: Purse, text: int, ids: int, finish: int) -> None:
        super().__init__(request, most_tokens, purse)
        self._text_tag = text << 3 | wire.LENGTH
        self._ids_tag = ids << 3 | wire.LENGTH
        self._id_tag = ids << 3
        self._finish_tag = finish << 3

    def _resume(self, attempt: int) -> pb.Resume:
        out = super()._resume(attempt)
        out.text_bytes = self.text_bytes
        return out

    def _read(self, data: bytes, pos: int, end: int) -> bool:
        before, text, finished = len(self.tokens), 0, self.finished
        text_tag, ids_tag, id_tag, finish_tag = self._text_tag, self._ids_tag, self._id_tag, self._finish_tag
        try:
            while pos < end:
                key = data[pos]
                pos += 1
                if key == text_tag:
                    size = data[pos]
                    pos += 1
                    if size >= 0x80:
                        size, pos = wire.length(data, pos - 1)
                    pos += size
                    text += size
                elif key == ids_tag:
                    pos = _packed(data, pos, end, self.tokens)
                elif key == id_tag:
                    value, pos = wire.varint(data, pos)
                    self.tokens.append(value)
                elif key == finish_tag:
                    value, pos = wire.varint(data, pos)
                    finished = value != 0
                else:
                    if key >= 0x80:
                        key, pos = wire.tag(data, pos - 1)
                    pos = wire.skip(data, pos, end, key)
        except (IndexError, OverflowError, wire.Malformed):
            pos = -1
        if pos != end:
            del self.tokens[before:]
            return False
        self.text_bytes += text
        self.finished = finished
        return True


class TunnelJournal(Journal):
    """Of ``HttpResponse``. ``take`` hands out the body bytes that came; ``head`` is the first message's, as it came."""

    __slots__ = ("_bodies", "_hash", "_seen", "head", "pinned")

    def __init__(self, request: bytes, most_tokens: int, purse: Purse) -> None:
        super().__init__(request, most_tokens, purse)
        self._most_message = MAX_CHUNK
        self.head = b""
        self.pinned = ""
        self._bodies: list[bytes] = []
        self._hash = xxhash.xxh3_64()
        self._seen = b""  # the end of what was searched for ``created``

    def take(self) -> bytes:
        """The body bytes of the messages since the last call; they are the client's from now on."""
        bodies = self._bodies
        if not bodies:
            return b""
        self._bodies = []
        body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        if not self.created and self.body_bytes < _SEARCHED:
            self._find_created(body)
        self.body_bytes += len(body)
        self._hash.update(body)
        if body.endswith(DONE):
            self.finished = True
        return body

    def take_head(self) -> bytes:
        """The head that came since the last call, empty for none."""
        head, self.head = self.head, b""
        return head

    def _resume(self, attempt: int) -> pb.Resume:
        out = super()._resume(attempt)
        out.body_bytes = self.body_bytes
        out.body_hash = self._hash.intdigest()
        out.created = self.created
        out.finish_reason = self.finish
        return out

    def _find_created(self, body: bytes) -> None:
        """The first chunk's time: later ones must have the same, whoever makes them."""
        text = self._seen + body
        at = text.find(_CREATED)
        if at < 0:
            self._seen = text[-len(_CREATED) :]
            return
        value = text[at + len(_CREATED) :].lstrip()[:_DIGITS]
        end = 0
        while end < len(value) and 0x30 <= value[end] <= 0x39:
            end += 1
        if end == len(value) < _DIGITS:
            self._seen = text[at:]  # its digits may not all be here
        else:
            self.created = int(value[:end]) if end else 0
            self._seen = b""

    def _read(self, data: bytes, pos: int, end: int) -> bool:
        before = len(self.tokens)
        body = head = b""
        finish, pinned = self.finish, self.pinned
        try:
            while pos < end:
                key = data[pos]
                pos += 1
                if key == 0x12:  # nearly all of nearly every message
                    size = data[pos]
                    pos += 1
                    if size >= 0x80:
                        size, pos = wire.length(data, pos - 1)
                    body = data[pos : pos + size]
                    pos += size
                    continue
                if key == 0x1A:
                    pos = _packed(data, pos, end, self.tokens)
                    continue
                if key >= 0x80:
                    key, pos = wire.tag(data, pos - 1)
                start = pos
                pos = wire.skip(data, pos, end, key)
                if key == 0x0A:
                    head = data[wire.length(data, start)[1] : pos]
                elif key == 0x18:
                    self.tokens.append(wire.varint(data, start)[0])
                elif key == 0x22:
                    finish = data[wire.length(data, start)[1] : pos].decode("ascii", "replace")
                elif key == 0x2A:
                    pinned = data[wire.length(data, start)[1] : pos].decode("utf-8", "replace")
        except (IndexError, OverflowError, wire.Malformed):
            pos = -1
        if pos != end:
            del self.tokens[before:]
            return False
        if body:
            self._bodies.append(body)
        if head:
            self.head = head
        self.finish = finish
        self.pinned = pinned
        return True


def first_charge(request: bytes) -> int:
    """Bytes that a new journal of this request takes."""
    return len(request) + LUMP


def _packed(data: bytes, pos: int, end: int, into: array[int]) -> int:
    """Append packed ids; the offset after them. One that runs past ``end`` leaves an offset that is not in order."""
    size = data[pos]
    pos += 1
    if size >= 0x80:
        size, pos = wire.length(data, pos - 1)
    stop = pos + size
    if stop > end:
        return end + 1
    while pos < stop:
        value = data[pos]
        pos += 1
        if value >= 0x80:
            value, pos = wire.varint(data, pos - 1)
        into.append(value)
    return pos if pos == stop else end + 1
