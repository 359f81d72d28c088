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
        fields = ("scheme", "layers", "source_bytes", "output_bytes", "seconds", "chat_template")
        talk.print_json({"path": str(done.path), **{name: getattr(done, name) for name in fields}})
        return
    if not done.chat_template:
        click.echo("the checkpoint has no chat template: it completes text, but cannot chat", err=True)
    smaller = f"{done.source_bytes / 1e6:.0f} MB to {done.output_bytes / 1e6:.0f} MB"
    click.echo(f"{done.path}: {done.layers} layers, {smaller}; serve it with laya up --model {done.path}")
