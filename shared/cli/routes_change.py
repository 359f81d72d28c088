"""The subcommands of ``laya routes`` that change the rules."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Any

import click

from shared.cli import routes_text, state, talk

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.pb.laya.v1 import admin_pb2 as pb


def _options(f: Callable[..., Any]) -> Callable[..., Any]:
    f = click.option("--dry-run", is_flag=True, help="Check, and show what would change.")(f)
    f = click.option("--expect", type=int, default=None, metavar="VERSION", help="Only if this is the version now.")(f)
    f = click.option("--author", default=None, help="Who changes it; default: you.")(f)
    return talk.admin_options(f)


@click.command("put")
@click.argument("file")
@click.option("--replace", is_flag=True, help="The rules in FILE are all there are to be.")
@click.option("--note", default="", help="Why, for the history.")
@_options
def put(
    file: str, replace: bool, note: str, admin: str | None, author: str | None, expect: int | None, dry_run: bool
) -> None:
    """Put the rules in FILE (YAML; - is standard input) in place, all or none."""
    from router_node.routes.rules import encode

    where = state.admin_address(admin)
    raw = [encode(rule).decode() for rule in routes_text.rules_in(file)]
    wish = {"put_json": raw, "replace": replace, "note": note, "dry_run": dry_run, "expected": expect}
    _tell(talk.run(_change(where, "ChangeRoutesRequest", "ChangeRoutes", author, wish), where), dry_run)


@click.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--note", default="", help="Why, for the history.")
@_options
def remove(
    names: tuple[str, ...], note: str, admin: str | None, author: str | None, expect: int | None, dry_run: bool
) -> None:
    """Remove the rules with NAMES, all or none."""
    where = state.admin_address(admin)
    wish = {"remove": names, "note": note, "dry_run": dry_run, "expected": expect}
    _tell(talk.run(_change(where, "ChangeRoutesRequest", "ChangeRoutes", author, wish), where), dry_run)


@click.command("rollback")
@click.argument("version", type=int)
@_options
def rollback(version: int, admin: str | None, author: str | None, expect: int | None, dry_run: bool) -> None:
    """Make the rules as they were at VERSION; that is a new version."""
    where = state.admin_address(admin)
    wish = {"number": version, "dry_run": dry_run, "expected": expect}
    _tell(talk.run(_change(where, "RollBackRoutesRequest", "RollBackRoutes", author, wish), where), dry_run)


async def _change(
    where: str, kind: str, method: str, author: str | None, wish: dict[str, Any]
) -> pb.ChangeRoutesResponse | pb.RollBackRoutesResponse:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    request = getattr(admin_pb2, kind)(
        author=author or _me(), **{key: value for key, value in wish.items() if value is not None}
    )
    answer: pb.ChangeRoutesResponse | pb.RollBackRoutesResponse = await admin_call(where, method, request)
    return answer


def _tell(answer: pb.ChangeRoutesResponse | pb.RollBackRoutesResponse, dry: bool) -> None:
    before, after = routes_text.of_edits(answer.edits)
    for line in routes_text.differences(before, after, ("old", "new")):
        click.echo(line)
    for warning in answer.warnings:
        click.echo(f"laya: warning: {warning}", err=True)
    if not answer.edits:
        click.echo(f"nothing to change: version {answer.version.number} is so already", err=True)
    elif dry:
        click.echo(f"would change version {answer.version.number}", err=True)
    else:
        click.echo(f"version {answer.version.number}", err=True)


def _me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
