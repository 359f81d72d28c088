"""``laya health``: ask a router or a node whether it lives and takes requests, by the gRPC health protocol.

For whoever has no probe of its own for that: a container's HEALTHCHECK, an init script, a load balancer's hook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shared.cli import state
from shared.cli.secure import credentials as credentials_of
from shared.config import ConfigError

if TYPE_CHECKING:
    import grpc

READY = "laya.v1.Inference"
NOT_SERVING, UNREACHED = 1, 4


@click.command("health")
@click.argument("address", required=False)
@click.option("--live", is_flag=True, help="Ask only whether the process lives, not whether it takes requests.")
@click.option("--service", default=READY, show_default=True, help="Service to ask about.")
@click.option(
    "--ready-once",
    metavar="FILE",
    help="Ask whether it takes requests until it once did, then only whether it lives; FILE remembers.",
)
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for an answer.")
@click.option("--tls", is_flag=True, envvar="LAYA_HEALTH_TLS", help="Speak TLS; implied by the files below.")
@click.option(
    "--ca",
    envvar="LAYA_HEALTH_CA",
    metavar="FILE",
    help="PEM certificates that sign the server's; default: the machine's own.",
)
@click.option(
    "--cert", envvar="LAYA_HEALTH_CERT", metavar="FILE", help="PEM certificate to show, where the server asks for one."
)
@click.option("--cert-key", envvar="LAYA_HEALTH_CERT_KEY", metavar="FILE", help="Its private key.")
@click.option(
    "--server-name",
    envvar="LAYA_HEALTH_SERVER_NAME",
    metavar="NAME",
    help="Name in the server's certificate, where it is not the address.",
)
@click.option("--quiet", is_flag=True, help="Say nothing; the exit code tells.")
def command(
    address: str | None,
    live: bool,
    service: str,
    ready_once: str | None,
    timeout: float,
    tls: bool,
    ca: str | None,
    cert: str | None,
    cert_key: str | None,
    server_name: str | None,
    quiet: bool,
) -> None:
    """Ask the router or node at ADDRESS (host:port or unix:/path) whether it takes requests.

    The options of TLS are also read from LAYA_HEALTH_TLS, LAYA_HEALTH_CA, LAYA_HEALTH_CERT, LAYA_HEALTH_CERT_KEY and
    LAYA_HEALTH_SERVER_NAME. Exit codes: 0 it does, 1 it does not, 4 nothing answers.
    """
    where = state.address(address)
    credentials = credentials_of(ca, cert, cert_key) if tls or ca or cert else None
    live = live or (ready_once is not None and Path(ready_once).exists())
    status, code = _ask(where, "" if live else service, timeout, credentials, server_name)
    if ready_once is not None and code == 0 and not live:
        _remember(Path(ready_once))
    if not quiet:
        click.echo(f"{where}: {status}", err=code != 0)
    sys.exit(code)


def _ask(
    address: str, service: str, timeout: float, credentials: grpc.ChannelCredentials | None, server_name: str | None
) -> tuple[str, int]:
    """What it says, and the exit code."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options = [("grpc.enable_http_proxy", 0)]
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))  # type: ignore[arg-type]
    channel = (
        grpc.secure_channel(address, credentials, options)
        if credentials is not None
        else grpc.insecure_channel(address, options)
    )
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
        except grpc.RpcError as e:
            code = e.code()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return f"nothing answers within {timeout:g} s ({_short(e.details())})", UNREACHED
            return f"{code.name}: {_short(e.details())}", NOT_SERVING
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return status, 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else NOT_SERVING


def _remember(file: Path) -> None:
    try:
        file.touch()
    except OSError as e:
        raise ConfigError(f"--ready-once: {file} cannot be written ({e.strerror})") from None


def _short(text: str | None) -> str:
    return (text or "no details").splitlines()[0][:200]
