"""The processes behind ``laya up`` and their order of life.

Store, then router, then nodes. Nodes of a real engine start one after another, because they share the cores and the
first one should serve soon; simulated ones start together. Everything stops in the opposite order of importance:
the router first (it finishes its streams), then the nodes, then the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from shared.cli import hardware, state
from shared.cli.store import store_command
from shared.cli.supervise import Child
from shared.config import Config, ConfigError, load
from shared.cpus import cores

_POLL = 0.03  # seconds between looks at the router while it starts
_NODE_START_LIMIT = 600.0  # seconds until the next node starts although the last is not ready


@dataclass(frozen=True)
class ClusterOptions:
    """What the command line asked for; None means what the configuration says."""

    engine: str | None = None
    model: str | None = None
    nodes: int | None = None
    host: str | None = None
    port: int | None = None
    redis: str | None = None
    config: Path | None = None
    verbose: bool = False
    as_json: bool = False


class Cluster:
    """One ``laya up``. ``run`` returns the exit code."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._children: list[Child] = []
        self._nodes: list[Child] = []
        self._router: Child | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._code = 0
        self._announced = False
        self._total = 0
        self._began = time.monotonic()

    async def run(self) -> int:
        """Start everything, wait for a signal or a final failure, stop everything."""
        config = load(
            self._options.config,
            overrides={"server.host": self._options.host, "server.port": self._options.port},
        )
        engine = self._options.engine or config.inference.engine
        model = self._options.model or config.inference.model
        if engine != "sim" and not model:
            model = self._demo_gguf() if engine.replace("-", "_") == "llama_cpp" else await self._demo_model()
        environments = self._node_environments(engine)
        self._total = len(environments)
        self._check_port(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        logs = state.cache_dir() / "logs" / str(config.server.port)  # another cluster's are left alone
        logs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="laya-") as folder:
            try:
                redis = self._options.redis or config.server.redis
                if not redis:
                    redis = await self._start_store(Path(folder), logs, durable=config.router.mode == "persistent")
                token = config.server.cluster_token or secrets.token_urlsafe(32)
                base = {**os.environ, "LAYA_SERVER__CLUSTER_TOKEN": token, "LAYA_SERVER__REDIS": redis}
                self._start_router(base, logs)
                self._tasks.append(asyncio.create_task(self._announce(), name="announce"))
                await self._start_nodes(base, environments, engine, model, logs)
                await self._stop.wait()
            finally:
                await self._shutdown(config.server.drain_timeout)
                state.clear_state()
        return self._code

    def _demo_gguf(self) -> str:
        import inference_node.quantize.demo as demo

        return str(demo.gguf())

    async def _demo_model(self) -> str:
        import inference_node.quantize.demo as demo
        from shared.cli.progress import Bar

        found = demo.ready_path()
        if found is not None:
            return str(found)
        with Bar("Preparing the demo model (once)", quiet=self._options.as_json) as bar:
            return str(await asyncio.to_thread(demo.prepare, bar.update))

    def _node_environments(self, engine: str) -> list[dict[str, str]]:
        if engine == "sim":
            count = self._options.nodes or 2
            return [{} for _ in range(count)]
        gpus = hardware.gpus()
        count = self._options.nodes or (len(gpus) if gpus else 2)
        try:
            shares = hardware.share_gpus(gpus, count)
        except ValueError as e:
            raise ConfigError(str(e)) from None
        if gpus:
            return [{"CUDA_VISIBLE_DEVICES": share} for share in shares]
        threads = hardware.share_cores(cores(), count)
        return [{"LAYA_INFERENCE__CPU_THREADS": share} for share in threads]

    def _check_port(self, config: Config) -> None:
        """Say at once that the port is taken, rather than after the store and the router have started."""
        host, port = config.server.host, config.server.port
        if port == 0:
            return
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as e:
                raise ConfigError(
                    f"server.port: {host}:{port} cannot be used ({e.strerror}); stop what uses it or give --port"
                ) from None

    def _child(self, name: str, argv: list[str], env: dict[str, str], logs: Path, *, ready: bool = True) -> Child:
        log = logs / f"{name}.log"
        log.write_bytes(b"")
        child = Child(
            name,
            argv,
            env=env,
            log_dir=logs,
            on_event=self._on_event,
            verbose=self._options.verbose,
            has_ready_fd=ready,
        )
        self._children.append(child)
        return child

    def _launch(self, child: Child) -> None:
        self._tasks.append(asyncio.create_task(child.run(), name=child.name))

    async def _start_store(self, folder: Path, logs: Path, *, durable: bool) -> str:
        argv, url = store_command(folder, durable=durable)
        self._launch(self._child("store", argv, dict(os.environ), logs, ready=False))
        path = url.removeprefix("unix://")
        await self._until(lambda: os.path.exists(path), 10.0, "the embedded store did not start")
        return url

    def _start_router(self, env: dict[str, str], logs: Path) -> None:
        argv = [sys.executable, "-m", "router_node.main", "--admin-port", "0"]
        env = {**env, "LAYA_KEPT_BY": "laya up"}
        if self._options.config:
            argv += ["--config", str(self._options.config)]
        if self._options.host:
            argv += ["--host", self._options.host]
        if self._options.port is not None:
            argv += ["--port", str(self._options.port)]
        self._router = self._child("router", argv, env, logs)
        self._launch(self._router)

    async def _start_nodes(
        self, env: dict[str, str], extra: list[dict[str, str]], engine: str, model: str, logs: Path
    ) -> None:
        for i, special in enumerate(extra):
            argv = [sys.executable, "-m", "inference_node.main", "--engine", engine, "--port", "0"]
            argv += ["--host", "127.0.0.1", "--node-id", f"node-{i + 1}"]
            if model:
                argv += ["--model", model]
            if self._options.config:
                argv += ["--config", str(self._options.config)]
            child = self._child(f"node-{i + 1}", argv, {**env, **special}, logs)
            self._nodes.append(child)
            self._launch(child)
            if engine != "sim":
                await self._until(functools.partial(_is_ready, child), _NODE_START_LIMIT, None)
            if self._stop.is_set():
                return

    async def _until(self, condition: Callable[[], bool], limit: float, failure: str | None) -> None:
        """Wait for a condition, a stop, or the limit; a limit with a failure text ends the cluster."""
        deadline = time.monotonic() + limit
        while not condition() and not self._stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                if failure:
                    self._fail(failure, 4)
                return
            self._changed.clear()
            waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._stop.wait())]
            try:
                await asyncio.wait(waits, timeout=min(left, 0.05), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for w in waits:
                    w.cancel()

    def _on_signal(self) -> None:
        if self._stop.is_set():
            for child in self._children:
                child.kill()
            return
        self._say("stopping", "Stopping (Ctrl-C again to kill) ...")
        self._stop.set()

    def _fail(self, why: str, code: int) -> None:
        self._code = self._code or code
        self._say("failed", f"laya: {why}", err=True, why=why)
        self._stop.set()

    def _on_event(self, child: Child, event: dict[str, Any]) -> None:
        self._changed.set()
        kind = event.get("event")
        if kind == "died":
            self._on_death(child, event)
        elif kind == "ready":
            if child in self._nodes and self._announced:
                self._say("node_ready", f"{child.name} joined ({event.get('address')})", node=child.name)
            self._note_state()
        elif kind == "refused":
            self._say("refused", f"laya: {child.name}: {event['why']}", err=True, name=child.name, why=event["why"])

    def _on_death(self, child: Child, event: dict[str, Any]) -> None:
        code = event["code"]
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if event["final"]:
            self._fail(f"{child.name} cannot run ({how}): {_reason(child)}", code)
            return
        detail = f"{child.name} died ({how}); starting it again in {event['retry_in']:.1f} s; log: {child.log_path}"
        self._say("died", detail, err=True, name=child.name, code=code)

    def _note_state(self) -> None:
        """Keep the state file right: a restarted router has another private port."""
        router = self._router.ready if self._router else None
        if router is not None:
            state.write_state({"pid": os.getpid(), "address": router["address"], "admin": router.get("admin")})

    async def _announce(self) -> None:
        """Print the ready line once a request would be answered: router up, and a node in its table."""
        while not self._stop.is_set():
            router = self._router.ready if self._router else None
            if router is not None and any(n.ready for n in self._nodes) and await _serves(router["address"]):
                break
            await asyncio.sleep(_POLL)
        else:
            return
        ready = [n for n in self._nodes if n.ready]
        node = (ready[0].ready if ready else None) or {}
        self._announced = True
        seconds = time.monotonic() - self._began
        self._say(
            "ready",
            f"Laya is ready on http://{router['address']} after {seconds:.1f} s: model {node.get('model')} "
            f"({node.get('engine')}), {len(ready)} of {self._total} nodes up\n"
            f"  try: laya chat    or: curl http://{router['address']}/v1/models\n"
            f"  private (Admin, metrics): http://{router.get('admin')}/metrics",
            address=router["address"],
            admin=router.get("admin"),
            model=node.get("model"),
            engine=node.get("engine"),
            nodes=len(ready),
            seconds=round(seconds, 2),
        )

    def _say(self, event: str, text: str, *, err: bool = False, **fields: Any) -> None:
        if self._options.as_json:
            print(json.dumps({"event": event, **fields}), flush=True)
        else:
            click.echo(text, err=err)

    async def _shutdown(self, grace: float) -> None:
        self._stop.set()
        groups = [[c for c in self._children if c is self._router], list(self._nodes)]
        groups.append([c for c in self._children if c is not self._router and c not in self._nodes])
        for group in groups:
            await asyncio.gather(*(child.stop(grace + 5.0) for child in group))
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def _serves(address: str) -> bool:
    """Whether the router says that it can answer requests."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: laya\r\nconnection: close\r\n\r\n")
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _is_ready(child: Child) -> bool:
    return child.ready is not None


def _reason(child: Child) -> str:
    """The last thing a child said, without the trace behind it; all of it, where it is a screen of its own."""
    lines = [line.rstrip() for line in child.tail if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith(("laya-node: ", "laya-router: ")):
            return "\n".join((line.partition(": ")[2], *lines[i + 1 :]))
    return lines[-1].strip() if lines else f"see {child.log_path}"
