"""One worker of a supervisor: clients and nodes of its own, on a port it shares with the others.

Started by the supervisor with the number of a socket; everything else comes over that socket. When the socket ends,
so does the worker: it finishes what it has, as after SIGTERM, and leaves no orphan.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from router_node.admin.bridge import Bridge
from router_node.client_side import ClientSide
from router_node.config import complain, load_keys
from router_node.control import (
    COUNT_EVERY,
    Changes,
    Channel,
    ChannelClosed,
    Counted,
    Pins,
    RelayedSource,
    Serving,
    Start,
    Table,
    ToWorker,
    View,
)
from router_node.exits import BAD_CONFIG, FAILED, OK, UNAVAILABLE
from router_node.node_side import NodeSide
from router_node.route_side import caps_of
from router_node.routes.manager import RouteManager
from router_node.routes.rules import RouteError
from router_node.session_side import PinKeeper, Relay, mode_of
from router_node.signals import StopSignals, first
from shared import logging as logs
from shared.config import ConfigError
from shared.heap import SELDOM, settle_heap

_START_TIMEOUT = 10.0  # seconds for the supervisor's first message


def main() -> None:
    """Run on the socket whose number is the first argument; those that listen follow."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until it serves
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor passes it on
    try:
        sock, *listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
        for one in (sock, *listening):
            one.set_inheritable(False)
        code = uvloop.run(work(sock, listening))
    except ConfigError as error:
        complain(error)
        code = BAD_CONFIG
    except OSError as error:
        complain(error)
        code = UNAVAILABLE
    except ChannelClosed:
        code = FAILED
    sys.exit(code)


async def work(sock: socket.socket, listening: Sequence[socket.socket]) -> int:
    """Serve until told to stop; the exit code."""
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(StopSignals(asyncio.get_running_loop(), (signal.SIGTERM,)))
        channel = await Channel.open(sock, ToWorker)
        stack.push_async_callback(channel.close)
        async with asyncio.timeout(_START_TIMEOUT):
            start = await channel.receive()
        if not isinstance(start, Start):
            raise ChannelClosed("the first message must say how to start")
        server = msgspec.structs.replace(start.config.server, port=start.port)
        config = msgspec.structs.replace(start.config, server=server)
        logs.setup(server.log_level, server.log_format)
        if server.log_level != "debug":
            for name in ("laya.discovery", "shared.net.pool"):  # the supervisor tells of nodes, once
                logging.getLogger(name).setLevel(logging.CRITICAL)

        sources = {name: RelayedSource(name) for name in start.sources}
        nodes = NodeSide(config, list(sources.values()), start.worker)
        routes = RouteManager(nodes.table, nodes.dispatcher, asyncio.get_running_loop(), caps_of(config))
        stack.callback(routes.close)
        if start.table is not None:
            routes.reset(start.table.book())
        keeper: PinKeeper | None = None
        if mode_of(config) != "memory" and config.server.redis:
            relay = Relay(lambda pins: _tell(channel, Pins(pins)))
            stack.callback(relay.close)
            keeper = PinKeeper(config, nodes, relay.offer)
            stack.callback(keeper.close)
        bridge = Bridge(start.bridge, nodes.net, nodes.flusher)
        clients = ClientSide(config, nodes, load_keys(config), bridge, shared_port=True, inherited=listening)
        stack.push_async_callback(bridge.close)
        await bridge.start()
        stack.push_async_callback(nodes.close)
        await nodes.start()
        for view in start.views:
            sources[view.source].take(view)
        tasks = [asyncio.create_task(_listen(channel, sources, routes, keeper, signals.stop), name="control-listen")]
        try:
            await nodes.reach()
            stack.push_async_callback(clients.close)
            await clients.start()
            settle_heap(SELDOM)
            channel.send(Serving(clients.address))
            tasks.append(asyncio.create_task(_count(channel, clients, signals.stop), name="control-count"))
            await first(signals.stop, signals.replace)
            _tell(channel, Serving(""))  # by whoever asked: new connections must not wait for us
            finished = await clients.drain(signals.hurry, replaced=signals.replace.is_set())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(ChannelClosed):
            channel.send(Counted(clients.snapshot()))
    return OK if finished else FAILED  # which the supervisor alone sees


async def _listen(
    channel: Channel,
    sources: dict[str, RelayedSource],
    routes: RouteManager,
    keeper: PinKeeper | None,
    stop: asyncio.Event,
) -> None:
    """Pass views, rules and pins on; the end of the channel is the end of the worker."""
    try:
        while True:
            message = await channel.receive()
            if isinstance(message, View) and message.source in sources:
                sources[message.source].take(message)
            elif isinstance(message, Table):
                routes.reset(message.book())
            elif isinstance(message, Changes):
                routes.take_all(message.changes)
            elif isinstance(message, Pins) and keeper is not None:
                keeper.table.take(message.pins)
    except (ChannelClosed, RouteError):  # rules that do not follow: a new worker is told them whole
        pass
    finally:
        stop.set()


def _tell(channel: Channel, message: Serving | Pins) -> None:
    with contextlib.suppress(ChannelClosed):  # whoever listens to it ends the worker
        channel.send(message)


async def _count(channel: Channel, clients: ClientSide, stop: asyncio.Event) -> None:
    """Say once a second what was counted; it also shows that this loop runs."""
    try:
        while True:
            channel.send(Counted(clients.snapshot()))
            await asyncio.sleep(COUNT_EVERY)
    except ChannelClosed:
        pass
    finally:
        stop.set()


if __name__ == "__main__":
    main()
