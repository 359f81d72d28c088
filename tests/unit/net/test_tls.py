"""TLS contexts: what they accept, and how each mistake in the files is named."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from shared.config.schema import ConfigError, TlsConfig
from shared.net.tls import client_context, load_pair, server_context
from tests.support.certs import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config(pair: Pair, ca: str = "") -> TlsConfig:
    return TlsConfig(cert_file=pair.cert, key_file=pair.key, ca_file=ca)


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname=name)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in (asking, serving):
            if end not in done:
                try:
                    end.do_handshake()
                    done.add(end)
                except ssl.SSLWantReadError:
                    pass
    assert len(done) == 2
    with contextlib.suppress(ssl.SSLWantReadError):
        serving.read()  # with TLS 1.3 a server learns of a missing client certificate only now
    return serving, asking


def test_without_files_there_is_no_tls():
    assert server_context(TlsConfig()) is None
    assert client_context(TlsConfig()) is None


def test_a_good_pair_serves_http_2_over_tls_1_2_or_later(authority: Authority):
    server = server_context(config(authority.pair("server")))
    client = client_context(TlsConfig(ca_file=authority.file))
    assert server is not None
    assert client is not None
    serving, asking = shake(server, client)
    assert serving.selected_alpn_protocol() == asking.selected_alpn_protocol() == "h2"
    assert server.minimum_version == client.minimum_version == ssl.TLSVersion.TLSv1_2

    client.set_alpn_protocols(["http/1.1"])
    assert shake(server, client)[0].selected_alpn_protocol() == "http/1.1"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(server, client)[0].version() == "TLSv1.2"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_older_versions_of_tls_are_refused(authority: Authority):
    server = server_context(config(authority.pair("server")))
    assert server is not None
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|PROTOCOL_VERSION"):
        shake(server, old)


def test_clients_check_the_servers_name_and_authority(authority: Authority, tmp_path: Path):
    server = server_context(config(authority.pair("server")))
    client = client_context(TlsConfig(ca_file=authority.file))
    assert server is not None
    assert client is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "elsewhere.example")
    stranger = client_context(TlsConfig(ca_file=Authority(tmp_path, "stranger").file))
    assert stranger is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, stranger)


def test_with_an_authority_a_listener_asks_for_client_certificates(authority: Authority, tmp_path: Path):
    server = server_context(config(authority.pair("server"), authority.file))
    known = client_context(config(authority.pair("client"), authority.file))
    unknown = client_context(TlsConfig(ca_file=authority.file))
    foreign = client_context(config(Authority(tmp_path, "stranger").pair("foreign"), authority.file))
    assert server is not None
    assert known is not None
    assert unknown is not None
    assert foreign is not None
    certificate = shake(server, known)[0].getpeercert()
    assert certificate is not None
    assert "commonName" in str(certificate["subject"])
    for client in (unknown, foreign):
        with pytest.raises(ssl.SSLError):
            shake(server, client)


def test_a_reloaded_pair_is_used_by_the_next_handshake(authority: Authority):
    context = server_context(config(authority.pair("first")))
    client = client_context(TlsConfig(ca_file=authority.file))
    assert context is not None
    assert client is not None
    load_pair(context, config(authority.pair("second")))
    certificate = shake(context, client)[1].getpeercert()
    assert certificate is not None
    assert "second" in str(certificate["subject"])


def test_every_mistake_names_the_key_and_the_file(authority: Authority, tmp_path: Path):
    good = authority.pair("good")
    other = authority.pair("other")
    locked = authority.pair("locked", b"secret")
    noise = tmp_path / "noise.pem"
    noise.write_bytes(b"\x00\x01not a certificate")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    missing = str(tmp_path / "missing.pem")

    def message(tls: TlsConfig, key: str = "server.tls") -> str:
        with pytest.raises(ConfigError) as caught:
            server_context(tls, key)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def expect(tls: TlsConfig, key: str, *words: str) -> None:
        text = message(tls)
        assert text.startswith(f"server.tls.{key}: ")
        assert all(word in text for word in words), text

    expect(TlsConfig(cert_file=good.cert), "key_file", "go together")
    expect(TlsConfig(key_file=good.key), "cert_file", "go together")
    expect(TlsConfig(cert_file=missing, key_file=good.key), "cert_file", "no file", missing)
    expect(TlsConfig(cert_file=good.cert, key_file=missing), "key_file", "no file", missing)
    expect(TlsConfig(cert_file=str(tmp_path), key_file=good.key), "cert_file", "cannot be read", str(tmp_path))
    expect(TlsConfig(cert_file=good.cert, key_file=other.key), "key_file", other.key, good.cert, "belongs together")
    expect(TlsConfig(cert_file=good.key, key_file=good.cert), "cert_file", "no certificate", good.key)
    expect(TlsConfig(cert_file=good.cert, key_file=good.cert), "key_file", "no private key")
    expect(TlsConfig(cert_file=str(noise), key_file=good.key), "cert_file", "no certificate", str(noise))
    expect(TlsConfig(cert_file=str(broken), key_file=good.key), "cert_file", str(broken))
    expect(TlsConfig(cert_file=good.cert, key_file=locked.key), "key_file", "encrypted", locked.key)
    expect(config(good, missing), "ca_file", "no file", missing)
    expect(config(good, str(noise)), "ca_file", str(noise))
    expect(config(good, str(broken)), "ca_file", str(broken))
    expect(TlsConfig(ca_file=authority.file), "ca_file", "cert_file")
    assert message(TlsConfig(cert_file=good.cert), "router.node_tls").startswith("router.node_tls.key_file: ")
