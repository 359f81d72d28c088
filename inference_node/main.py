"""``laya-node``: the parts of a node, put together, run, and taken apart in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
import uvloop

from inference_node import engines
from inference_node.announce import Announcer
from inference_node.config import check_bind, parse
from inference_node.engines.base import Engine, EngineError, EngineInfo, EngineUnavailable
from inference_node.node import Node, wants_tls
from router_node.discovery.address import is_loopback
from router_node.discovery.registration import RecordError
from router_node.signals import StopSignals
from shared import logging as logs
from shared.config import ConfigError, load
from shared.config.schema import Config
from shared.heap import settle_heap
from shared.net.listener import ListenError
from shared.open_files import raise_limit

OK, FAILED, BAD_CONFIG, NO_ENGINE, NO_PORT, ENGINE_FAILED = range(6)
CHECK_EVERY = 1.0  # seconds between two looks at the engine
CHECK_TIME = 60.0  # seconds in which it must say that it lives
STOP_TIME = 20.0  # seconds an engine has to stop

log = logs.get("node")
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run and exit with a code that means something."""
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run until a signal or a failure; the exit code."""
    try:
        args, overrides = parse(argv)
        config = load(args.config, overrides=overrides)
        logs.setup(config.server.log_level, config.server.log_format)
        check_bind(config)
        raise_limit(config.server.max_connections)
        _warn(config)
        config, context = _sized(config)
        engine = engines.create(config.inference, context)
        logs.event(log, logging.INFO, "engine_chosen", engine=engine.name, asked=config.inference.engine)
        announcer = Announcer(-1 if args.ready_fd is None else args.ready_fd)
        return uvloop.run(serve(config, engine, announcer))
    except (ConfigError, RecordError) as e:
        return _complain(e, BAD_CONFIG)
    except EngineUnavailable as e:
        return _complain(e, NO_ENGINE)
    except ListenError as e:
        return _complain(e, NO_PORT)
    except EngineError as e:
        return _complain(e, ENGINE_FAILED)


def _sized(config: Config) -> tuple[Config, int]:
    """The configuration with memory planned for the engine it chooses, and the context to take where none is set."""
    if engines.choose(config.inference) != "vllm":
        return config, 0  # the others plan for themselves
    from inference_node import sizing

    sized = sizing.settle(config.inference)
    return msgspec.structs.replace(config, inference=sized.config), sized.context


async def serve(config: Config, engine: Engine, announcer: Announcer) -> int:
    """One node in this process. Raises ConfigError, EngineUnavailable, ListenError or EngineError."""
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(StopSignals(asyncio.get_running_loop()))
        stack.callback(announcer.close)
        stack.push_async_callback(_stop, engine)
        node = Node(config, engine)
        stack.push_async_callback(node.close)
        await node.listen()
        announcer.listening(node.address)
        info = await _unless(signals.stop, engine.start())
        if info is None:
            return OK
        settle_heap()
        node.serve(info)
        announcer.ready(node.address, node.state.node_id, node.state.names[0], info.engine)
        _tell_ready(node, info)
        code = await _watch(node, engine, signals)
        if code == OK:
            logs.event(log, logging.INFO, "node_stopping", drain_timeout=config.server.drain_timeout)
            await _drain(node, signals)
    logs.event(log, logging.INFO, "node_stopped", code=code)
    return code


async def _watch(node: Node, engine: Engine, signals: StopSignals) -> int:
    """Until a signal or the engine's death."""
    failed = node.state.failed
    stop, death = (asyncio.ensure_future(event.wait()) for event in (signals.stop, failed))
    try:
        while not stop.done() and not death.done():
            await asyncio.wait((stop, death), timeout=CHECK_EVERY, return_when=asyncio.FIRST_COMPLETED)
            try:
                async with asyncio.timeout(CHECK_TIME):
                    await engine.check()
            except EngineError as e:
                node.state.fail(e)
                await failed.wait()
            except TimeoutError:
                node.state.fail(EngineError(f"it did not answer a check within {CHECK_TIME:.0f} s", fatal=True))
                await failed.wait()
        if failed.is_set():
            logs.event(log, logging.ERROR, "engine_failed", why=node.state.failure)
            return ENGINE_FAILED
        return OK
    finally:
        for waiter in (stop, death):
            waiter.cancel()
        await asyncio.gather(stop, death, return_exceptions=True)


async def _drain(node: Node, signals: StopSignals) -> None:
    """Finish what runs; a second signal cuts it short."""
    node.drainer.begin(node.state.config.server.drain_timeout)
    await _unless(signals.hurry, node.drainer.finished())


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``, or None when the event comes first; ``work`` is cancelled then."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for pending in (task, waiter):
            pending.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)


async def _stop(engine: Engine) -> None:
    try:
        async with asyncio.timeout(STOP_TIME):
            await engine.stop()
    except TimeoutError:
        logs.event(log, logging.ERROR, "engine_does_not_stop", seconds=STOP_TIME)


def _tell_ready(node: Node, info: EngineInfo) -> None:
    logs.event(
        log,
        logging.INFO,
        "node_ready",
        address=node.address,
        node=node.state.node_id,
        model=node.state.names[0],
        engine=info.engine,
        max_seq_len=info.max_seq_len,
        max_num_seqs=info.max_num_seqs,
        kv_capacity_tokens=info.kv_capacity_tokens,
    )


def _warn(config: Config) -> None:
    if not config.server.cluster_token and not is_loopback(config.inference.host):
        detail = f"{config.inference.host} is open to everybody: no cluster token is set, and server.insecure is"
        logs.event(log, logging.WARNING, "exposed", detail=detail)
    if config.server.tls.cert_file and not wants_tls(config):
        detail = "on loopback a node speaks TLS only where router.node_tls is set, so that routers expect it"
        logs.event(log, logging.INFO, "certificate_not_used", detail=detail)
    if config.inference.swap_space is not None:
        detail = "inference.swap_space has no effect: vLLM has no swap space any more; remove the key"
        logs.event(log, logging.WARNING, "ignored", detail=detail)


def _complain(error: Exception, code: int) -> int:
    print(f"laya-node: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
