"""Registers the node in Consul: with a gRPC health check that the agent makes, and a time to live that the node keeps.

Both must pass for routers to be sent here. Where the node asks for client certificates, which an agent does not have,
only the time to live is kept. A node that drains leaves at once, and comes back when the drain is undone.
An agent that was restarted and has forgotten the node is told again. Never in the way of serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any, Final

from inference_node.state import NodeState
from router_node.discovery.address import split_address
from router_node.discovery.backoff import Backoff
from shared.logging import event
from shared.tasks import cancel_all
from shared.version import PROTOCOL

BEATS: Final = 3  # in each time to live
LAST_WORDS_TIMEOUT: Final = 1.0  # seconds, for leaving at the end
_FORGET: Final = 20  # times to live after which the agent itself forgets a critical node


class ConsulRegistrar:
    """Registers one node; ``address`` is the host:port that routers dial."""

    def __init__(self, state: NodeState, address: str, log: logging.Logger) -> None:
        self.up = False
        self._state = state
        self._config = state.config.server.consul
        self._address = address
        self._log = log
        self._revision = ""
        self._client: Any = None
        self._wake = asyncio.Event()
        self._told_down = False
        self._task: asyncio.Task[None] | None = None

    def start(self, revision: str = "") -> None:
        """Register, and keep doing so in the background."""
        self._revision = revision
        self._state.on_change.append(self._wake.set)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="consul-registrar")

    async def close(self) -> None:
        """Leave, if the agent answers in time."""
        if self._task is None:
            return
        await cancel_all([self._task])
        self._task = None
        if self.up:
            with contextlib.suppress(Exception):  # the time to live does it too
                async with asyncio.timeout(LAST_WORDS_TIMEOUT):
                    await self._leave()

    @property
    def _id(self) -> str:
        return f"{self._config.service}:{self._state.node_id}"

    async def _run(self) -> None:
        self._client = await asyncio.to_thread(self._connect)
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                await self._beat()
            except Exception as error:  # whatever it is, the node serves on
                self._down(error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.ttl / BEATS * random.uniform(0.8, 1.0)):
                    await self._wake.wait()

    async def _beat(self) -> None:
        if self._state.draining:
            if self.up:
                await self._leave()
            return
        if not self.up or not await self._client.agent.check.ttl_pass(self._ttl_check):
            await self._register()
            if not await self._client.agent.check.ttl_pass(self._ttl_check):
                raise RuntimeError("the agent has forgotten the node it was just told of")

    @property
    def _ttl_check(self) -> str:
        return f"laya-ttl:{self._id}"

    async def _register(self) -> None:
        config, state = self._config, self._state
        host, port = split_address(self._address)
        # Names as Consul's own code has them: of "grpc_use_tls" not every version knows what it means.
        grpc = {
            "Name": "gRPC health",
            "GRPC": f"{self._address}/laya.v1.Inference",
            "GRPCUseTLS": bool(state.config.server.tls.cert_file),
            "TLSSkipVerify": True,  # routers verify; this asks only whether it serves
            "Interval": f"{max(1, int(config.ttl / BEATS))}s",
            "Timeout": "3s",
            "DeregisterCriticalServiceAfter": f"{max(60, int(config.ttl * _FORGET))}s",
        }
        ttl = {
            "Name": "heartbeat",
            "CheckID": self._ttl_check,
            "TTL": f"{config.ttl:g}s",
            "Status": "passing",
            "DeregisterCriticalServiceAfter": grpc["DeregisterCriticalServiceAfter"],
        }
        # A node that wants to see certificates would turn the agent away.
        checks = [ttl] if state.config.server.tls.ca_file else [grpc, ttl]
        done = await self._client.agent.service.register(
            config.service,
            service_id=self._id,
            address=host,
            port=port,
            tags=list(config.tags),
            check=checks[0],
            extra_checks=checks[1:],
            replace_existing_checks=True,
            meta={
                "node_id": state.node_id,
                "boot_id": state.boot_id,
                "model": state.names[0],
                "revision": self._revision,
                "protocol": str(PROTOCOL),
            },
        )
        if not done:
            raise RuntimeError("the agent did not take the registration")
        if not self.up:
            self.up = True
            self._told_down = False
            event(self._log, logging.INFO, "registered", store=config.address, address=self._address)

    async def _leave(self) -> None:
        await self._client.agent.service.deregister(self._id)
        self.up = False
        event(self._log, logging.INFO, "deregistered", store=self._config.address)

    def _down(self, error: BaseException) -> None:
        if self.up or not self._told_down:
            why = " ".join(str(error).split())[:200] or type(error).__name__
            event(
                self._log,
                logging.WARNING,
                "consul_down",
                address=self._config.address,
                why=why,
                effect="the node serves on; registering is tried again",
            )
        self.up = False
        self._told_down = True

    def _connect(self) -> Any:
        from shared.consul_client import connect

        config = self._config
        return connect(config.address, config.token, config.datacenter, config.ca_file)
