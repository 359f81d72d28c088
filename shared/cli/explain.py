"""``laya explain``: which node a request would go to, and what each term of its cost is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shared.cli import state, talk

if TYPE_CHECKING:
    from shared.pb.laya.v1 import admin_pb2 as pb

_TERMS = ("pending", "reserved", "prompt", "step", "barrier", "unseen", "stale", "penalty")


@click.command("explain")
@click.argument("model")
@click.option("--session", default="", help="Session name.")
@click.option("--prompt", default="", help="Prompt text: gives its length, and finds who holds its prefix.")
@click.option("--prompt-tokens", type=click.IntRange(min=0), default=0, help="Prompt length, where there is no text.")
@click.option("--max-tokens", type=click.IntRange(min=0), default=0, help="New tokens; 0: the node's default.")
@click.option("--priority", type=int, default=0, help="Lower is earlier.")
@click.option("--tenant", default="", help="Whose request it is.")
@talk.admin_options
@talk.json_option
def command(admin: str | None, as_json: bool, **asked: Any) -> None:
    """Say which node a request for MODEL would go to now, and why. Changes nothing."""
    where = state.admin_address(admin)
    answer = talk.run(_explain(where, asked), where)
    if as_json:
        talk.print_json(_plain(answer))
        return
    click.echo(answer.summary)
    headings = ["NODE", "COST ms", *(name.upper() for name in _TERMS), "KV", "WHY"]
    talk.table(headings, [_row(one) for one in answer.candidates])


def _row(one: pb.Candidate) -> list[str]:
    terms = [f"{getattr(one, f'{name}_seconds') * 1000:.1f}" for name in _TERMS]
    return [one.node_id, f"{one.cost_seconds * 1000:.1f}", *terms, f"{one.kv_share:.0%}", one.reason]


def _plain(answer: pb.ExplainResponse) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


async def _explain(admin: str, asked: dict[str, Any]) -> pb.ExplainResponse:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    answer: pb.ExplainResponse = await admin_call(admin, "Explain", admin_pb2.ExplainRequest(**asked))
    return answer
