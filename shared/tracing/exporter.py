"""A bounded queue of finished spans, and the thread that sends them to a collector by OTLP.

Who adds a span never waits: one that finds the queue full is dropped and counted. The thread takes batches, lets
OpenTelemetry's own exporter encode and send them (it tries again within ``tracing.timeout``), and counts what failed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shared import logging as logs
from shared.config.checks import ConfigError
from shared.config.tracing import TracingConfig
from shared.tracing.span import Span
from shared.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter as OtlpExporter

BATCH: Final = 512  # spans sent at once
COMPLAIN_EVERY: Final = 60.0  # seconds between two lines about a collector that fails
CLOSE_TIME: Final = 2.0  # seconds for what is left at the end
_PACKAGES: Final = {
    "http": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}
_MAX_HEADERS: Final = 64 << 10

log = logs.get("tracing")


class Exporter:
    """One for each process. ``service`` and ``instance`` name it to the collector."""

    def __init__(self, config: TracingConfig, service: str, instance: str) -> None:
        """Raises ConfigError for a file that cannot be read or packages that are not installed."""
        self._config = config
        self._names = {
            "service.name": config.service_name or service,
            "service.version": __version__,
            "service.instance.id": instance,
        }
        self._headers = read_headers(config.headers_file) if config.headers_file else {}
        _need_packages(config.protocol)
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._said = -COMPLAIN_EVERY
        self._last_words = _LastWords()
        self.exported = self.failed = self.dropped = 0

    def add(self, spans: Sequence[Span]) -> None:
        """Send these soon, or count them as dropped. Never waits; call it on one thread only."""
        queue = self._queue
        room = self._config.queue_size - len(queue)
        if len(spans) > room:
            self.dropped += len(spans)
            return
        queue.extend(spans)
        if len(queue) >= BATCH:
            self._wake.set()

    def counts(self) -> dict[str, int]:
        """Spans by what became of them."""
        return {"exported": self.exported, "failed": self.failed, "dropped": self.dropped}

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Send what is left, for a few seconds at most; the rest counts as failed."""
        self._closing = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_TIME)
        self.failed += len(self._queue)
        self._queue.clear()

    # The thread.

    def _run(self) -> None:
        otlp: OtlpExporter | None = None
        try:
            otlp = self._connect()
            while not self._closing:
                self._wake.wait(self._config.interval)
                self._wake.clear()
                self._send_all(otlp)
            self._send_all(otlp)
        except Exception as error:  # a thread must not die unheard
            logs.event(log, logging.ERROR, "trace_export_ended", exc_info=error)
        finally:
            if otlp is not None:
                otlp.shutdown()

    def _connect(self) -> OtlpExporter:
        """OpenTelemetry's exporter for what is configured."""
        logger = logging.getLogger("opentelemetry.exporter")
        logger.addHandler(self._last_words)
        logger.propagate = False  # what it says of each batch is in our own line, now and then
        config = self._config
        where = config.endpoint.rstrip("/")
        if config.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            return Grpc(
                endpoint=where,
                insecure=where.startswith("http://"),
                credentials=_credentials(config.ca_file) if config.ca_file else None,
                headers=tuple(self._headers.items()) or None,
                timeout=config.timeout,
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        bare = "/" not in where.partition("://")[2]
        return Http(
            endpoint=f"{where}/v1/traces" if bare else where,
            certificate_file=config.ca_file or None,
            headers=self._headers or None,
            timeout=config.timeout,
        )

    def _send_all(self, otlp: OtlpExporter) -> None:
        queue = self._queue
        while queue:
            batch = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
            if self._send(otlp, batch):
                self.exported += len(batch)
                continue
            self.failed += len(batch)
            if self._closing:
                return

    def _send(self, otlp: OtlpExporter, batch: Sequence[Span]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._last_words.text = ""
        try:
            if otlp.export(self._readable(batch)) is SpanExportResult.SUCCESS:
                return True
            why = self._last_words.text or "the collector refused them"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        now = time.monotonic()
        if now - self._said >= COMPLAIN_EVERY:
            self._said = now
            logs.event(
                log,
                logging.WARNING,
                "trace_export_failed",
                endpoint=self._config.endpoint,
                spans=len(batch),
                detail=why[:300],
            )
        return False

    def _readable(self, batch: Sequence[Span]) -> list[ReadableSpan]:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from shared.tracing.readable import readable

        resource = Resource.create({**self._names})
        scope = InstrumentationScope("laya", __version__)
        return [readable(span, resource, scope) for span in batch]


class _LastWords(logging.Handler):
    """Keeps the last thing that OpenTelemetry's exporter had to say."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def read_headers(path: str) -> dict[str, str]:
    """``name: value`` lines of a file; names in lower case. Raises ConfigError, without a value in its message."""
    try:
        raw = Path(path).read_bytes()
        text = raw.decode("ascii")
    except OSError as error:
        raise ConfigError(f"tracing.headers_file: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"tracing.headers_file: {path} holds bytes that are not ASCII") from None
    if len(raw) > _MAX_HEADERS:
        raise ConfigError(f"tracing.headers_file: {path} is larger than {_MAX_HEADERS} bytes")
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip() or " " in name.strip():
            raise ConfigError(f"tracing.headers_file: line {number} of {path} must read 'name: value'")
        headers[name.strip().lower()] = value.strip()
    return headers


def _need_packages(protocol: str) -> None:
    package = _PACKAGES[protocol]
    try:
        found = importlib.util.find_spec("opentelemetry.sdk") and importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(f"tracing.endpoint: {package} is not installed; install laya[tracing], or leave it empty")


def _credentials(ca_file: str) -> Any:
    import grpc

    return grpc.ssl_channel_credentials(Path(ca_file).read_bytes())
