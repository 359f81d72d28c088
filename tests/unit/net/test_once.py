"""A field that comes once takes no place in the HPACK table, and is a field like any other to whoever reads it."""

from __future__ import annotations

from ngh2 import Configuration, Connection, RequestReceived, Role

from shared.net.fields import CheckedHeaders, checked
from shared.net.once import once

_HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"node"), (b":path", b"/a/b")]


def _sent(fields: list[list[tuple[bytes, bytes]]]) -> tuple[list[int], list[tuple[bytes, bytes]]]:
    """Bytes of each request that ends with these fields, and the last one's fields as the server reads them."""
    client, server = Connection(Role.CLIENT, Configuration()), Connection(Role.SERVER, Configuration())
    for end in (client, server):
        end.initiate_connection({})
    server.receive_data(client.data_to_send())
    sizes = []
    for more in fields:
        client.send_request([*_HEAD, *more], end_stream=True)
        out = client.data_to_send()
        sizes.append(len(out))
        server.receive_data(out)
    requests = [event for event in server.events() if isinstance(event, RequestReceived)]
    return sizes, list(requests[-1].headers)[len(_HEAD) :]


def test_a_value_that_comes_once_is_not_kept() -> None:
    kept, _ = _sent([[(b"x-request-id", b"abc")]] * 3)
    assert kept[2] < kept[0] - len("x-request-id") // 2  # an index stands for name and value
    plain, _ = _sent([[]] * 3)
    told, read = _sent([[once(b"x-request-id", b"abc")]] * 3)
    assert told[1] - plain[1] == told[2] - plain[2] > len("abc")
    assert read == [(b"x-request-id", b"abc")]


def test_it_is_a_pair() -> None:
    field = once(b"laya-dispatch", b"w-1")
    name, value = field
    assert (name, value) == field == (b"laya-dispatch", b"w-1")
    assert CheckedHeaders([field]) == checked([field])
