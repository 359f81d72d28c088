"""The rules as the Admin service shows and changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from router_node.routes.book import Book, Change, Op, Put, Remove, applied
from router_node.routes.conditions import Conditions
from router_node.routes.desk import Desk, Outcome
from router_node.routes.facts import Facts, Shape
from router_node.routes.live import LiveTable
from router_node.routes.manager import RouteManager
from router_node.routes.patterns import CONTENT_BYTES
from router_node.routes.rules import RouteError, Rule, encode, from_json
from router_node.routes.table import RouteTable
from shared.errors import Code, LayaError, invalid
from shared.pb.laya.v1 import admin_pb2 as pb

NEAR: Final = 8  # rules that nearly apply, as told
_BYTES_PER_TOKEN: Final = 4


class RoutesView:
    """``table`` is what requests go by; ``kept`` says where the newest version is kept."""

    def __init__(self, table: RouteTable, manager: RouteManager, desk: Desk, kept: Callable[[], str]) -> None:
        self._table = table
        self._manager = manager
        self._desk = desk
        self._kept = kept

    def get(self, request: pb.GetRoutesRequest) -> pb.GetRoutesResponse:
        """Rules by name, or all. Raises LayaError NOT_FOUND."""
        rules = self._rules_at(request.number if request.HasField("number") else None)
        if request.names:
            missing = [name for name in request.names if name not in rules]
            if missing:
                raise LayaError(
                    Code.NOT_FOUND,
                    "ROUTE_NOT_FOUND",
                    f"There is no route {missing[0][:128]!r}; there are {', '.join(sorted(rules)[:20]) or 'none'}.",
                )
            rules = {name: rules[name] for name in request.names}
        return pb.GetRoutesResponse(
            version=_version(self._manager.book),
            rules_json=[encode(rule).decode() for rule in sorted(rules.values(), key=lambda rule: rule.order)],
            live_number=self._manager.version,
            kept=self._kept(),
        )

    async def change(self, request: pb.ChangeRoutesRequest) -> pb.ChangeRoutesResponse:
        """Put and remove. Raises LayaError."""
        try:
            puts = [from_json(raw.encode()) for raw in request.put_json]
        except RouteError as error:
            raise invalid(f"Nothing was changed: {error}.", "put_json", "ROUTE_INVALID") from None
        made = await self._desk.change(
            puts,
            [Remove(name) for name in request.remove],
            author=request.author,
            note=request.note,
            replace=request.replace,
            expected=request.expected if request.HasField("expected") else -1,
            dry=request.dry_run,
        )
        return pb.ChangeRoutesResponse(version=_version(made.book), edits=_made(made), warnings=made.warnings)

    async def roll_back(self, request: pb.RollBackRoutesRequest) -> pb.RollBackRoutesResponse:
        """Go back. Raises LayaError."""
        made = await self._desk.roll_back(
            request.number,
            author=request.author,
            expected=request.expected if request.HasField("expected") else -1,
            dry=request.dry_run,
        )
        return pb.RollBackRoutesResponse(version=_version(made.book), edits=_made(made), warnings=made.warnings)

    def history(self, request: pb.RouteHistoryRequest) -> pb.RouteHistoryResponse:
        """The changes that are remembered."""
        changes = list(self._manager.history)[-(request.limit or len(self._manager.history) or 1) :]
        return pb.RouteHistoryResponse(
            changes=[
                pb.RouteChange(
                    number=change.number,
                    author=change.author,
                    at=change.at,
                    note=change.note,
                    edits=_edits(change.ops, change.undo),
                )
                for change in changes
            ]
        )

    def explain(
        self, request: pb.ExplainRequest, of_pool: Callable[[pb.ExplainRequest], pb.ExplainResponse]
    ) -> pb.ExplainResponse:
        """Which rule a request falls under and which nearly, then where the pool's nodes stand, as ``of_pool`` says.

        Raises LayaError.
        """
        live = self._table.live
        if live is None:
            return of_pool(request)
        facts = _facts(request)
        found = live.matcher.match(facts)
        match = pb.RouteMatch(number=live.number, near=_near(live, facts, found))
        if found is None:
            answer = of_pool(request)
            answer.route.CopyFrom(match)
            return answer
        route = live.route(found)
        legs = route.legs.order(request.session.encode())
        match.name = route.name
        match.pools.extend(leg.pool for leg in legs)
        answer = self._first(request, [leg.pool for leg in legs], of_pool)
        answer.summary = f"Route {route.name!r} of version {live.number} leads to {match.pools[0]!r}. {answer.summary}"
        answer.route.CopyFrom(match)
        return answer

    @staticmethod
    def _first(
        request: pb.ExplainRequest,
        pools: Iterable[str],
        of_pool: Callable[[pb.ExplainRequest], pb.ExplainResponse],
    ) -> pb.ExplainResponse:
        """The decision in the first pool that can take the request; else in the first that there is."""
        passed: list[str] = []
        waits: pb.ExplainResponse | None = None
        for pool in pools:
            asked = pb.ExplainRequest()
            asked.CopyFrom(request)
            asked.model = pool
            try:
                answer = of_pool(asked)
            except LayaError as error:
                passed.append(error.message)
                continue
            if answer.node_id:
                answer.summary = " ".join([*passed, answer.summary])
                return answer
            waits = waits or answer
            passed.append(answer.summary)
        return waits or pb.ExplainResponse(summary=" ".join(passed))

    def _rules_at(self, number: int | None) -> Mapping[str, Rule]:
        book = self._manager.book
        if number is None or number == book.number:
            return book.rules
        return applied(book.rules, self._desk.difference(number))


def _version(book: Book) -> pb.RoutesVersion:
    return pb.RoutesVersion(lineage=book.lineage, number=book.number, digest=book.digest)


def _made(made: Outcome) -> list[pb.RouteEdit]:
    change: Change | None = made.change
    return _edits(change.ops, change.undo) if change is not None else []


def _edits(ops: Sequence[Op], undo: Sequence[Op]) -> list[pb.RouteEdit]:
    return [
        pb.RouteEdit(name=op.name, before_json=_json(old), after_json=_json(op))
        for op, old in zip(ops, undo, strict=True)
    ]


def _json(op: Op) -> str:
    return encode(op.rule).decode() if isinstance(op, Put) else ""


def _facts(request: pb.ExplainRequest) -> Facts:
    prompt = request.prompt.encode()
    shape = Shape(request.streaming, request.structured, request.tools, prompt[:CONTENT_BYTES])
    return Facts(
        request.model,
        request.tenant,
        request.priority,
        request.prompt_tokens or -(-len(prompt) // _BYTES_PER_TOKEN),
        {name.lower().encode(): value.encode("latin-1", "replace") for name, value in request.headers.items()},
        lambda: shape,
    )


def _near(live: LiveTable, facts: Facts, found: Conditions | None) -> list[pb.RouteMiss]:
    """Rules that fail by one condition, or that come too late."""
    out: list[pb.RouteMiss] = []
    for conditions in sorted(live.matcher.rules.values(), key=lambda rule: rule.order):
        if conditions is found:
            continue
        why = conditions.failures(facts, live.matcher.content)
        if not why and found is not None:
            why = [f"{found.rule.name!r} comes before it"]
        if len(why) == 1:
            out.append(pb.RouteMiss(name=conditions.rule.name, why=why))
            if len(out) == NEAR:
                break
    return out
