"""``laya health`` against a real gRPC health service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.cli.health import READY, command
from tests.support.certs import Authority

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Site:
    """A health service on a free port; ``set`` says what it answers."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self._servicer = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(2))
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        where = "127.0.0.1:0"
        port = (
            self._server.add_secure_port(where, credentials) if credentials else self._server.add_insecure_port(where)
        )
        self.address = f"127.0.0.1:{port}"
        self.set("", SERVING)
        self._server.start()

    def set(self, service: str, status: int) -> None:
        self._servicer.set(service, status)

    def close(self) -> None:
        self._server.stop(None)


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.close()


def ask(*args: str) -> Result:
    return CliRunner().invoke(command, list(args))


def test_a_server_that_takes_requests_is_zero(site: Site) -> None:
    site.set(READY, SERVING)
    result = ask(site.address)
    assert result.exit_code == 0
    assert result.output == f"{site.address}: SERVING\n"


def test_a_server_that_takes_none_is_one_and_alive(site: Site) -> None:
    site.set(READY, NOT_SERVING)
    assert ask(site.address).exit_code == 1
    assert ask(site.address, "--live").exit_code == 0


def test_once_ready_it_need_only_live(site: Site, tmp_path) -> None:
    file = tmp_path / "ready"
    site.set(READY, NOT_SERVING)
    assert ask(site.address, "--ready-once", str(file)).exit_code == 1
    assert not file.exists()
    site.set(READY, SERVING)
    assert ask(site.address, "--ready-once", str(file)).exit_code == 0
    site.set(READY, NOT_SERVING)
    assert ask(site.address, "--ready-once", str(file)).exit_code == 0
    site.close()
    assert ask(site.address, "--ready-once", str(file), "--timeout", "1").exit_code == 4


def test_a_service_that_is_not_there_is_one(site: Site) -> None:
    result = ask(site.address, "--service", "nothing.of.the.kind")
    assert result.exit_code == 1
    assert "NOT_FOUND" in result.output


def test_nobody_there_is_four_and_says_where(site: Site) -> None:
    site.close()
    result = ask(site.address, "--timeout", "1")
    assert result.exit_code == 4
    assert site.address in result.output


def test_quiet_says_nothing(site: Site) -> None:
    result = ask(site.address, "--live", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_a_client_certificate_is_shown_where_it_is_asked_for(tmp_path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.pair("server"), authority.pair("client")
    read = [Path(name).read_bytes() for name in (server.key, server.cert, authority.file)]
    site = Site(grpc.ssl_server_credentials([(read[0], read[1])], read[2], True))
    try:
        assert ask(site.address, "--live", "--ca", authority.file, "--timeout", "2").exit_code == 4
        shown = ask(site.address, "--live", "--ca", authority.file, "--cert", client.cert, "--cert-key", client.key)
        assert shown.exit_code == 0
    finally:
        site.close()


def test_half_a_pair_is_refused(site: Site) -> None:
    result = ask(site.address, "--cert", "cert.pem")
    assert "--cert and --cert-key go together" in str(result.exception)
