"""TLS contexts of listeners and of connections to nodes, made from the ``tls`` section of the configuration.

TLS 1.2 at least, ALPN ``h2`` and ``http/1.1``. Every mistake in a pair of files is a ConfigError that names the key and
the file: OpenSSL's own messages name neither.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from shared.config.schema import ConfigError, TlsConfig

ALPN: Final = ("h2", "http/1.1")
# AEAD suites with forward secrecy: what RFC 9113 (section 9.2.2) leaves of TLS 1.2.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context(config: TlsConfig, key: str = "server.tls") -> ssl.SSLContext | None:
    """The context of a listener, or None when no certificate is configured.

    With ``ca_file`` a client must show a certificate that this authority signed (mTLS). ``key`` is the name of the
    section, for messages. Raises ConfigError.
    """
    if not config.cert_file and not config.key_file:
        if config.ca_file:
            raise ConfigError(f"{key}.ca_file: verifies clients, so {key}.cert_file and {key}.key_file must be set too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    load_pair(context, config, key)
    if config.ca_file:
        _load_authority(context, config.ca_file, key)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(config: TlsConfig, key: str = "router.node_tls") -> ssl.SSLContext | None:
    """The context of connections that we open, or None when the section is empty.

    ``ca_file`` verifies the peer and its name (without it the system's authorities do); ``cert_file`` and ``key_file``
    are our own certificate where the peer asks for one. Only ``h2`` is offered. Raises ConfigError.
    """
    if not (config.cert_file or config.key_file or config.ca_file):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.set_alpn_protocols(["h2"])
    if config.ca_file:
        _load_authority(context, config.ca_file, key)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if config.cert_file or config.key_file:
        load_pair(context, config, key)
    return context


def load_pair(context: ssl.SSLContext, config: TlsConfig, key: str = "server.tls") -> None:
    """Load certificate chain and private key; on a context in use, new handshakes take the new pair.

    Raises ConfigError for a missing, unreadable, encrypted, malformed or mismatched pair.
    """
    for name, path in (("cert_file", config.cert_file), ("key_file", config.key_file)):
        if not path:
            raise ConfigError(f"{key}.{name}: cert_file and key_file go together; set both or neither")
        _need_readable(path, f"{key}.{name}")
    _need_pem(config.cert_file, b"CERTIFICATE", f"{key}.cert_file")
    _need_pem(config.key_file, b"PRIVATE KEY", f"{key}.key_file")

    def password() -> str:
        raise ConfigError(
            f"{key}.key_file: {config.key_file} is encrypted; give an unencrypted key, readable by us alone"
        )

    try:
        context.load_cert_chain(config.cert_file, config.key_file, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"{config.key_file} is not the key of the certificate in {config.cert_file}"
            raise ConfigError(f"{key}.key_file: {why}; give the pair that belongs together") from None
        why = f"{config.cert_file} and {config.key_file} cannot be used ({_reason(error)})"
        raise ConfigError(f"{key}.cert_file: {why}; give a PEM chain, leaf first, and its key") from None


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(list(ALPN))
    # Renegotiation and compression have no place beside HTTP/2 (RFC 9113, section 9.2).
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _load_authority(context: ssl.SSLContext, path: str, key: str) -> None:
    _need_readable(path, f"{key}.ca_file")
    _need_pem(path, b"CERTIFICATE", f"{key}.ca_file")
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise ConfigError(f"{key}.ca_file: {path} cannot be used ({_reason(error)}); give PEM certificates") from None


def _need_readable(path: str, key: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except FileNotFoundError:
        raise ConfigError(f"{key}: there is no file {path}; give the path of a PEM file") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror}); make it a readable PEM file") from None


def _need_pem(path: str, label: bytes, key: str) -> None:
    """OpenSSL says "PEM lib" for every wrong file; this tells a key from a certificate and both from noise."""
    text = Path(path).read_bytes()
    if b"-----BEGIN " in text and label + b"-----" in text:
        return
    kind = label.decode().lower()
    raise ConfigError(f"{key}: {path} holds no {kind} in PEM form; give a file with -----BEGIN … {label.decode()}-----")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unknown TLS error").replace("_", " ").lower()
