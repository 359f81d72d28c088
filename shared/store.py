"""How the store is dialled: every command has a deadline, and trying again is the caller's business.

``redis://``, ``rediss://`` and ``unix://`` name a server; ``redis+sentinel://`` and ``rediss+sentinel://`` name some
sentinels and the service that they watch: ``redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE?db=0``. User and
password are the server's; a sentinel's own go into ``sentinel_username`` and ``sentinel_password``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from redis.asyncio import Redis

PLAIN: Final = ("redis", "rediss", "unix")
SENTINEL: Final = ("redis+sentinel", "rediss+sentinel")
_PORT: Final = 26379


class SentinelUrl(NamedTuple):
    """What a sentinel URL says."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    tls: bool
    options: dict[str, Any]  # towards the server
    sentinel_options: dict[str, Any]


def check_url(url: str) -> bool:
    """Whether a URL names a store."""
    try:
        parts = urlsplit(url)
        if parts.scheme in SENTINEL:
            parse_sentinel(url)
            return True
        _ = parts.port
        return parts.scheme in PLAIN and bool(parts.path if parts.scheme == "unix" else parts.hostname)
    except ValueError:
        return False


def parse_sentinel(url: str) -> SentinelUrl:
    """Read a sentinel URL. Raises ValueError with what is wrong."""
    parts = urlsplit(url)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    sentinels: list[tuple[str, int]] = []
    for one in hosts.split(","):
        host, colon, port = one.rpartition(":")
        if not colon or one.endswith("]"):
            host, port = one, str(_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{one!r} is not host:port of a sentinel")
        sentinels.append((host.strip("[]"), int(port)))
    service = unquote(parts.path.strip("/"))
    if not service or "/" in service:
        raise ValueError("the path must be the name of the service that the sentinels watch")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    options: dict[str, Any] = {"db": int(query.pop("db", "0"))}
    user, _, password = userinfo.partition(":")
    if at and user:
        options["username"] = unquote(user)
    if at and password:
        options["password"] = unquote(password)
    own: dict[str, Any] = {}
    for name in ("username", "password"):
        if f"sentinel_{name}" in query:
            own[name] = query.pop(f"sentinel_{name}")
    tls = parts.scheme.startswith("rediss")
    if tls:
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
            if name in query:
                options[name] = own[name] = query.pop(name)
    if query:
        raise ValueError(f"unknown option {sorted(query)[0]!r}")
    return SentinelUrl(tuple(sentinels), service, tls, options, own)


def connect(url: str, *, timeout: float, connections: int, name: str) -> Redis:
    """A client of a store's URL; it connects at its first command, through sentinels to whoever is the master then.

    ``timeout`` bounds each command and each dial, in seconds; ``name`` is what the store lists it by.
    """
    # Loaded here: the library is half the cost of a router's start.
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    common: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    if urlsplit(url).scheme in SENTINEL:
        from redis.asyncio.sentinel import Sentinel

        found = parse_sentinel(url)
        common["socket_keepalive"] = True
        sentinels = Sentinel(  # type: ignore[no-untyped-call]
            found.sentinels,
            sentinel_kwargs={**common, **found.sentinel_options, "ssl": found.tls},
            **common,
            **found.options,
            ssl=found.tls,
            client_name=name,
            max_connections=connections,
        )
        client: Redis = sentinels.master_for(found.service)
        return client
    # A Unix socket knows no keep-alive, and the library refuses the word there.
    if not url.startswith("unix:"):
        common["socket_keepalive"] = True
    return Redis.from_url(url, max_connections=connections, client_name=name, **common)
