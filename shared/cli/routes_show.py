"""The subcommands of ``laya routes`` that change nothing."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from shared.cli import routes_text, state, talk

if TYPE_CHECKING:
    from router_node.routes.rules import Rule
    from shared.pb.laya.v1 import admin_pb2 as pb


@click.command("list")
@talk.admin_options
@talk.json_option
def list_routes(admin: str | None, as_json: bool) -> None:
    """List the rules in the order in which they are tried."""
    where = state.admin_address(admin)
    answer = talk.run(fetch(where), where)
    rules = [routes_text.from_json(raw) for raw in answer.rules_json]
    if as_json:
        talk.print_json({"version": answer.version.number, "lineage": answer.version.lineage, "rules": plain(rules)})
        return
    click.echo(answer.kept, err=True)
    if not rules:
        click.echo("there are no rules: every request goes by its model's name", err=True)
        return
    rows = []
    for rule in rules:
        when, targets = routes_text.summary(rule)
        rows.append([rule.name, str(rule.priority), when, targets])
    talk.table(["NAME", "PRIORITY", "WHEN", "TO"], rows)


@click.command("get")
@click.argument("names", nargs=-1)
@click.option("--version", type=int, default=None, help="As they were at this version.")
@talk.admin_options
@talk.json_option
def get(names: tuple[str, ...], version: int | None, admin: str | None, as_json: bool) -> None:
    """Print rules as YAML, all or those with NAMES; `laya routes put` takes it back."""
    where = state.admin_address(admin)
    answer = talk.run(fetch(where, names, version), where)
    rules = [routes_text.from_json(raw) for raw in answer.rules_json]
    if as_json:
        talk.print_json(plain(rules))
    else:
        click.echo(routes_text.to_yaml(rules), nl=False)


@click.command("diff")
@click.argument("what", nargs=-1, required=True)
@talk.admin_options
def diff(what: tuple[str, ...], admin: str | None) -> None:
    """Compare. WHAT is a FILE: what would change were it put with --replace; or one or two versions.

    Exit code 1 says that there are differences.
    """
    where = state.admin_address(admin)
    if len(what) > 2:
        raise click.UsageError("name a file, or one or two versions")
    if all(word.isdigit() for word in what):
        versions = [int(word) for word in what]
        before = talk.run(fetch(where, version=versions[0]), where)
        after = talk.run(fetch(where, version=versions[1] if len(versions) == 2 else None), where)
        labels = (str(versions[0]), str(versions[1] if len(versions) == 2 else after.version.number))
        new = by_name(after)
    else:
        before = talk.run(fetch(where), where)
        new = {rule.name: rule for rule in routes_text.rules_in(what[0])}
        labels = (str(before.version.number), what[0])
    lines = routes_text.differences(by_name(before), new, labels)
    for line in lines:
        click.echo(line)
    if lines:
        raise SystemExit(1)


@click.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Changes to show.")
@talk.admin_options
@talk.json_option
def history(limit: int, admin: str | None, as_json: bool) -> None:
    """Show who changed what and when, the newest last."""
    where = state.admin_address(admin)
    changes = talk.run(_history(where, limit), where).changes
    if as_json:
        talk.print_json(
            [
                {
                    "version": change.number,
                    "author": change.author,
                    "at": change.at,
                    "note": change.note,
                    "routes": [edit.name for edit in change.edits],
                }
                for change in changes
            ]
        )
    elif not changes:
        click.echo("no change is remembered", err=True)
    else:
        talk.table(["VERSION", "WHEN", "WHO", "WHAT"], [_row(change) for change in changes])


@click.command("explain")
@click.argument("model", default="")
@click.option("--prompt", default="", help="Text of the prompt.")
@click.option("--prompt-tokens", type=int, default=0, help="Its length; default: by the text.")
@click.option("--max-tokens", type=int, default=0, help="New tokens at most.")
@click.option("--session", default="", help="Conversation.")
@click.option("--tenant", default="", help="Tenant of the API key.")
@click.option("--priority", type=int, default=0, help="Lower is earlier.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header or metadata; may be repeated.")
@click.option("--streaming", is_flag=True, help="It asks for a stream.")
@click.option("--structured", is_flag=True, help="It asks for output in a given form.")
@click.option("--tools", is_flag=True, help="It offers tools.")
@talk.admin_options
@talk.json_option
def explain(admin: str | None, as_json: bool, headers: tuple[str, ...], **asked: Any) -> None:
    """Say which rule a request for MODEL falls under, which nearly, and where it would go."""
    where = state.admin_address(admin)
    pairs = dict(_pair(text) for text in headers)
    answer = talk.run(_explain(where, {**asked, "headers": pairs}), where)
    if as_json:
        from google.protobuf.json_format import MessageToDict

        talk.print_json(MessageToDict(answer, preserving_proto_field_name=True))
        return
    if answer.route.name:
        click.echo(f"rule {answer.route.name} (version {answer.route.number}): {' > '.join(answer.route.pools)}")
    else:
        click.echo("no rule applies: the model's own pool")
    click.echo(answer.summary)
    for miss in answer.route.near:
        click.echo(f"nearly: {miss.name}: {'; '.join(miss.why)}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header {text!r} must be NAME=VALUE")
    return name.lower(), value


def _row(change: pb.RouteChange) -> list[str]:
    marks = {(True, False): "+", (False, True): "-", (True, True): "~"}
    what = [f"{marks[bool(edit.after_json), bool(edit.before_json)]}{edit.name}" for edit in change.edits]
    shown = " ".join(what[:6]) + (f" and {len(what) - 6} more" if len(what) > 6 else "")
    when = datetime.fromtimestamp(change.at).strftime("%Y-%m-%d %H:%M:%S")
    return [str(change.number), when, change.author, f"{shown} ({change.note})" if change.note else shown]


def by_name(answer: pb.GetRoutesResponse) -> dict[str, Rule]:
    """The rules of an answer."""
    rules = [routes_text.from_json(raw) for raw in answer.rules_json]
    return {rule.name: rule for rule in rules}


def plain(rules: list[Rule]) -> list[dict[str, Any]]:
    """Rules as plain values."""
    from router_node.routes.rules import to_plain

    return [to_plain(rule) for rule in rules]


async def fetch(where: str, names: tuple[str, ...] = (), version: int | None = None) -> pb.GetRoutesResponse:
    """Rules of a router. Raises LayaError."""
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    request = admin_pb2.GetRoutesRequest(names=names)
    if version is not None:
        request.number = version
    answer: pb.GetRoutesResponse = await admin_call(where, "GetRoutes", request)
    return answer


async def _history(where: str, limit: int) -> pb.RouteHistoryResponse:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    request = admin_pb2.RouteHistoryRequest(limit=limit)
    answer: pb.RouteHistoryResponse = await admin_call(where, "RouteHistory", request)
    return answer


async def _explain(where: str, asked: dict[str, Any]) -> pb.ExplainResponse:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    answer: pb.ExplainResponse = await admin_call(where, "Explain", admin_pb2.ExplainRequest(**asked))
    return answer
