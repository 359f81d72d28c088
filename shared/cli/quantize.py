"""``laya quantize``: a checkpoint in 8 or 4 bits, ready for vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shared.cli import talk
from shared.cli.progress import Bar


@click.command("quantize")
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--scheme", type=click.Choice(["w8a8", "w4a16"]), default="w8a8", show_default=True)
@talk.json_option
def command(src: Path, out: Path, scheme: str, as_json: bool) -> None:
    """Quantize SRC (a GGUF file or a folder of safetensors) to the new folder OUT."""
    from inference_node.quantize import QuantizeError, convert

    try:
        with Bar(f"Quantizing to {scheme}", quiet=as_json) as bar:
            done = convert.quantize(src, out, scheme, progress=bar.update)
    except QuantizeError as e:
        click.echo(f"laya: {e}", err=True)
        sys.exit(1)
    except ImportError as e:
        click.echo(f"laya: {e.name} is not installed; run make setup", err=True)
        sys.exit(3)
    if as_json:
        talk.print_json(
            {
                "path": str(done.path),
                "scheme": done.scheme,
                "layers": done.layers,
                "source_bytes": done.source_bytes,
                "output_bytes": done.output_bytes,
                "seconds": round(done.seconds, 1),
                "chat_template": done.chat_template,
            }
        )
        return
    click.echo(f"{done.path}: {done.layers} layers, {done.output_bytes / 2**20:.0f} MiB in {done.seconds:.0f} s")
    if not done.chat_template:
        click.echo("The checkpoint has no chat template: chat requests to it will be refused.")
    click.echo(f"Serve it with laya up --model {done.path}")
