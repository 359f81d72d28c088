"""A large body is not taken in from somebody without a key."""

from __future__ import annotations

from router_node.middleware.keys import KeyRecord
from shared.net.http1_parser import Refusal, RequestParser
from shared.net.uploads import SMALL_BODY, Uploads
from tests.support.h2_rig import ManualLoop
from tests.support.relay_rig import Rig
from tests.unit.gateway.test_gateway import CHAT, KEY, SECRET


async def test_without_keys_everybody_may():
    rig = Rig()
    assert rig.gateway.gate(b"POST", CHAT, []) is None


async def test_with_keys_only_those_who_have_one_may_and_a_refusal_counts_as_a_request():
    keys: list[KeyRecord] = [KEY]
    rig = Rig(keys=keys)
    assert rig.gateway.gate(b"POST", CHAT, [(b"authorization", b"Bearer " + SECRET)]) is None
    error = rig.gateway.gate(b"POST", CHAT + b"?a=1", [])
    assert error is not None and (error.http_status, error.reason) == (401, "KEY_MISSING")
    error = rig.gateway.gate(b"POST", b"/else", [(b"authorization", b"Bearer x")])
    assert error is not None and error.reason == "KEY_INVALID"
    assert rig.metrics.snapshot().requests == [(CHAT.decode(), 401, 1), ("other", 401, 1)]
    assert [entry["reason"] for entry in rig.log.entries] == ["KEY_MISSING", "KEY_INVALID"]
    rig.assert_idle()


async def test_a_request_is_refused_at_its_headers_where_its_body_is_large_or_of_unknown_length():
    rig = Rig(keys=[KEY])
    uploads = Uploads(ManualLoop(), 10.0, 1 << 20)  # type: ignore[arg-type]
    uploads.gate = rig.gateway.gate
    for framing, refused in (
        (b"content-length: %d" % (SMALL_BODY + 1), True),
        (b"transfer-encoding: chunked", True),
        (b"content-length: %d" % SMALL_BODY, False),
        (b"content-length: 0", False),
    ):
        parser = RequestParser(lambda *_: None, 4096, 1 << 20, uploads.refusal)
        try:
            parser.feed(b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % (CHAT, framing))
        except Refusal as refusal:
            assert refused and (refusal.reason, refusal.error.http_status) == ("refused_early", 401)
        else:
            assert not refused, framing
