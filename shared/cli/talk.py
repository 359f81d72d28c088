"""What commands that talk to a server share: options, the API key, and errors turned into exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from shared.cli.secure import tls_options
from shared.errors import Code, LayaError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_UNREACHED = frozenset((Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED))


def server_options(f: F) -> F:
    """``--address``, ``--key``, and those of TLS."""
    f = tls_options(f)
    f = click.option("--key", default=None, envvar="LAYA_API_KEY", help="API key; or LAYA_API_KEY.")(f)
    return click.option(
        "--address", default=None, metavar="HOST:PORT", help="Router; default: the running `laya up`, or port 8000."
    )(f)


def admin_options(f: F) -> F:
    """``--admin``."""
    return click.option(
        "--admin",
        default=None,
        metavar="HOST:PORT",
        help="Router's private listener, or the router of a `laya up`; default: the running `laya up`.",
    )(f)


def json_option(f: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(f)


def run(work: Coroutine[Any, Any, T], address: str) -> T:
    """Run a command's work; a LayaError ends the process with one line and an exit code that means something."""
    try:
        return asyncio.run(work)
    except LayaError as e:
        if not e.reason and e.code in _UNREACHED:
            click.echo(f"laya: nothing answers at {address}; start it with `laya up`, or name it", err=True)
            sys.exit(4)
        hint = f" (try again in {e.retry_after:.1f} s)" if e.retry_after else ""
        click.echo(f"laya: {e.message}{hint}", err=True)
        sys.exit(4 if e.code in _UNREACHED else 5)
    except KeyboardInterrupt:
        sys.exit(130)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def table(headings: list[str], rows: list[list[str]]) -> None:
    """A plain table with aligned columns."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    for row in [headings, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def colour() -> bool:
    """Whether standard output is a terminal that shows colour."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
