"""``laya routes``: the rules that lead requests to pools."""

from __future__ import annotations

import click

from shared.cli import routes_change, routes_show


@click.group("routes")
def command() -> None:
    """Show and change the rules that lead requests to pools."""


for one in (
    routes_show.list_routes,
    routes_show.get,
    routes_change.put,
    routes_change.remove,
    routes_show.explain,
    routes_show.diff,
    routes_show.history,
    routes_change.rollback,
):
    command.add_command(one)
