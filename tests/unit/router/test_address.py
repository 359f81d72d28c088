"""host:port, as people write it."""

from __future__ import annotations

import pytest

from router_node.discovery.address import AddressError, is_loopback, split_address


@pytest.mark.parametrize(
    "text, parts",
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("node-1.example:65535", ("node-1.example", 65535)),
        ("[::1]:9000", ("::1", 9000)),
        ("[fe80::1%eth0]:9000", ("fe80::1%eth0", 9000)),
        ("tasks.laya_node:9000", ("tasks.laya_node", 9000)),
    ],
)
def test_an_address_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize(
    "text",
    ["", ":80", "host", "host:", "host:0", "host:65536", "host:8 0", "::1:80", "[::1:80", "a/b:80", "-a:80", "h:٣"],
)
def test_anything_else_is_refused_with_what_it_should_be(text: str) -> None:
    with pytest.raises(AddressError, match="must be host:port"):
        split_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "127.0.0.1.example.com", "localhost.example"])
def test_everything_else_is_beyond_loopback(host: str) -> None:
    assert not is_loopback(host)
