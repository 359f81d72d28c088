"""How a line of the access log looks, as text or as JSON.

A router writes as many lines as it relays requests, so a line costs two or three microseconds: the second's time stamp
and the few names that come again and again are made once and kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

MAX_WORDS: Final = 4096  # names kept ready


class Entry(Protocol):
    """One finished request; whoever adds it changes it no more.

    Times are seconds; ``at`` is the wall clock at its end. ``code`` is the gRPC status, or the HTTP status where it is
    100 or more. ``routed`` is the router's own time before the first byte went to a node, negative when none did.
    ``request_id`` is plain ASCII without spaces or quotes. ``migrated`` is there where a stream went on elsewhere.
    """

    @property
    def at(self) -> float: ...
    @property
    def protocol(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def routed(self) -> float: ...
    @property
    def model(self) -> str: ...
    @property
    def node_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def request_id(self) -> bytes: ...
    @property
    def attempts(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def migrated(self) -> str: ...


_encode = msgspec.json.Encoder().encode


def plain_word(text: str) -> str:
    """A value as one word: a client's model name must not be able to forge a line or a field."""
    if text.isascii() and text.isprintable() and " " not in text and '"' not in text:
        return text or "-"
    return _encode(text).decode().replace(" ", "\\u0020")


def json_word(text: str) -> str:
    """A value as a JSON string."""
    return _encode(text).decode()


class Lines:
    """Renders entries. ``words`` holds values that were rendered before."""

    __slots__ = ("_render", "_second", "_stamp", "words")

    def __init__(self, render: Callable[[str], str]) -> None:
        self._render = render
        self._second = -1
        self._stamp = ""
        self.words: dict[str, str] = {}

    def stamp(self, at: float) -> str:
        """The wall clock in UTC, to the second."""
        second = int(at)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._stamp

    def word(self, text: str) -> str:
        """A value that has not been rendered before, or was forgotten."""
        if len(self.words) >= MAX_WORDS:
            self.words.clear()
        made = self.words[text] = self._render(text)
        return made

    def dropped(self, count: int) -> str:
        """The line that says how many are missing."""
        raise NotImplementedError

    def line(self, entry: Entry) -> str:
        """One entry."""
        raise NotImplementedError


class TextLines(Lines):
    """One line of words for a person: ``… grpc 127.0.0.1:5000 Generate 0 - 12.3ms routed=8us model=…``."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(plain_word)

    def line(self, entry: Entry) -> str:
        """One entry."""
        at, routed, words, word = entry.at, entry.routed, self.words.get, self.word
        peer, model, node, tenant, reason = entry.peer, entry.model, entry.node_id, entry.tenant, entry.reason
        return (
            f"{self.stamp(at)}.{int(at * 1000) % 1000:03d}Z {entry.protocol} {words(peer) or word(peer)} "
            f"{entry.method} {entry.code} {words(reason) or word(reason)} {entry.seconds * 1e3:.1f}ms "
            f"routed={f'{routed * 1e6:.0f}us' if routed >= 0 else '-'} model={words(model) or word(model)} "
            f"node={words(node) or word(node)} tenant={words(tenant) or word(tenant)} "
            f"id={entry.request_id.decode('ascii', 'replace')} attempts={entry.attempts} "
            f"in={entry.bytes_in} out={entry.bytes_out}"
            f"{f' migrated={plain_word(entry.migrated)}' if entry.migrated else ''}"
        )

    def dropped(self, count: int) -> str:
        """The line that says how many are missing."""
        return f"access_log_dropped lines={count}"


class JsonLines(Lines):
    """One JSON object a line, for machines."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(json_word)

    def line(self, entry: Entry) -> str:
        """One entry."""
        at, routed, words, word = entry.at, entry.routed, self.words.get, self.word
        peer, model, node, tenant, reason = entry.peer, entry.model, entry.node_id, entry.tenant, entry.reason
        more = f',"migrated":{json_word(entry.migrated)}' if entry.migrated else ""
        return (
            f'{{"time":"{self.stamp(at)}.{int(at * 1000) % 1000:03d}Z","event":"request","protocol":"{entry.protocol}",'
            f'"peer":{words(peer) or word(peer)},"method":"{entry.method}","code":{entry.code},'
            f'"reason":{words(reason) or word(reason)},"seconds":{entry.seconds:.6f},'
            f'"routed":{f"{routed:.7f}" if routed >= 0 else "null"},"model":{words(model) or word(model)},'
            f'"node":{words(node) or word(node)},"tenant":{words(tenant) or word(tenant)},'
            f'"request_id":"{entry.request_id.decode("ascii", "replace")}","attempts":{entry.attempts},'
            f'"bytes_in":{entry.bytes_in},"bytes_out":{entry.bytes_out}'
            f"{more}}}"
        )

    def dropped(self, count: int) -> str:
        """The line that says how many are missing."""
        return f'{{"event":"access_log_dropped","lines":{count}}}'
