"""The engine that runs real models: vLLM's ``AsyncLLM``, its core in a process of its own.

The pieces: ``vllm_args`` and ``vllm_load`` make vLLM's configuration, ``vllm_core`` its process, ``vllm_client`` the
front end, ``vllm_openai`` the application, ``vllm_convert`` the data between the seam and vLLM, ``vllm_stats`` the
counters, ``vllm_warmup`` the first requests. This module starts them, wires them and stops them. Importing it does not
import vLLM; ``start`` does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from inference_node.config import model_names
from inference_node.engines import vllm_args, vllm_convert, vllm_env, vllm_load, vllm_resume, vllm_warmup
from inference_node.engines.base import (
    ASGIApp,
    BadRequest,
    Delta,
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineUnavailable,
    Finished,
    GenerateCall,
    Message,
    Prompt,
    Sampling,
)
from inference_node.engines.vllm_args import Arguments, Host
from inference_node.engines.vllm_core import PRELOAD, PRELOAD_CPU, CoreProcess, CoreSetup, Launcher
from inference_node.engines.vllm_events import CacheEvents
from inference_node.engines.vllm_kv import kv_pool
from inference_node.engines.vllm_load import Loaded
from inference_node.engines.vllm_openai import OpenAIApp, build, preload
from inference_node.engines.vllm_stats import StatsCollector, exposition
from inference_node.memory import device
from shared import logging as logs
from shared.config.schema import ConfigError, InferenceConfig

_START_LIMIT = 3600.0  # seconds for loading a model, downloads included
_STOP_LIMIT = 10.0  # seconds for the core to end by itself
_THREAD_LIMIT = 30.0  # seconds for vLLM's own start to notice that its core is gone

_log = logs.get("engine")
T = TypeVar("T")


class VllmEngine(Engine):
    """See the module's docstring."""

    name = "vllm"

    def __init__(self, config: InferenceConfig, context: int = 0) -> None:
        """``context``: longest sequence to take where ``config`` leaves it open, if the model goes so far."""
        self._config = config
        self._context = context
        self._names = model_names(config)
        self._collector = StatsCollector()
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="vllm-engine")
        self._core: CoreProcess | None = None
        self._llm: Any = None
        self._app: OpenAIApp | None = None
        self._defaults: dict[str, Any] = {}
        self._bars = ""  # why no stream at all can go on here
        self._creating: asyncio.Future[Any] | None = None
        self._events: CacheEvents | None = None
        self._blocks = 0
        self._tokens_input: Callable[..., Any] | None = None

    async def start(self) -> EngineInfo:
        """Load the model and warm it up. Raises ConfigError for settings that cannot be, else as the seam says."""
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(_START_LIMIT):
                loaded = await self._load()
                took = {"load": time.perf_counter() - begin}
                info = await self._describe(loaded)
                took |= await self._warm_up(info)
        except BaseException as e:
            words = self._core.last_words() if self._core is not None else ""
            # Also when cancelled: nobody else knows of the process yet.
            await asyncio.shield(self.stop())
            if isinstance(e, (ConfigError, EngineUnavailable)) or not isinstance(e, Exception):
                raise
            raise EngineError(
                f"vLLM could not start {self._config.model}: {words or vllm_load.sentence(e)}", fatal=True
            ) from e
        took["all"] = time.perf_counter() - begin
        logs.event(_log, logging.INFO, "engine_started", **{f"{k}_s": round(v, 2) for k, v in took.items()})
        return info

    async def _load(self) -> Loaded:
        """Process, configuration, front end and application, as much of it at once as can be."""
        vllm_args.split_model(self._config)  # what is wrong with it is said at once
        host = Host(vllm_env.is_cpu_build(), device.available())
        if self._config.swap_space is not None:
            logs.event(_log, logging.WARNING, "setting_ignored", key="inference.swap_space", reason="vLLM has none")
        style = vllm_env.LogStyle.of_this_process()
        cores = self._cores(host)
        eager = vllm_args.is_eager(self._config, host)
        vllm_env.apply(vllm_env.node_environment(self._config, cpu=host.cpu, eager=eager))
        style.apply()
        environment = style.environment()
        if host.cpu:
            environment |= vllm_env.core_environment(cores, vllm_args.workers(self._config))
        setup = CoreSetup(environment, cores, style, PRELOAD_CPU if host.cpu else PRELOAD)
        self._core = await self._in_thread(CoreProcess, setup)
        try:
            args: Arguments = await self._in_thread(vllm_load.arguments, self._config, self._names, host)
        except ImportError as e:
            raise EngineUnavailable(f"inference.engine: vllm cannot be loaded here: {e}; run `make setup`") from e
        self._events = vllm_load.cache_events(self._config, args)
        loaded: Loaded = await self._in_thread(vllm_load.load, self._config, args, self._context)
        style.apply()  # vLLM may have set up its own while it was imported
        self._creating = asyncio.ensure_future(self._in_thread(self._create, loaded, self._core))
        imported = asyncio.ensure_future(self._in_thread(preload, loaded.vllm_config.model_config))
        self._llm = await asyncio.shield(self._creating)
        await imported
        try:
            self._app = await build(self._llm, loaded.app_args)
        except (ValueError, TypeError, KeyError, FileNotFoundError) as e:
            raise vllm_load.refusal(e, "inference.engine_args: vLLM's application refuses them") from e
        await self._app.start()
        return loaded

    def _cores(self, host: Host) -> tuple[int, ...]:
        """Cores of the core's process: only where the model computes on them, or where the user says so."""
        if not host.cpu and not self._config.cpu_threads:
            return ()
        return vllm_env.compute_cores(self._config.cpu_threads, os.sched_getaffinity(0))

    def _create(self, loaded: Loaded, core: CoreProcess) -> Any:
        """Start vLLM's front end, which waits for its core; in a thread, because that takes as long as the model."""
        from vllm.v1.executor import Executor

        from inference_node.engines.vllm_client import NodeLLM

        with Launcher(core).lend():
            llm = NodeLLM(
                loaded.vllm_config,
                Executor.get_class(loaded.vllm_config),
                log_stats=False,
                log_requests=False,
                stat_loggers=[lambda _config, _index: self._collector],
            )
        llm.collector = self._collector
        return llm

    async def _describe(self, loaded: Loaded) -> EngineInfo:
        """What the running engine is, and what requests need to know of it."""
        from vllm.inputs import tokens_input

        config, app = loaded.vllm_config, self._application()
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        self._tokens_input = tokens_input
        self._defaults = model.get_diff_sampling_param() if app.generates else {}
        self._bars = vllm_resume.engine_refusal(config)
        pool = kv_pool(
            await self._llm.kv_groups(),
            int(cache.num_gpu_blocks or 0),
            int(cache.block_size),
            int(cache.kv_cache_size_tokens or 0),
            int(model.max_model_len),
            int(config.max_in_flight_tokens),
        )
        guessed = int(config.speculative_config.num_speculative_tokens or 0) if config.speculative_config else 0
        self._blocks = pool.blocks
        settings = getattr(model.hf_config, "quantization_config", None) or {}
        return EngineInfo(
            engine=self.name,
            model=self._names[0],
            revision=loaded.revision,
            max_seq_len=int(model.max_model_len),
            quantization=vllm_convert.quantization_label(model.quantization, settings),
            kv_block_tokens=pool.block_tokens,
            kv_blocks=pool.blocks,
            kv_groups=pool.groups,
            tells_evictions=self._events is not None and bool(cache.enable_prefix_caching),
            max_num_seqs=int(scheduler.max_num_seqs),
            max_prefill_tokens=int(scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens),
            lookahead_tokens=vllm_args.lookahead_tokens(guessed, int(config.num_lookahead_tokens)),
            supports_embed=app.embeds,
            supports_chat=await app.chats(),
        )

    async def _warm_up(self, info: EngineInfo) -> dict[str, float]:
        app = self._application()
        took: dict[str, float] = {}
        if app.generates:
            prompt = (await self.tokenize("Hello"))[: max(info.max_seq_len - 8, 1)]
            took |= await vllm_warmup.generation(self.generate, prompt)
            took |= await vllm_warmup.application(app.app, info.model, info.supports_chat)
        elif app.embeds:
            took |= await vllm_warmup.embedding(app.app, info.model)
        await self._llm.reset_prefix_cache()
        self._collector.forget()
        return {f"warm_{name}": seconds for name, seconds in took.items()}

    async def stop(self) -> None:
        """End the core's process and everything that belongs to it. Idempotent."""
        app, llm, core, creating, events = self._app, self._llm, self._core, self._creating, self._events
        self._app = self._llm = self._core = self._creating = self._events = None
        if events is not None:
            await events.close()
        if app is not None:
            await app.stop()
        if core is not None and llm is None:
            await self._in_thread(core.kill)
        if creating is not None and llm is None:
            # With its core gone, vLLM's start fails within moments; if it was just done, that is what to shut down.
            with suppress(BaseException):
                async with asyncio.timeout(_THREAD_LIMIT):
                    llm = await asyncio.shield(creating)
        if llm is not None:
            await self._shut_down(llm)
        if core is not None:
            await self._in_thread(core.kill)
        self._threads.shutdown(wait=False)

    async def _shut_down(self, llm: Any) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        llm.output_processor.propagate_error(EngineDeadError())
        try:
            await self._in_thread(functools.partial(llm.shutdown, timeout=_STOP_LIMIT))
        except Exception as e:
            logs.event(_log, logging.WARNING, "engine_stop_failed", exc_info=e)
        if llm.output_handler is not None:
            with suppress(asyncio.CancelledError, Exception):
                await llm.output_handler

    async def tokenize(self, text: str) -> Sequence[int]:
        """Token ids as /v1/completions makes them. Raises BadRequest for a text that cannot fit the context."""
        return await self._application().tokenize(text)

    async def render_chat(self, messages: Sequence[Message], template_kwargs: dict[str, Any]) -> Prompt:
        """Render a conversation as /v1/chat/completions does."""
        return await self._application().render_chat(messages, template_kwargs)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        """Run one request. vLLM aborts it within a step when this generator is closed or cancelled."""
        app, llm = self._application(), self._llm
        if not app.generates:
            raise BadRequest("the model does not generate text; ask it for embeddings")
        params = vllm_convert.sampling_params(call.sampling, self._defaults)
        prompt = self._input(call.prompt, call.cache_salt)
        about = {"priority": call.priority, "lora_request": app.lora(call.lora), "session_id": call.dispatch or None}
        past = call.past
        if past is None:
            outputs, known = llm.run(prompt, params, call.request_id, **about), 0
        else:
            outputs, known = llm.resume(prompt, params, call.request_id, past, **about), len(past.parts)
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    for delta in vllm_convert.deltas(output, call):
                        delta.replayed = known > 0
                        known -= 1
                        yield delta
        except Exception as e:
            raise vllm_convert.client_error(e) from e

    def cannot_continue(self, sampling: Sampling) -> str:
        """What the core knows of an answer's own tokens is lost with it, and where a seed's generator was."""
        return self._bars or vllm_resume.refusal(vllm_resume.asked(sampling, self._defaults))

    async def embed(self, request_id: str, inputs: Sequence[Prompt], dimensions: int) -> Sequence[Sequence[float]]:
        """One vector per input."""
        if not self._application().embeds:
            raise BadRequest("the model has no embeddings")
        tasks = [
            asyncio.ensure_future(self._embed_one(f"{request_id}-{i}", prompt, dimensions))
            for i, prompt in enumerate(inputs)
        ]
        try:
            return await asyncio.gather(*tasks)
        except Exception as e:
            raise vllm_convert.client_error(e) from e
        finally:
            for task in tasks:
                task.cancel()

    async def _embed_one(self, request_id: str, prompt: Prompt, dimensions: int) -> Sequence[float]:
        from vllm import PoolingParams

        params = PoolingParams(task="embed", dimensions=dimensions or None)
        vector: Any = None
        async with aclosing(self._llm.encode(self._input(prompt, ""), params, request_id)) as outputs:
            async for output in outputs:
                vector = output.outputs.data
        if vector is None:
            raise EngineError("the engine gave no vector for an input")
        values: list[float] = vector.float().flatten().tolist()
        return values

    def _input(self, prompt: Prompt, salt: str) -> Any:
        if self._tokens_input is None:
            raise EngineError("the engine is not running")
        return self._tokens_input(list(prompt.token_ids), prompt=prompt.text, cache_salt=salt or None)

    async def count_prompt(self, path: str, body: dict[str, Any]) -> Sequence[int]:
        """As the application will count it, by the application's own renderer."""
        return await self._application().count(path, body)

    def asgi_app(self) -> ASGIApp:
        """vLLM's OpenAI application."""
        return self._application().app

    def stats(self) -> EngineStats:
        """Counters since the warm-up, and gauges as of the last step."""
        llm = self._llm
        return self._collector.read(llm.get_num_unfinished_requests() if llm is not None else 0)

    def follow(self, finished: Callable[[Finished], None]) -> None:
        """Tell of each sequence that ends by itself, as vLLM's statistics do."""
        self._collector.on_finished = finished

    def follow_cache(self, evicted: Callable[[str, int], None]) -> None:
        """Tell of evictions as vLLM's KV events do."""
        if self._events is not None:
            self._events.follow(evicted, self._blocks)

    async def check(self) -> None:
        """Raise EngineError(fatal=True) when the core is dead."""
        if self._llm is None or self._core is None:
            raise EngineError("the engine is not running", fatal=True)
        if self._llm.errored or not self._core.is_alive():
            raise EngineError(f"the engine's core has died{_because(self._core.last_words())}", fatal=True)

    def metrics_text(self) -> str:
        """vLLM's own metrics."""
        if self._llm is None:
            return ""
        from vllm.v1.metrics.prometheus import get_prometheus_registry

        return exposition(get_prometheus_registry())

    def _application(self) -> OpenAIApp:
        if self._app is None:
            raise EngineError("the engine is not running", fatal=self._llm is None)
        return self._app

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)


def _because(words: str) -> str:
    return f": {words}" if words else ""
