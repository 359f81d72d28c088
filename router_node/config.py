"""The router's command line, and what makes a configuration unsafe to serve with."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from router_node.discovery.address import AddressError, is_loopback, split_address
from router_node.discovery.registration import valid_cluster
from router_node.middleware.keys import KeyFileError, KeyRecord, KeyStore
from router_node.successor import Inherited
from shared.config import Config, ConfigError
from shared.config.loader import load, redact_url
from shared.store import check_url
from shared.version import __version__


class Options(NamedTuple):
    """What a router process is started with. ``ready_fd`` is -1 where nobody waits, ``inherited`` mostly empty."""

    config: Config
    ready_fd: int
    warnings: list[str]
    keys: Sequence[KeyRecord] | None  # None: every caller is accepted
    inherited: Inherited = Inherited()


def parse(argv: Sequence[str] | None = None, inherited: Inherited = Inherited()) -> Options:  # noqa: B008 - immutable
    """Read flags, file and environment. Raises ConfigError; argparse itself ends with 2 on unknown flags.

    A process that succeeds another one is ``inherited`` what that had; its own flags were the other's.
    """
    flags = _parser().parse_args(argv)
    config = load(
        flags.config,
        overrides={
            "server.host": flags.host,
            "server.port": flags.port,
            "server.redis": flags.redis,
            "server.cluster": flags.cluster,
            "server.keys_file": flags.keys_file,
            "server.insecure": flags.insecure or None,
            "server.log_level": flags.log_level,
            "server.log_format": flags.log_format,
            "router.nodes": flags.node,
            "router.admin_host": flags.admin_host,
            "router.admin_port": flags.admin_port,
            "router.workers": flags.workers,
        },
    )
    warnings = check(config)
    ready_fd = inherited.ready_fd if inherited.ready_fd >= 0 else _usable_fd(flags.ready_fd)
    return Options(config, ready_fd, warnings, load_keys(config), inherited)


def check(config: Config) -> list[str]:
    """Warnings about a configuration that works but is open. Raises ConfigError for one that must not be served."""
    server, router = config.server, config.router
    if not valid_cluster(server.cluster):
        raise ConfigError("server.cluster: must be 1 to 64 letters, digits and . _ -, beginning with a letter or digit")
    token = server.cluster_token
    if token and not (token.isascii() and token.isprintable() and " " not in token and len(token) <= 1024):
        raise ConfigError("server.cluster_token: must be printable ASCII without spaces, at most 1024 characters")
    _check_redis(server.redis)
    hosts = [_host(node, f"router.nodes[{i}]") for i, node in enumerate(config.router.nodes)]
    return [
        *_exposed(
            config,
            not is_loopback(server.host) and not server.keys_file,
            f"server.host: {server.host or 'every address'} can be reached by others and no API keys are set",
            "make keys with `laya keys add` and set server.keys_file",
        ),
        *_exposed(
            config,
            not is_loopback(config.router.admin_host) and not token,
            f"router.admin_host: {config.router.admin_host or 'every address'} can be reached by others"
            " and nothing protects the Admin service",
            "set server.cluster_token, or use 127.0.0.1",
        ),
        *_exposed(
            config,
            not token and (bool(router.dns or server.consul.address) or any(not is_loopback(host) for host in hosts)),
            "router.nodes, router.dns, server.consul: nodes beyond loopback are asked without a cluster token",
            "set the same server.cluster_token on routers and nodes",
        ),
        *_forgetful(config),
    ]


def _forgetful(config: Config) -> list[str]:
    """What a mode promises and cannot keep without a store: said, rather than passed over."""
    if config.router.mode in ("auto", "memory") or config.server.redis:
        return []
    return [
        f"router.mode: {config.router.mode} needs server.redis; without it sessions are kept in memory alone, and a"
        " restarted router forgets those that are elsewhere than the ring has them"
    ]


def load_keys(config: Config) -> Sequence[KeyRecord] | None:
    """The API keys, or None where no key file is configured. Raises ConfigError."""
    if not config.server.keys_file:
        return None
    try:
        return KeyStore(config.server.keys_file).list()
    except KeyFileError as error:
        raise ConfigError(f"server.keys_file: {error}") from None


def _exposed(config: Config, is_open: bool, what: str, fix: str) -> list[str]:
    if not is_open:
        return []
    if not config.server.insecure:
        raise ConfigError(f"{what}; {fix}, or accept it with server.insecure (--insecure)")
    return [f"{what}; {fix} (server.insecure accepts it)"]


def _check_redis(url: str) -> None:
    if not url:
        return
    if not check_url(url):
        raise ConfigError(
            "server.redis: must be redis://HOST:PORT/DB, rediss://…, unix:///PATH or"
            f" redis+sentinel://HOST:PORT,HOST:PORT/SERVICE, not {redact_url(url)[:120]!r}"
        )


def _host(node: str, key: str) -> str:
    try:
        return split_address(node)[0]
    except AddressError as error:
        raise ConfigError(f"{key}: {error}") from None


def _usable_fd(number: int) -> int:
    if number >= 0:
        try:
            os.fstat(number)
        except OSError:
            raise ConfigError(f"--ready-fd: file descriptor {number} is not open") from None
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="laya-router",
        description="Route requests to the nodes that serve quantized language models.",
        epilog="Flags stand over LAYA_SECTION__KEY in the environment, which stand over the file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration")
    parser.add_argument("--host", help="address of the public listener (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port of the public listener (8000); 0 takes any free one")
    parser.add_argument("--redis", metavar="URL", help="store where nodes register")
    parser.add_argument("--cluster", metavar="NAME", help="namespace in the store (laya)")
    parser.add_argument("--node", action="append", metavar="HOST:PORT", help="a static node; may be repeated")
    parser.add_argument("--keys-file", metavar="FILE", help="API keys made by `laya keys add`")
    parser.add_argument("--admin-host", help="address of the private listener (127.0.0.1)")
    parser.add_argument("--admin-port", type=int, help="port of the private listener (8001); 0 takes any free one")
    parser.add_argument("--workers", type=int, metavar="N", help="processes on the public port (1)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", choices=("text", "json"))
    parser.add_argument("--insecure", action="store_true", help="accept every caller beyond loopback")
    parser.add_argument("--ready-fd", type=int, default=-1, metavar="N", help="write a JSON line here when serving")
    parser.add_argument("--version", action="version", version=f"laya-router {__version__}")
    return parser


def complain(error: Exception) -> None:
    """Say on stderr, in one sentence, why the process cannot go on."""
    print(f"laya-router: {error}", file=sys.stderr)
