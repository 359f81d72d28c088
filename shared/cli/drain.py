"""``laya drain``: take a node out of service, or back in."""

from __future__ import annotations

from typing import Any

import click

from shared.cli import state, talk


@click.command("drain")
@click.argument("node_id")
@click.option("--grace", type=click.FloatRange(min=0), default=0.0, help="Seconds to finish; 0: the node's own.")
@click.option("--undo", is_flag=True, help="Take requests again.")
@talk.admin_options
@talk.json_option
def command(node_id: str, grace: float, undo: bool, admin: str | None, as_json: bool) -> None:
    """Let NODE_ID take no new request and finish those it has."""
    where = state.admin_address(admin)
    answer = talk.run(_drain(where, node_id, grace, undo), where).drain
    if as_json:
        talk.print_json({"draining": answer.draining, "running": answer.running, "waiting": answer.waiting})
    elif answer.draining:
        click.echo(f"{node_id} drains: {answer.running} running, {answer.waiting} waiting")
    else:
        click.echo(f"{node_id} takes requests")


async def _drain(admin: str, node_id: str, grace: float, undo: bool) -> Any:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    request = admin_pb2.DrainNodeRequest(node_id=node_id, grace_seconds=grace, undo=undo)
    return await admin_call(admin, "DrainNode", request)
