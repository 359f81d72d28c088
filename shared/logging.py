"""Structured logs: one line per event, as text for people or as JSON for machines.

``event(log, level, "node_ready", node="n1")`` writes an event name and its fields. Fields whose name speaks of a
secret are never written. Nothing on the request path logs.
"""

from __future__ import annotations

import datetime
import logging
import sys
from typing import IO, Any, Literal

import msgspec

_SECRET = ("token", "secret", "password", "authorization", "api_key")
# Counts and limits of model tokens are no secrets.
_HARMLESS = ("_tokens", "tokens_", "max_tokens")
_FIELDS = "laya_fields"
_MAX_VALUE = 2000
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def is_secret(name: str) -> bool:
    """Whether a field of this name must not be written."""
    low = name.lower()
    if low.startswith("tokens") or any(word in low for word in _HARMLESS):
        return False
    return any(word in low for word in _SECRET)


def _clean(fields: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in fields.items():
        if is_secret(name):
            out[name] = "***"
        elif isinstance(value, str) and len(value) > _MAX_VALUE:
            out[name] = value[:_MAX_VALUE] + "…"
        else:
            out[name] = value
    return out


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record; an exception becomes the fields ``error`` and ``trace``."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(_clean(getattr(record, _FIELDS, {})))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = repr(record.exc_info[1])
            line["trace"] = self.formatException(record.exc_info)
        return _encode(line).decode()


class TextFormatter(logging.Formatter):
    """``12:00:00.123 INFO  laya.router node_ready node=n1``: the same event on one line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record; an exception's trace follows on lines of its own."""
        fields = _clean(getattr(record, _FIELDS, {}))
        tail = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = f"{_time(record)[11:23]} {record.levelname:<7} {record.name} {record.getMessage()}{tail}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _shown(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and not any(c.isspace() or c in '"=' for c in text):
        return text
    return _encode(text).decode()


def setup(level: str = "info", style: Literal["text", "json"] = "text", stream: IO[str] | None = None) -> None:
    """Send the logs of ``laya.*`` (and warnings of libraries) to ``stream``, stderr by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("laya").setLevel(level.upper())


def get(name: str) -> logging.Logger:
    """The logger ``laya.NAME``."""
    return logging.getLogger(f"laya.{name}")


def event(log: logging.Logger, level: int, name: str, /, exc_info: Any = None, **fields: Any) -> None:
    """Write one event with its fields. ``exc_info`` as in ``logging``."""
    if log.isEnabledFor(level):
        log.log(level, name, exc_info=exc_info, extra={_FIELDS: fields})
