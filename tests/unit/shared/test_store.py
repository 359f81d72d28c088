"""URLs of stores: what they say, and what is no URL."""

from __future__ import annotations

import pytest

from shared.config.loader import redact_url
from shared.store import check_url, connect, parse_sentinel

SENTINELS = "rediss+sentinel://me:p%40ss@a:1,[::1]:2,c/main?db=3&sentinel_password=s3cret&ssl_ca_certs=/ca.pem"


def test_a_sentinel_url_says_who_watches_what_and_how_to_log_in() -> None:
    found = parse_sentinel(SENTINELS)
    assert found.sentinels == (("a", 1), ("::1", 2), ("c", 26379))
    assert (found.service, found.tls) == ("main", True)
    assert found.options == {"db": 3, "username": "me", "password": "p@ss", "ssl_ca_certs": "/ca.pem"}
    assert found.sentinel_options == {"password": "s3cret", "ssl_ca_certs": "/ca.pem"}


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("redis://h:1/0", True),
        ("rediss://u:p@h", True),
        ("unix:///s.sock", True),
        (SENTINELS, True),
        ("redis+sentinel://h:1", False),
        ("redis+sentinel://h:x/main", False),
        ("redis+sentinel:///main", False),
        ("redis+sentinel://h/main?x=1", False),
        ("http://h", False),
        ("redis://", False),
        ("redis://h:99999", False),
    ],
)
def test_what_is_no_store_is_known(url: str, good: bool) -> None:
    assert check_url(url) == good


def test_no_password_is_shown() -> None:
    shown = redact_url(SENTINELS)
    assert "p%40ss" not in shown and "s3cret" not in shown and "ssl_ca_certs" in shown


async def test_clients_are_made_without_a_connection() -> None:
    for url in ("redis://127.0.0.1:1/0", "unix:///nowhere.sock", "redis+sentinel://127.0.0.1:1/main"):
        client = connect(url, timeout=1.0, connections=1, name="test")
        await client.aclose()
