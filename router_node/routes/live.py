"""The table that requests go by: one version of all rules, compiled. Never changed; a new version replaces it whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from router_node.dispatch import Reservation, Ticket
from router_node.routes.conditions import Conditions
from router_node.routes.facts import Facts
from router_node.routes.legs import Legs
from router_node.routes.look import look
from router_node.routes.matcher import Matcher
from router_node.routes.plan import Plan
from router_node.routes.rules import Rule
from router_node.routes.slices import Steps, whole
from shared.errors import LayaError

if TYPE_CHECKING:
    from router_node.relay.account import Account
    from router_node.relay.fields import Fields

BYTES_PER_TOKEN: Final = 4  # of a prompt, before its pool is known
_COMPILED: Final = 16  # units of work to compile one rule's conditions


class LiveRoute:
    """One compiled rule with where it leads."""

    __slots__ = ("conditions", "legs", "max_attempts", "name", "tag", "timeout")

    def __init__(self, conditions: Conditions, legs: Legs, tag: bytes) -> None:
        rule = conditions.rule
        self.conditions = conditions
        self.legs = legs
        self.name = rule.name
        self.tag = tag
        self.timeout = rule.timeout or 0.0
        self.max_attempts = rule.max_attempts or 0


class LiveTable:
    """Version ``number`` of the rules ``rules``. ``caps`` are the router's own caps on parameters.

    Raises RouteError. ``before`` shares what did not change; ``changed`` names all that may have since.
    """

    __slots__ = ("_caps", "_routes", "matcher", "number", "reads_body", "rules")

    def __init__(
        self,
        number: int,
        rules: Mapping[str, Rule],
        caps: Mapping[str, int],
        before: LiveTable | None = None,
        changed: Collection[str] | None = None,
    ) -> None:
        whole(self._made(number, rules, caps, before, changed))

    @classmethod
    def of(
        cls,
        number: int,
        rules: Mapping[str, Rule],
        caps: Mapping[str, int],
        before: LiveTable | None = None,
        changed: Collection[str] | None = None,
    ) -> Steps[LiveTable]:
        """As the constructor, in slices."""
        table = cls.__new__(cls)
        yield from table._made(number, rules, caps, before, changed)
        return table

    def _made(
        self,
        number: int,
        rules: Mapping[str, Rule],
        caps: Mapping[str, int],
        before: LiveTable | None,
        changed: Collection[str] | None,
    ) -> Steps[None]:
        self.number = number
        self.rules = rules
        self._caps = caps
        old = before.rules if before is not None else {}
        made: dict[str, Conditions] = before.matcher.rules if before is not None else {}
        if before is not None and changed is not None:
            conditions = dict(made)
            for name in changed:
                conditions.pop(name, None)
            names: Collection[str] = [name for name in changed if name in rules]
            yield len(conditions) // 4
        else:
            conditions, names = {}, rules.keys()
        for name in names:
            known, rule = old.get(name), rules[name]
            conditions[name] = made[name] if known is rule or known == rule else Conditions(rule)
            yield _COMPILED
        self.matcher: Matcher = yield from Matcher.of(
            conditions, before.matcher if before is not None else None, changed
        )
        self.reads_body = self.matcher.reads_body
        """A request whose metadata says everything must be read all the same."""
        self._routes: dict[str, LiveRoute] = {}

    def submit(
        self,
        account: Account,
        fields: Fields,
        on_grant: Callable[[Reservation], None],
        on_refuse: Callable[[LayaError], None],
    ) -> Reservation | Ticket:
        """Send a request where its rule leads; one under no rule goes by its model's name.

        As ``Dispatcher.submit``. ``account.plan`` is set for a request under a rule.
        """
        core = account.core
        plan = account.plan
        if plan is None:
            found = self.matcher.match(facts_of(account, fields))
            if found is None:
                if not fields.model:
                    fields.model = core.only_model()
                return core.dispatcher.submit(fields, on_grant, on_refuse)
            route = self.route(found)
            legs = route.legs.order(fields.session)
            plan = account.plan = Plan(route, fields, legs, core.settings.max_attempts)
            if plan.timeout:
                limit = core.loop.time() + plan.timeout
                if fields.deadline is None or limit < fields.deadline:
                    fields.deadline = limit
        return plan.submit(core.dispatcher, fields, on_grant, on_refuse)

    def pools_of(self, model: str) -> Iterator[str]:
        """The pools to which rules lead that name a model in full, in the order in which they are tried."""
        for bucket in self.matcher.of_model(model):
            for conditions in bucket.rules:
                if conditions.model is not None and model in conditions.model.exact:
                    for target in conditions.rule.targets:
                        yield target.pool
                    for fallback in conditions.rule.fallback:
                        if fallback.pool:
                            yield fallback.pool

    def route(self, found: Conditions) -> LiveRoute:
        """Where a rule leads. Made when it is first needed: most of a large table's rules wait long for a request."""
        name = found.rule.name
        route = self._routes.get(name)
        if route is None:
            tag = f"{name}@{self.number}".encode()
            route = self._routes[name] = LiveRoute(found, Legs(found.rule, self.rules, self._caps), tag)
        return route


def facts_of(account: Account, fields: Fields) -> Facts:
    """What a request shows to the rules."""
    tokens = fields.prompt_tokens
    if fields.prompt_bytes and not fields.exact:
        tokens = -(-fields.prompt_bytes // BYTES_PER_TOKEN)
    return Facts(
        fields.model,
        fields.tenant,
        fields.priority,
        tokens,
        account.headers,
        lambda: look(account.method, account.message),
    )
