"""``laya bench``: a named load, its report, and the comparison of two reports."""

from __future__ import annotations

import importlib.util
import sys

import click


class _Plans(click.Group):
    """A group that takes any other first word for a plan."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("bench", cls=_Plans)
def command() -> None:
    """Put a cluster under load and write a report; compare two reports.

    `laya bench [PLAN] [OPTIONS]` runs a plan (`smoke` when none is named), against a running cluster with --target, or
    one that it starts; `laya bench run --help` has the options.

    Exit codes: 0 all was run and nothing failed, 1 requests failed (or, of diff, B is worse), 2 bad usage, 3 something
    is not installed, 4 the target cannot be reached, 5 it lets nobody in, 6 cut short by the budget; 130 interrupted.
    """
    if importlib.util.find_spec("loadtest") is None:
        click.echo(
            "laya: the load tools are not installed here; run `laya bench` from a clone of the sources", err=True
        )
        sys.exit(3)


@command.command("run")
@click.argument("plan", default="smoke")
@click.option("--target", metavar="HOST:PORT", help="Put this cluster under load; default: start one for the plan.")
@click.option("--beside", metavar="HOST:PORT", help="A second target, whose rounds take turns with the first's.")
@click.option("--admin", metavar="HOST:PORT", help="Private listener of the target's router, to look at its nodes.")
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder for the report, new or empty; default: bench/PLAN-TIME."
)
@click.option("--force", is_flag=True, help="Replace the report that is in the folder of --out.")
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=1, show_default=True)
@click.option("--budget", type=click.FloatRange(1.0, 86_400.0), metavar="SECONDS", help="Most time for all rounds.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Instead of the plan's.")
@click.option("--seconds", type=float, help="Length of a round, instead of the plan's.")
@click.option("--rate", type=float, help="Requests a second, instead of the plan's.")
@click.option("--engine", type=click.Choice(["sim", "vllm"]), help="Of the cluster that is started.")
@click.option("--model", default="", help="Model to ask for; default: the first there is.")
@click.option("--key", envvar="LAYA_API_KEY", help="API key; or LAYA_API_KEY.")
@click.option("--tls", is_flag=True, help="Speak TLS to the target.")
@click.option("--ca", metavar="FILE", help="PEM certificates that sign the target's; implies --tls.")
@click.option("--i-own-this-host", "owned", is_flag=True, help="Allow a target beyond loopback.")
@click.option("--no-plots", is_flag=True, help="Do without pictures, and without matplotlib.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def run(**options: object) -> None:
    """Run PLAN (a name that `laya bench plans` lists, or a YAML file) and write its report."""
    from loadtest.bench.command import Options, bench

    sys.exit(bench(Options(**options)))  # type: ignore[arg-type]


@command.command("diff")
@click.argument("a", type=click.Path(exists=True))
@click.argument("b", type=click.Path(exists=True))
@click.option("--out", type=click.Path(dir_okay=False), help="Write a page with both beside each other to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(a: str, b: str, out: str | None, as_json: bool) -> None:
    """Say whether report B (a folder or its report.json) is better or worse than A."""
    from loadtest.bench.command import compare

    sys.exit(compare(a, b, out, as_json))


@command.command("plans")
def plans() -> None:
    """List the plans."""
    from loadtest.bench.plans import PLANS

    for plan in PLANS.values():
        length = f"{plan.rounds} x {plan.seconds:g} s at {plan.rate:g}/s"
        click.echo(f"{plan.name:<12}{length:<24}{plan.about}")
