"""One error type for everything a client may be told.

A ``LayaError`` carries a canonical gRPC code, a reason (the ``ErrorInfo.reason`` of google.rpc, upper snake case),
one sentence for a person, and where it helps the seconds after which to try again. It renders itself as gRPC trailers
or as the OpenAI error object; nothing else in the project builds an error for a client.
"""

from __future__ import annotations

import base64
import enum
import math

import msgspec

DOMAIN = "laya"


class Code(enum.IntEnum):
    """Canonical gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# HTTP status and OpenAI error type of each code (google.rpc's mapping, with OpenAI's own type names).
_HTTP: dict[Code, tuple[int, str]] = {
    Code.OK: (200, ""),
    Code.CANCELLED: (499, "invalid_request_error"),
    Code.UNKNOWN: (500, "server_error"),
    Code.INVALID_ARGUMENT: (400, "invalid_request_error"),
    Code.DEADLINE_EXCEEDED: (504, "timeout_error"),
    Code.NOT_FOUND: (404, "invalid_request_error"),
    Code.ALREADY_EXISTS: (409, "invalid_request_error"),
    Code.PERMISSION_DENIED: (403, "permission_error"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    Code.FAILED_PRECONDITION: (400, "invalid_request_error"),
    Code.ABORTED: (409, "server_error"),
    Code.OUT_OF_RANGE: (400, "invalid_request_error"),
    Code.UNIMPLEMENTED: (501, "invalid_request_error"),
    Code.INTERNAL: (500, "server_error"),
    Code.UNAVAILABLE: (503, "server_error"),
    Code.DATA_LOSS: (500, "server_error"),
    Code.UNAUTHENTICATED: (401, "authentication_error"),
}

_MAX_MESSAGE = 2048


class OpenAIErrorBody(msgspec.Struct):
    """The inner object of an OpenAI error."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct):
    """The OpenAI error object."""

    error: OpenAIErrorBody


_encode_json = msgspec.json.Encoder().encode


class LayaError(Exception):
    """An error meant for a client.

    ``message`` is one sentence: what, where, what to do. ``retry_after`` is in seconds. ``param`` names the offending
    request field. ``http_status`` overrides the code's own HTTP status (413 for an oversize body, say).
    """

    def __init__(
        self,
        code: Code,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        param: str | None = None,
        metadata: dict[str, str] | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message[:_MAX_MESSAGE]
        self.retry_after = retry_after
        self.param = param
        self.metadata = metadata
        self.http_status = http_status if http_status is not None else _HTTP[code][0]

    def __str__(self) -> str:
        return f"{self.code.name} {self.reason}: {self.message}"

    def grpc_trailers(self) -> list[tuple[bytes, bytes]]:
        """``grpc-status``, ``grpc-message`` and ``grpc-status-details-bin``, ready for a trailing header block."""
        details = base64.b64encode(self.status_proto()).rstrip(b"=")
        return [
            (b"grpc-status", b"%d" % self.code),
            (b"grpc-message", percent_encode(self.message)),
            (b"grpc-status-details-bin", details),
        ]

    def status_proto(self) -> bytes:
        """Serialized ``google.rpc.Status`` with ErrorInfo and, where known, RetryInfo and BadRequest."""
        # Imported here: the router's hot path never gets this far, and start-up stays light.
        from google.protobuf import any_pb2, duration_pb2
        from google.rpc import error_details_pb2, status_pb2

        status = status_pb2.Status(code=int(self.code), message=self.message)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata or {})
        parts: list[object] = [info]
        if self.retry_after is not None:
            nanos = round(self.retry_after * 1e9)
            delay = duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)
            parts.append(error_details_pb2.RetryInfo(retry_delay=delay))
        if self.param is not None and self.code == Code.INVALID_ARGUMENT:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.param, description=self.message)
            parts.append(error_details_pb2.BadRequest(field_violations=[violation]))
        for part in parts:
            packed = any_pb2.Any()
            packed.Pack(part)  # type: ignore[arg-type]
            status.details.append(packed)
        return bytes(status.SerializeToString())

    def openai_body(self) -> bytes:
        """The OpenAI error object as JSON; ``code`` is the reason in lower case."""
        kind = _HTTP[self.code][1]
        return _encode_json(OpenAIError(OpenAIErrorBody(self.message, kind, self.param, self.reason.lower())))

    def retry_after_header(self) -> bytes | None:
        """``Retry-After`` in whole seconds, at least 1, or None."""
        if self.retry_after is None:
            return None
        return b"%d" % max(1, math.ceil(self.retry_after))


_PLAIN = frozenset(range(0x20, 0x7F)) - {0x25}


def percent_encode(text: str) -> bytes:
    """Encode a ``grpc-message`` (gRPC over HTTP/2): printable ASCII but % stays, the rest becomes %XX.

    Leading and trailing spaces are encoded too: HTTP/2 engines refuse header values that begin or end with one.
    """
    raw = text.encode("utf-8", "replace")
    last = len(raw) - 1
    out = bytearray()
    for i, byte in enumerate(raw):
        if byte in _PLAIN and not (byte == 0x20 and i in (0, last)):
            out.append(byte)
        else:
            out += b"%%%02X" % byte
    return bytes(out)


def percent_decode(raw: bytes) -> str:
    """Decode a ``grpc-message``; malformed escapes stay as they are."""
    out = bytearray()
    i = 0
    while i < len(raw):
        if raw[i] == 0x25 and i + 2 < len(raw):
            try:
                out.append(int(raw[i + 1 : i + 3], 16))
                i += 3
                continue
            except ValueError:
                pass
        out.append(raw[i])
        i += 1
    return out.decode("utf-8", "replace")


def invalid(message: str, param: str | None = None, reason: str = "INVALID_REQUEST") -> LayaError:
    """INVALID_ARGUMENT with a sentence and the offending field."""
    return LayaError(Code.INVALID_ARGUMENT, reason, message, param=param)


def unavailable(message: str, reason: str, retry_after: float | None = None) -> LayaError:
    """UNAVAILABLE with a reason."""
    return LayaError(Code.UNAVAILABLE, reason, message, retry_after=retry_after)


def exhausted(message: str, reason: str, retry_after: float) -> LayaError:
    """RESOURCE_EXHAUSTED with RetryInfo, in seconds."""
    return LayaError(Code.RESOURCE_EXHAUSTED, reason, message, retry_after=retry_after)
