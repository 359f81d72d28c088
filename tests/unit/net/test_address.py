"""Addresses as people write them."""

from __future__ import annotations

import pytest

from shared.net.address import Address, peer_name


class Transport:
    def __init__(self, name: object) -> None:
        self.name = name

    def get_extra_info(self, key: str) -> object:
        return self.name if key == "peername" else None


def test_addresses_are_read():
    assert Address.parse("127.0.0.1:80") == Address("127.0.0.1", 80)
    assert Address.parse("node-1.example:65535") == Address("node-1.example", 65535)
    assert Address.parse("[::1]:7001") == Address("::1", 7001)
    assert Address.parse("unix:/run/laya.sock") == Address(path="/run/laya.sock")


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:8o", "::1:80", "unix:", "[]:1"]
)
def test_what_makes_no_sense_is_refused_by_name(text: str):
    with pytest.raises(ValueError, match="address"):
        Address.parse(text)


def test_peers_are_named_for_logs():
    assert peer_name(Transport(("127.0.0.1", 5))) == "127.0.0.1:5"  # type: ignore[arg-type]
    assert peer_name(Transport(("::1", 5, 0, 0))) == "[::1]:5"  # type: ignore[arg-type]
    assert peer_name(Transport("")) == "unix"  # type: ignore[arg-type]
