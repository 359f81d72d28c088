"""``laya up``: a store, a router and nodes on this machine, with one command and one Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from shared.cli.cluster import Cluster, ClusterOptions
from shared.cli.store import NoEmbeddedStore


@click.command("up")
@click.option("--engine", default=None, help="auto (default), vllm, llama_cpp or sim.")
@click.option("--model", default=None, metavar="PATH|HUB_ID[@REVISION]", help="Model to serve; default: the demo.")
@click.option("--nodes", type=click.IntRange(1, 64), default=None, help="Nodes to run; default 2, or one per GPU.")
@click.option("--host", default=None, help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port to listen on; default 8000.")
@click.option("--redis", default=None, metavar="URL", help="Use this store instead of the embedded one.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), default=None, help="Configuration file.")
@click.option("--verbose", "-v", is_flag=True, help="Show the processes' own logs.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
def command(
    engine: str | None,
    model: str | None,
    nodes: int | None,
    host: str | None,
    port: int | None,
    redis: str | None,
    config: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run a store, a router and nodes on this machine until Ctrl-C.

    With no --model the demo model (SmolLM2-135M-Instruct, W8A8) is prepared once and served.
    """
    options = ClusterOptions(
        engine=engine,
        model=model,
        nodes=nodes,
        host=host,
        port=port,
        redis=redis,
        config=Path(config) if config else None,
        verbose=verbose,
        as_json=as_json,
    )
    from inference_node.quantize import QuantizeError

    try:
        sys.exit(asyncio.run(Cluster(options).run()))
    except NoEmbeddedStore as e:
        click.echo(f"laya: {e}", err=True)
        sys.exit(3)
    except QuantizeError as e:
        click.echo(f"laya: the demo model cannot be made: {e}", err=True)
        sys.exit(3)
