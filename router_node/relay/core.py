"""What the gRPC relay and the HTTP gateway share: the dispatcher, the limits, the headers that go to a node."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from router_node.admin.counters import RouterMetrics
from router_node.admin.stages import EVERY
from router_node.dispatch import Dispatcher, Reservation
from router_node.middleware.access_log import AccessLog
from router_node.middleware.keys import Authorizer
from router_node.relay.busy_poll import BusyPoll
from router_node.relay.deadlines import Deadlines
from router_node.relay.headers import HeaderRules
from router_node.relay.migrate import Migrations, never
from router_node.relay.settings import RelaySettings
from router_node.relay.track import Track
from router_node.routes.table import RouteTable
from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.ids import request_ids
from shared.logging import event, get
from shared.net.api import Headers
from shared.net.fields import CheckedHeaders
from shared.net.grpc_wire import parse_timeout
from shared.net.once import once
from shared.net.uploads import Uploads, upload_limit

if TYPE_CHECKING:
    from router_node.relay.account import Account
    from router_node.tracing import Tracer

log = get("relay")

# Pseudo-headers come first. The node serves whatever authority it is asked for.
_OPENING: Final = ((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"node"))
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Checked: Final = CheckedHeaders
_DISPATCH: Final = names.DISPATCH
_PRIORITY: Final = names.PRIORITY
_NO_PRIORITY: Final = (names.PRIORITY, b"0")
_REQUEST_ID: Final = names.REQUEST_ID
MAX_TENANTS: Final = 4096  # whose headers are kept ready


class RelayCore:
    """Collaborators and small caches of one worker's data plane."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        authorizer: Authorizer,
        table: RouteTable,
        metrics: RouterMetrics,
        access_log: AccessLog | None,
        settings: RelaySettings,
        loop: asyncio.AbstractEventLoop,
        tracer: Tracer | None = None,
        stood_still: Callable[[], bool] = never,
    ) -> None:
        self.dispatcher = dispatcher
        self.authorizer = authorizer
        self.table = table
        self.metrics = metrics
        self.access_log = access_log
        self.settings = settings
        self.total = settings.total
        self.loop = loop
        self.tracer = tracer
        self.until_timed = EVERY  # requests until one is timed
        self.clock = time.perf_counter
        self.busy_poll = BusyPoll(loop, settings.busy_poll) if settings.busy_poll > 0.0 else None
        self.deadlines = Deadlines(loop)
        # First messages that must be read before they can be routed, and HTTP bodies until an answer to them has begun.
        self.uploads = Uploads(loop, settings.body_timeout, upload_limit(settings.max_body_bytes))
        self.rules = HeaderRules(settings.forward_metadata)
        # Clients use few different time-outs; those that count down are as cheap to parse as to look up.
        self.parse_timeout = lru_cache(1024)(parse_timeout)
        self.ids = request_ids()
        self._tenants: dict[str, Headers] = {}
        self._reported = -1.0
        clamps = b'{"max_n":%d,"max_max_tokens":%d}' % (settings.max_n, settings.max_max_tokens)
        self._common: Headers = [(b"te", b"trailers"), (names.CLAMPS, clamps)]
        self.migrations: Migrations | None = None
        if settings.migration is not None:
            self.migrations = Migrations(settings.migration, loop, metrics, stood_still)
        if settings.cluster_token:
            self._common.append((names.CLUSTER_TOKEN, settings.cluster_token))

    @property
    def live(self) -> int:
        """Requests in the router now, waiting ones too."""
        return self.metrics.in_flight

    def close(self) -> None:
        """Stop the timers. Call it once the listeners are closed, so that no request is left."""
        self.deadlines.close()
        self.uploads.close()

    def timed(self) -> Track:
        """A track for the request that is to be timed now."""
        self.until_timed = EVERY
        return Track(True)

    def tracked(self, account: Account, track: Track) -> None:
        """A request with a track is over."""
        now = self.clock()
        track.add_to(self.metrics.stages, account.routed, now)
        if track.trace is not None:
            track.trace.ended(account, track, now)

    def defect(self, error: Exception, request_id: bytes) -> LayaError:
        """Report a defect of ours, with its trace at most once a second, and say what the client is told."""
        self.metrics.count("defect")
        now = self.clock()
        if now - self._reported >= 1.0:
            self._reported = now
            event(
                log, logging.ERROR, "request_failed", exc_info=error, request_id=request_id.decode("ascii", "replace")
            )
        return LayaError(Code.INTERNAL, "INTERNAL", "The router failed on this request; its log says why.")

    def only_model(self) -> str:
        """The model of a request that names none. Raises LayaError INVALID_ARGUMENT unless there is just one."""
        models = self.dispatcher.models()
        if len(models) == 1:
            return models[0].name
        there = ", ".join(model.name for model in models[:32]) or "none yet"
        raise invalid(f"The request names no model: name one of those there are ({there}).", "model")

    def node_headers(
        self, fields: dict[bytes, bytes], account: Account, reservation: Reservation, forward: Headers
    ) -> Headers:
        """The header block that opens a node's stream for a call with these headers."""
        caller = account.caller
        out: list[Any] = _Checked(_OPENING)  # a list by its type: compiled code appends to those without a detour
        out.append((b":path", fields[b":path"]))
        out.append((b"content-type", fields[b"content-type"]))
        out.append(once(_DISPATCH, reservation.id))
        priority = reservation.ask.priority
        out.append((_PRIORITY, b"%d" % priority) if priority else _NO_PRIORITY)
        out.append(once(_REQUEST_ID, account.request_id))
        out += self._tenant(caller.tenant) if caller is not None and caller.tenant else self._common
        track = account.track
        out += forward if track is None or track.trace is None else track.trace.forwarded(forward)
        if account.plan is not None:
            account.plan.mark(out)
        return out

    def _tenant(self, tenant: str) -> Headers:
        found = self._tenants.get(tenant)
        if found is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._tenants.clear()
            # Keyed, so that a salt cannot be guessed from a tenant's name; the same on every router of the cluster.
            key = hashlib.blake2b(self.settings.cluster_token, digest_size=32).digest()
            salt = hashlib.blake2b(tenant.encode(), digest_size=16, key=key).hexdigest()
            value = tenant.encode("ascii", "backslashreplace")
            found = [*self._common, (names.TENANT, value), (names.SALT, salt.encode())]
            self._tenants[tenant] = found
        return found
