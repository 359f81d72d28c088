"""``laya drain``: take a node out of service, or back in; or end the router itself."""

from __future__ import annotations

from typing import Any

import click

from shared.cli import state, talk


@click.command("drain")
@click.argument("node_id", required=False)
@click.option("--router", is_flag=True, help="Drain the router instead: it finishes what it has, and exits.")
@click.option("--grace", type=click.FloatRange(min=0), default=0.0, help="Seconds to finish; 0: as configured.")
@click.option("--migrate", is_flag=True, help="Move running streams to other nodes at once, where they can go on.")
@click.option("--undo", is_flag=True, help="Take requests again (a node only).")
@talk.admin_options
@talk.json_option
def command(
    node_id: str | None, router: bool, grace: float, migrate: bool, undo: bool, admin: str | None, as_json: bool
) -> None:
    """Let NODE_ID, or the router, take no new request and finish those it has."""
    if router == bool(node_id) or (router and undo):
        raise click.UsageError("Name a node, or give --router (which cannot be undone).")
    if migrate and (router or undo):
        raise click.UsageError(
            "--migrate moves the streams of a node that drains: give it with a node, without --undo."
        )
    where = state.admin_address(admin)
    if node_id is None:
        left = talk.run(_drain_router(where, grace), where)
        if as_json:
            talk.print_json({"draining": True, "in_flight": left.in_flight})
        else:
            click.echo(f"the router drains: {left.in_flight} requests in it")
        return
    answer = talk.run(_drain(where, node_id, grace, undo, migrate), where).drain
    if as_json:
        talk.print_json({"draining": answer.draining, "running": answer.running, "waiting": answer.waiting})
    elif answer.draining:
        click.echo(f"{node_id} drains: {answer.running} running, {answer.waiting} waiting")
    else:
        click.echo(f"{node_id} takes requests")


async def _drain_router(admin: str, grace: float) -> Any:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    return await admin_call(admin, "DrainRouter", admin_pb2.DrainRouterRequest(grace_seconds=grace))


async def _drain(admin: str, node_id: str, grace: float, undo: bool, migrate: bool) -> Any:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    request = admin_pb2.DrainNodeRequest(node_id=node_id, grace_seconds=grace, undo=undo, migrate=migrate)
    return await admin_call(admin, "DrainNode", request)
