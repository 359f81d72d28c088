"""Whom a load test may ask, and whether anybody is there: both are settled before the first call."""

from __future__ import annotations

import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

LIMIT = 10.0
"""Seconds in which the target must say what it serves."""


class TargetError(Exception):
    """The target may not be asked, or cannot be: one sentence."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes."""

    host: str
    port: int
    tls: bool

    @property
    def address(self) -> str:
        """host:port, as gRPC wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As HTTP wants it."""
        return f"{'https' if self.tls else 'http'}://{self.address}"


@dataclass(frozen=True, slots=True)
class Served:
    """What the target says of itself."""

    model: str
    engine: str
    context: int
    """Tokens of prompt and answer, 0 where it is not said."""


def target(host: str, owned: Collection[str] = ()) -> Target:
    """The target of a URL or host:port. Raises TargetError for one that is neither loopback nor named as one's own.

    Load that reaches a host by mistake is an attack, so a host beyond loopback has to be named twice.
    """
    if not host:
        raise TargetError("no host is named; pass --host http://127.0.0.1:8000")
    parts = urlsplit(host if "://" in host else f"//{host}", scheme="http")
    try:
        name, port = parts.hostname or "", parts.port
    except ValueError as e:
        raise TargetError(f"{host!r} is no address ({e}); write http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not name:
        raise TargetError(f"{host!r} is no address; write http://127.0.0.1:8000")
    if not is_loopback(name) and name not in owned:
        raise TargetError(f"{name}: not loopback; pass --i-own-this-host {name} if it is yours to load")
    tls = parts.scheme == "https"
    return Target(name, port or (443 if tls else 80), tls)


def is_loopback(name: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def look(at: Target, model: str = "", key: str = "", limit: float = LIMIT, ca_file: str = "") -> Served:
    """What it serves; ``model`` picks one, and empty stands for the only one. Raises TargetError. Blocks."""
    trust = ssl.create_default_context(cafile=ca_file or None) if at.tls else None
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{at.url}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=limit, context=trust) as answer:
            cards = json.load(answer)["data"]
    except urllib.error.HTTPError as e:
        raise TargetError(f"{at.address}: answers {e.code} to /v1/models: {_said(e)}") from None
    except TimeoutError:
        raise TargetError(f"{at.address}: accepts connections and says nothing within {limit:g} s; it hangs") from None
    except (urllib.error.URLError, OSError) as e:
        if isinstance(getattr(e, "reason", None), TimeoutError):
            raise TargetError(f"{at.address}: cannot be reached within {limit:g} s") from None
        raise TargetError(f"{at.address}: cannot be reached ({getattr(e, 'reason', e)}); start it first") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TargetError(f"{at.address}: what /v1/models says is no list of models; it is no Laya router") from None
    if not cards:
        raise TargetError(f"{at.address}: serves no model yet; no node is ready")
    return _pick(at, cards, model)


def _pick(at: Target, cards: list[dict[str, object]], model: str) -> Served:
    names = [str(card.get("id", "")) for card in cards]
    if model and model not in names:
        raise TargetError(f"{at.address}: there is no model {model!r}; there is {', '.join(sorted(names)[:16])}")
    if not model and len(names) > 1 and len({str(card.get("root") or card.get("id")) for card in cards}) > 1:
        raise TargetError(f"{at.address}: serves {', '.join(sorted(names)[:16])}; pick one with --model")
    card = cards[names.index(model)] if model else cards[0]
    context = card.get("max_model_len") or card.get("max_seq_len") or 0
    engine = card.get("engine") or str(card.get("owned_by", "")).removeprefix("laya-")
    return Served(model or names[0], str(engine), context if isinstance(context, int) else 0)


def _said(e: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(e.read(4096))["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return e.reason


def takes_schema(at: Target, model: str, key: str = "", limit: float = 30.0, ca_file: str = "") -> bool:
    """Whether the engine can hold an answer to a JSON schema: it is asked once, for a few tokens. Blocks."""
    form = {"name": "probe", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say 1."}],
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    trust = ssl.create_default_context(cafile=ca_file or None) if at.tls else None
    request = urllib.request.Request(f"{at.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=limit, context=trust) as answer:
            return int(answer.status) == 200
    except OSError:  # HTTP errors are among them
        return False
