"""laya.v1.Inference: the typed service of a node.

Whoever calls has shown the cluster token before a handler runs (``routes``), so router-set metadata is taken as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from inference_node import convert, journal
from inference_node.call import Call
from inference_node.door import Door, Visit
from inference_node.engines.base import BadRequest, Delta, EngineError, Inexact
from inference_node.prepare import Job, Preparer, refused
from inference_node.resume import Resumed, inexact
from inference_node.resumes import Attempt
from inference_node.state import NodeState
from inference_node.web import engine_dead
from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.net.grpc_server import ServerCall
from shared.pb.laya.v1 import inference_pb2 as pb

Emit = Callable[[Delta, bool], Awaitable[None]]


class InferenceService:
    """Handlers for the routes of laya.v1.Inference; one per node."""

    def __init__(self, state: NodeState, door: Door) -> None:
        self._state = state
        self._door = door
        self._preparer = Preparer(state)

    async def generate(self, request: pb.GenerateRequest, call: ServerCall) -> None:
        """Stream a completion."""
        self._may_stream()
        arrived = self._door.clock()
        with self._door.resuming(request.HasField("resume")) as attempt:
            job = await self._preparer.generate(request, _about(call))
            run = _Run(self._door, "generate", job, arrived, call, attempt)
            await self._generate(run, call)

    async def _generate(self, run: _Run, call: ServerCall) -> None:
        first = not run.begun
        run.grant(self._state)

        async def emit(delta: Delta, last: bool) -> None:
            nonlocal first
            message = convert.generate_response(delta)
            if first:
                first = False
                message.request_id, message.model, message.engine = run.names(self._state)
            if last:
                message.usage.CopyFrom(run.usage())
                message.timings.CopyFrom(run.timings())
            await call.send(message)

        await run.drive(self._state, emit)

    async def chat(self, request: pb.ChatRequest, call: ServerCall) -> None:
        """Stream the assistant's turn."""
        self._may_stream()
        arrived = self._door.clock()
        with self._door.resuming(request.HasField("resume")) as attempt:
            job = await self._preparer.chat(request, _about(call))
            run = _Run(self._door, "chat", job, arrived, call, attempt)
            await self._chat(run, call)

    async def _chat(self, run: _Run, call: ServerCall) -> None:
        started = {0} if run.begun else set[int]()
        run.grant(self._state)

        async def emit(delta: Delta, last: bool) -> None:
            message = convert.chat_response(delta, delta.index not in started)
            if not started:
                message.request_id, message.model, message.engine = run.names(self._state)
            started.add(delta.index)
            if last:
                message.usage.CopyFrom(run.usage())
                message.timings.CopyFrom(run.timings())
            await call.send(message)

        await run.drive(self._state, emit)

    def _may_stream(self) -> None:
        if not self._state.config.inference.enable_streaming:
            raise invalid("This node answers whole only (inference.enable_streaming is off): ask by Complete.")

    async def complete(self, request: pb.CompleteRequest, call: ServerCall) -> pb.CompleteResponse:
        """A whole completion in one answer."""
        arrived = self._door.clock()
        if request.request.HasField("resume"):
            raise invalid("Only a stream can be resumed: leave request.resume out.", "request.resume")
        job = await self._preparer.generate(request.request, _about(call))
        run = _Run(self._door, "complete", job, arrived, call)
        request_id, model, engine = run.names(self._state)
        response = pb.CompleteResponse(request_id=request_id, model=model, engine=engine)
        texts: list[list[str]] = []
        for i in range(job.generate.sampling.n):
            response.completions.add(index=i)
            texts.append([])

        async def emit(delta: Delta, last: bool) -> None:
            completion = response.completions[delta.index]
            texts[delta.index].append(delta.text)
            completion.token_ids.extend(delta.token_ids)
            completion.logprobs.extend(convert.positions(delta.logprobs))
            response.prompt_logprobs.extend(convert.positions(delta.prompt_logprobs))
            if delta.finish_reason:
                completion.finish_reason = convert.finish(delta.finish_reason)
                completion.stop_reason = delta.stop_reason

        await run.drive(self._state, emit)
        for completion, parts in zip(response.completions, texts, strict=True):
            completion.text = "".join(parts)
        response.usage.CopyFrom(run.usage())
        response.timings.CopyFrom(run.timings())
        return response

    async def embed(self, request: pb.EmbedRequest, call: ServerCall) -> pb.EmbedResponse:
        """One vector for each input."""
        arrived = self._door.clock()
        about = _about(call)
        prompts, need, model = await self._preparer.embed(request, about)
        async with self._door.visit("embed", about, need, about.priority_over(request.priority), arrived) as visit:
            if visit.trace is not None:
                visit.trace.about("Embed", model)
            try:
                vectors = await self._state.serving.engine.embed(about.request_id, prompts, request.dimensions)
            except BadRequest as e:
                raise refused(e) from None
            except EngineError as e:
                raise self._state.engine_error(e) from e
            visit.first_token()
        return pb.EmbedResponse(
            request_id=about.request_id,
            model=model,
            embeddings=[pb.Embedding(index=i, values=vector) for i, vector in enumerate(vectors)],
            usage=pb.Usage(prompt_tokens=need.prefill_tokens),
        )

    async def list_models(self, request: pb.ListModelsRequest, call: ServerCall) -> pb.ListModelsResponse:
        """The one model of this node."""
        info = self._state.serving.info
        name, *aliases = self._state.names
        model = pb.ModelInfo(
            name=name,
            aliases=aliases,
            revision=info.revision,
            max_seq_len=info.max_seq_len,
            quantization=info.quantization,
            engine=info.engine,
            nodes=1,
        )
        return pb.ListModelsResponse(models=[model])


