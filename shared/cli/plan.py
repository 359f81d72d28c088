"""``laya plan``: what a model takes of a memory, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from shared.cli import talk

if TYPE_CHECKING:
    from inference_node.memory.plan import Options, Plan, Planner


class _Size(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from inference_node.memory.units import parse_size

        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ValueError as e:
            self.fail(str(e), param, ctx)


_COUNT = click.IntRange(1, 1 << 26)


@click.command("plan")
@click.argument("model")
@click.option("--memory", type=_Size(), help="Memory to fit in, as 24GiB; default: what this machine has free.")
@click.option("--max-seq-len", type=_COUNT, metavar="N", help="Context, in tokens; default: the longest that fits.")
@click.option("--max-num-seqs", type=click.IntRange(1, 4096), metavar="N", help="Sequences that run at once.")
@click.option("--quantization", default="", metavar="SCHEME", help="Weights as they would be: awq, fp8, w8a8, w4a16 …")
@click.option("--kv-dtype", default="auto", metavar="TYPE", help="Type of the KV cache: auto, fp8 …")
@click.option("--dtype", type=click.Choice(["auto", "bfloat16", "float16", "float32"]), default="auto")
@click.option(
    "--device", type=click.Choice(["gpu", "cpu"]), help="Default: gpu where --memory is given, else by machine."
)
@click.option(
    "--tensor-parallel-size", "ranks", type=click.IntRange(1, 64), default=1, metavar="N", help="GPUs per copy."
)
@click.option("--revision", default="", help="Revision of a hub id.")
@click.option("--offline", is_flag=True, help="Never ask the hub.")
@click.option(
    "--chart", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw the chart here."
)
@talk.json_option
def command(
    model: str,
    memory: int | None,
    max_seq_len: int | None,
    max_num_seqs: int | None,
    quantization: str,
    kv_dtype: str,
    dtype: str,
    device: str | None,
    ranks: int,
    revision: str,
    offline: bool,
    chart: Path | None,
    as_json: bool,
) -> None:
    """Show what MODEL takes of a memory: a folder, a GGUF file, a hub id or a well-known name.

    Nothing is started and no weight is read. Exit code 0: it fits. 1: it does not, and what to change is shown.
    """
    from inference_node.memory.checkpoint import CheckpointError, find
    from inference_node.memory.plan import Options, Planner
    from inference_node.memory.quant import PlanError
    from inference_node.memory.shapes import ShapeError

    kind, size = _memory(memory, device)
    options = Options(device=kind, quantization=quantization, kv_dtype=kv_dtype, dtype=dtype, tensor_parallel=ranks)
    try:
        found = find(model, revision, offline=offline)
        planner = Planner(found.shape, found.weights, _with_amx(options), size)
    except (CheckpointError, ShapeError, PlanError) as e:
        _refuse(str(e))
    plan = _plan(planner, max_seq_len or 0, max_num_seqs or 0)
    if chart is not None:
        _draw(planner, plan, chart)
    fits = _show(planner, plan, as_json)
    sys.exit(0 if fits else 1)


def _memory(memory: int | None, device: str | None) -> tuple[str, int]:
    """Kind of device and bytes to plan with."""
    if memory is not None:
        return device or "gpu", memory
    from inference_node.memory import device as devices

    found = devices.gpus() if device != "cpu" else None
    if found is None and device != "gpu":
        found = devices.host()
    if found is None:
        _refuse("this machine does not tell how much memory there is; name it with --memory 24GiB")
    return found.kind, found.free


def _with_amx(options: Options) -> Options:
    from dataclasses import replace

    from inference_node.memory.device import has_amx

    return replace(options, amx=has_amx()) if options.device == "cpu" else options


def _plan(planner: Planner, context: int, sequences: int) -> Plan:
    """The plan asked for; what is left open is filled in as large as fits under the mark, or as the node would."""
    from inference_node.memory.choice import DEFAULT_CONTEXT, Wanted, choose

    if not context and not sequences:
        return choose(planner, Wanted()).plan
    own = min(planner.shape.max_context, DEFAULT_CONTEXT)
    for share in (0.8, 1.0):
        many = sequences or planner.most_sequences(context, share)
        length = context or planner.longest_context(many, share)
        if many and length:
            return planner.plan(length, many)
    return planner.plan(context or own, sequences or 1)


def _show(planner: Planner, plan: Plan, as_json: bool) -> bool:
    from inference_node.memory import advice, chart, screen
    from inference_node.memory.plan import Verdict

    fits = plan.verdict is not Verdict.NO
    found = [] if plan.verdict is Verdict.EASY else advice.changes(planner, plan)
    if as_json:
        talk.print_json(screen.as_data(planner, plan, found))
        return fits
    lines = screen.sums(plan)
    if found:
        lines += ["", *screen.ways_out(found)]
    lines += ["", *screen.reach(planner, plan), "", *chart.grid(planner, plan, colour=talk.colour())]
    click.echo("\n".join(lines))
    return fits


def _draw(planner: Planner, plan: Plan, path: Path) -> None:
    from inference_node.memory import chart

    try:
        chart.png(planner, plan, path)
    except chart.ChartError as e:
        _refuse(str(e))


def _refuse(why: str) -> NoReturn:
    click.echo(f"laya: {why}", err=True)
    sys.exit(2)
