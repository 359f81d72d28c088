"""TLS of commands that talk to a server: which certificates sign it, which one is shown, and under which name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from shared.config import ConfigError

if TYPE_CHECKING:
    import grpc

F = TypeVar("F", bound=Callable[..., Any])


class Secure(NamedTuple):
    """How a client's connection is secured; by default not at all."""

    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    server_name: str | None = None

    def client(self) -> dict[str, Any]:
        """Arguments for ``LayaClient``; raises ConfigError for files that cannot be read."""
        if not (self.tls or self.ca or self.cert or self.cert_key):
            return {}
        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return {"credentials": credentials(self.ca, self.cert, self.cert_key), "options": name}


def tls_options(f: F) -> F:
    """``--tls``, ``--ca``, ``--cert``, ``--cert-key``, ``--server-name``; the command gets them as ``secure``."""

    @wraps(f)
    def with_them(**given: Any) -> Any:
        secure = Secure(*(given.pop(name) for name in Secure._fields))
        return f(**given, secure=secure)

    for flag, variable, metavar, help_text in (
        ("--server-name", "LAYA_SERVER_NAME", "NAME", "Name in the router's certificate, where it is not the address."),
        ("--cert-key", "LAYA_CERT_KEY", "FILE", "Its private key; or LAYA_CERT_KEY."),
        ("--cert", "LAYA_CERT", "FILE", "PEM certificate to show, where the router asks for one; or LAYA_CERT."),
        ("--ca", "LAYA_CA", "FILE", "PEM certificates that sign the router's; or LAYA_CA. Default: the machine's own."),
    ):
        with_them = click.option(flag, envvar=variable, metavar=metavar, help=help_text)(with_them)
    about = "Speak TLS; or LAYA_TLS=1. Implied by the files below."
    return click.option("--tls", is_flag=True, envvar="LAYA_TLS", help=about)(with_them)  # type: ignore[return-value]


def credentials(ca: str | None, cert: str | None, cert_key: str | None) -> grpc.ChannelCredentials:
    """What gRPC makes of these files; raises ConfigError."""
    import grpc

    if bool(cert) != bool(cert_key):
        raise ConfigError("--cert and --cert-key go together; give both or neither")
    return grpc.ssl_channel_credentials(*(_read(name) for name in (ca, cert_key, cert)))


def _read(name: str | None) -> bytes | None:
    if name is None:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as e:
        raise ConfigError(f"{name}: cannot be read ({e.strerror})") from None
