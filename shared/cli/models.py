"""``laya models``: what can be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shared.cli import state, talk
from shared.cli.secure import Secure

if TYPE_CHECKING:
    from shared.pb.laya.v1 import inference_pb2 as pb


@click.command("models")
@talk.server_options
@talk.json_option
def command(address: str | None, key: str | None, secure: Secure, as_json: bool) -> None:
    """Show the models that can be asked for."""
    where = state.address(address)
    models = talk.run(_models(where, key, secure), where)
    if as_json:
        talk.print_json([_plain(m) for m in models])
    elif not models:
        click.echo("no model is served yet", err=True)
    else:
        talk.table(
            ["MODEL", "ALIASES", "CONTEXT", "QUANTIZATION", "ENGINE", "NODES"],
            [
                [m.name, ",".join(m.aliases) or "-", str(m.max_seq_len), m.quantization or "-", m.engine, str(m.nodes)]
                for m in models
            ],
        )


def _plain(m: pb.ModelInfo) -> dict[str, object]:
    return {
        "name": m.name,
        "aliases": list(m.aliases),
        "revision": m.revision,
        "max_seq_len": m.max_seq_len,
        "quantization": m.quantization,
        "engine": m.engine,
        "nodes": m.nodes,
    }


async def _models(address: str, key: str | None, secure: Secure) -> list[pb.ModelInfo]:
    from shared.client import LayaClient

    async with LayaClient(address, key, **secure.client()) as client:
        return await client.models()