def _about(call: ServerCall) -> Call:
    return Call(call.metadata, call.request_id.decode(), call.deadline)


class _Run:
    """One generation from admission to its last token."""

    __slots__ = (
        "_arrived",
        "_attempt",
        "_cached",
        "_call",
        "_door",
        "_granted",
        "_job",
        "_replayed",
        "_service",
        "_text",
        "_tokens",
        "_visit",
    )

    def __init__(
        self, door: Door, service: str, job: Job, arrived: float, call: ServerCall, attempt: Attempt | None = None
    ) -> None:
        self._call = call
        self._attempt = attempt
        self._granted = False
        self._replayed = self._text = 0  # tokens that the client had before, and bytes of their text
        self._door = door
        self._service = service
        self._job = job
        self._arrived = arrived
        self._visit: Visit | None = None
        self._tokens = 0
        self._cached = 0

    @property
    def begun(self) -> bool:
        """Whether the client has had the first message, from another node."""
        return self._job.resumed is not None and self._job.resumed.begun

    def grant(self, state: NodeState) -> None:
        """Tell a router that asks whether the stream can go on elsewhere. Raises RESUME_INEXACT if it should here."""
        job = self._job
        if not job.call.journal and job.resumed is None:
            return
        why = journal.typed_refusal(job.generate.sampling, job.call, state.serving.engine)
        if why and job.resumed is not None:
            raise inexact(why)
        self._granted = not why
        self._call.initial_metadata.append((names.JOURNAL, journal.answer(why)))

    async def drive(self, state: NodeState, emit: Emit) -> None:
        """Admit, generate, and hand each delta to ``emit`` with whether it is the last. Raises LayaError."""
        job = self._job
        engine = state.serving.engine
        left = job.generate.sampling.n
        visit = self._door.visit(self._service, job.call, job.need, job.generate.priority, self._arrived)
        visit.migratable = self._granted
        visit.stop = self._stop
        async with visit:
            self._visit = visit
            if visit.trace is not None:
                visit.trace.typed(self._service, job)
            try:
                async with aclosing(engine.generate(job.generate)) as deltas:
                    async for delta in deltas:
                        if visit.first_at == 0.0:
                            visit.prompt_started(delta.cached_tokens)
                            self._cached = delta.cached_tokens
                        self._tokens += len(delta.token_ids)
                        if delta.finish_reason:
                            left -= 1
                            if visit.trace is not None:
                                visit.trace.finished(delta.finish_reason)
                        if job.resumed is not None and self._had(job.resumed, delta, left == 0):
                            continue
                        if not visit.timed:
                            await emit(delta, left == 0)
                            continue
                        since = self._door.clock()
                        await emit(delta, left == 0)
                        visit.serialising += self._door.clock() - since
            except BadRequest as e:
                raise refused(e) from None
            except Inexact as e:
                raise inexact(str(e)) from None
            except EngineError as e:
                error = state.engine_error(e)
                raise engine_dead() if e.fatal and self._granted else error from e
            finally:
                visit.generated(self._tokens - self._replayed)
                if visit.trace is not None:
                    visit.trace.generated(self._tokens - self._replayed)
            if left:
                raise LayaError(Code.INTERNAL, "ENGINE_FAILED", "The engine ended the request before it was complete.")

    def _had(self, resumed: Resumed, delta: Delta, last: bool) -> bool:
        """Whether the client has this already; an end that it has not been told of stays to be told.

        Raises RESUME_INEXACT where the text here is not as long as the client's.
        """
        if delta.replayed:
            self._replayed += len(delta.token_ids)
            self._text += len(delta.text.encode())
            if not last:
                return True
            delta.text, delta.token_ids, delta.logprobs = "", (), ()
        if self._text != resumed.text_bytes:
            raise inexact(f"the text here has {self._text} bytes, and the client has {resumed.text_bytes}")
        if self._attempt is not None:
            self._attempt.went_on(self._replayed)
        return False

    def _stop(self, error: LayaError) -> bool:
        self._call.stop(error)
        return True

    def names(self, state: NodeState) -> tuple[str, str, str]:
        """Request id, model and engine, for the first message."""
        return self._job.call.request_id, self._job.model, state.serving.info.engine

    def usage(self) -> pb.Usage:
        """Tokens used."""
        prompt = len(self._job.generate.prompt.token_ids)
        return pb.Usage(prompt_tokens=prompt, completion_tokens=self._tokens, cached_tokens=self._cached)

    def timings(self) -> pb.Timings:
        """Seconds in the queue, to the first token, and to now."""
        visit, arrived = self._visit, self._arrived
        if visit is None:
            return pb.Timings()
        return pb.Timings(
            queue_seconds=visit.admitted_at - arrived,
            ttft_seconds=visit.first_at - arrived,
            total_seconds=self._door.clock() - arrived,
            serialise_seconds=visit.serialising,
        )
