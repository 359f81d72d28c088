"""``laya nodes``: the nodes a router knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shared.cli import state, talk

if TYPE_CHECKING:
    from shared.pb.laya.v1 import admin_pb2 as pb


@click.command("nodes")
@talk.admin_options
@talk.json_option
def command(admin: str | None, as_json: bool) -> None:
    """Show the nodes a router knows, their room and what it thinks of them."""
    where = state.admin_address(admin)
    nodes = talk.run(_nodes(where), where)
    if as_json:
        talk.print_json([_plain(n) for n in nodes])
        return
    click.echo(f"private listener of the router: {where} (metrics: http://{where}/metrics)", err=True)
    if not nodes:
        click.echo("the router knows no node", err=True)
    else:
        headings = ["NODE", "STATE", "MODEL", "ADDRESS", "HEADROOM", "RUNNING", "WAITING", "REPORT", "FROM"]
        talk.table(headings, [_row(n) for n in nodes])
        for n in nodes:
            if n.detail:
                click.echo(f"{n.node_id}: {n.detail}", err=True)


def _row(n: pb.NodeStatus) -> list[str]:
    capacity = n.report.kv_capacity_tokens
    room = f"{n.report.headroom_tokens}/{capacity}" if capacity else "-"
    age = f"{n.report_age_seconds:.1f}s ago" if n.report_age_seconds >= 0 else "never"
    return [
        n.node_id,
        n.state,
        n.model.name or "-",
        n.address,
        room,
        str(n.report.running),
        str(n.report.waiting),
        age,
        n.source,
    ]


def _plain(n: pb.NodeStatus) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(n, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


async def _nodes(admin: str) -> list[pb.NodeStatus]:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    return list((await admin_call(admin, "ListNodes", admin_pb2.ListNodesRequest())).nodes)
