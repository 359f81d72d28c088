"""vLLM's asynchronous engine with what the node adds to it. Importing this module imports vLLM."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from inference_node.engines import vllm_resume
from inference_node.engines.base import Past
from inference_node.engines.context import Pulled, dispatch, first_token, past, pulled
from inference_node.engines.vllm_stats import StatsCollector

_WHOLE = 1 << 30  # tokens between two outputs: the first one and the last one remain


class NodeLLM(AsyncLLM):  # type: ignore[misc] # vLLM is not typed for us
    """An AsyncLLM that tells the node when work comes, and when a request of the application has its first token.

    ``collector`` is set right after construction, before any request.
    """

    collector: StatsCollector

    async def add_request(self, request_id: str, prompt: Any, params: Any, **kwargs: Any) -> Any:
        """As vLLM's; every request of typed service and application that begins here passes here."""
        self._comes(params, kwargs.get("session_id"))
        return await super().add_request(request_id, prompt, params, **kwargs)

    def _comes(self, params: Any, session_id: Any) -> None:
        self.collector.arrived()
        told = session_id and self.vllm_config.kv_events_config is not None
        if told and isinstance(params, SamplingParams):
            # Its events then also name the blocks that it found in the cache: whoever used them last is told.
            params.extra_args = {**(params.extra_args or {}), "kv_cache_report_mode": "full"}

    async def kv_groups(self) -> list[dict[str, Any]]:
        """What the core says of its groups of layers: kind, block size and window of each."""
        found: list[dict[str, Any]] = await self.engine_core.call_utility_async("get_kv_cache_group_metadata")
        return found

    def run(self, prompt: Any, params: Any, request_id: str, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """vLLM's own ``generate``, for the typed service, which sees the first token itself."""
        outputs: AsyncGenerator[Any, None] = super().generate(prompt, params, request_id, **kwargs)
        return outputs

    def resume(
        self, prompt: Any, params: Any, request_id: str, known: Past, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """The same for a stream that another engine began."""
        self._comes(params, kwargs.get("session_id"))
        return vllm_resume.resumed(self, prompt, params, request_id, known, **kwargs)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """What the application calls: signals the first token; who wants one whole output still gets that."""
        signal = first_token.get()
        kwargs["session_id"] = dispatch.get() or kwargs.get("session_id")
        whole = signal is not None and sampling_params.output_kind is RequestOutputKind.FINAL_ONLY
        if whole:
            sampling_params = copy.copy(sampling_params)
            sampling_params.output_kind = RequestOutputKind.DELTA
            sampling_params.stream_interval = _WHOLE
        listener, known = pulled.get(), past.get()
        if listener is not None and (why := vllm_resume.params_refusal(sampling_params)):
            listener.pin(why)
        if known is None:
            source = self.run(prompt, sampling_params, request_id, **kwargs)
        else:
            source = self.resume(prompt, sampling_params, request_id, known, **kwargs)
        if listener is not None:
            source = _told(source, listener, len(known.parts) if known is not None else 0)
        gathered: Any = None
        async with aclosing(source) as outputs:
            async for output in outputs:
                if signal is not None:
                    signal(output.num_cached_tokens or 0)
                    signal = None
                if not whole:
                    yield output
                elif gathered is None:
                    gathered = output
                else:
                    gathered.add(output, aggregate=True)
        if gathered is not None:
            gathered.outputs.sort(key=lambda part: part.index)
            yield gathered

    def __del__(self) -> None:
        """Nothing: the engine that made this object shuts it down, and the interpreter may be half gone by now."""


async def _told(source: AsyncGenerator[Any, None], listener: Pulled, known: int) -> AsyncGenerator[Any, None]:
    """The outputs of one completion, each told of before it is handed on but the first so many."""
    async with aclosing(source) as outputs:
        try:
            async for output in outputs:
                if known:
                    known -= 1
                else:
                    for part in output.outputs:
                        listener.tell(part.token_ids, part.finish_reason or "")
                yield output
        except EngineDeadError:
            listener.died()
            raise
