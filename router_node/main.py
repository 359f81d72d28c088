"""``laya-router``: the parts of a router, put together, run, and taken apart in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import uvloop

from router_node.announce import announce
from router_node.config import Options, complain, parse
from router_node.exits import BAD_CONFIG, FAILED, OK, UNAVAILABLE
from router_node.successor import Listening, as_able, inherited, until_over
from shared import logging as logs
from shared.config import ConfigError
from shared.notify import notify
from shared.open_files import raise_limit

log = logs.get("router")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run and exit with a code that means something."""
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run until a signal; the exit code."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # which would end the process: nothing can be replaced yet
    try:
        options = parse(argv, inherited())
        logs.setup(options.config.server.log_level, options.config.server.log_format)
        raise_limit(options.config.server.max_connections)
        for warning in options.warnings:
            logs.event(log, logging.WARNING, "exposed", detail=warning)
        # Processes are started while gRPC runs in this one. Its fork handlers could stop its own threads in the middle
        # of a call; a child that only executes another program needs none. Read when grpc is imported.
        os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
        if options.config.router.workers > 1:
            from router_node.supervisor import supervise

            return uvloop.run(supervise(options))
        return uvloop.run(serve(options))
    except ConfigError as error:
        complain(error)
        return BAD_CONFIG
    except OSError as error:
        complain(error)
        return UNAVAILABLE


async def serve(options: Options) -> int:
    """One router in this process."""
    # Imported here, so that a wrong flag is answered at once: these bring the network layer, gRPC and protobuf.
    from router_node.admin.bridge import Bridge
    from router_node.admin.server import Leave, private_socket
    from router_node.admin.view import LocalView
    from router_node.admin_side import AdminSide
    from router_node.client_side import ClientSide
    from router_node.node_side import NodeSide, configured_sources
    from router_node.route_side import RouteSide
    from router_node.session_side import SessionSide
    from router_node.signals import StopSignals, unless
    from shared.heap import SELDOM, settle_heap

    config = options.config
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(StopSignals(asyncio.get_running_loop()))
        socket = stack.enter_context(private_socket())
        nodes = NodeSide(config, configured_sources(config))
        routes = RouteSide(config, nodes)
        sessions = SessionSide(config, nodes)
        bridge = Bridge(socket, nodes.net, nodes.flusher)
        clients = ClientSide(config, nodes, options.keys, bridge, inherited=options.inherited.public)
        admin = AdminSide(
            config,
            nodes,
            socket,
            view=LocalView(nodes.dispatcher, nodes.membership, nodes.table),
            routes=routes,
            collect=lambda: sessions.add_to(routes.add_to(clients.snapshot())),
            not_ready=clients.not_ready,
            leave=Leave(signals.ask, lambda: clients.live),
            trouble=sessions.trouble,
            inherited=options.inherited.admin,
        )
        for part in (admin, bridge, nodes, routes, sessions, clients):  # they end in the opposite order
            stack.push_async_callback(part.close)
            if part is clients:
                await nodes.reach()
                if not await as_able(options.inherited.able, nodes.not_ready, signals.stop):
                    return OK
            await part.start()
        await admin.open()
        settle_heap(SELDOM)
        announce(options, clients.address, admin.address)
        replaced = await until_over(signals, lambda: Listening(clients.sockets, admin.sockets, not nodes.not_ready()))
        logs.event(log, logging.INFO, "router_stopping", drain_timeout=config.server.drain_timeout)
        if replaced:
            admin.replaced()
        else:
            notify("STOPPING=1")
            clients.draining = True
            admin.readiness_changed()
            await unless(signals.hurry, asyncio.ensure_future(asyncio.sleep(config.server.drain_delay)))
        finished = await clients.drain(signals.hurry, signals.grace, replaced=replaced)
    logs.event(log, logging.INFO, "router_stopped", finished=finished)
    return OK if finished or not signals.hurry.is_set() else FAILED


if __name__ == "__main__":
    main()
