"""What would go wrong with each stream that a node refuses to journal, were it granted: here all of them are.

Those of vLLM's sampling are in ``test_engines_vllm_refusals``; those that the simulator can do exactly, and yet are
refused for other engines' sake, have an engine here that is like those.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from inference_node import journal, web
from inference_node.engines import sim_text
from inference_node.engines.base import ASGIApp, Delta, GenerateCall, Prompt, Receive, Sampling, Scope, Send
from inference_node.engines.context import past
from inference_node.engines.sim import SimEngine
from inference_node.node import Node
from shared.config.schema import InferenceConfig, SimConfig
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import resumes
from tests.support.resumes import ASK, RESUME, Heard, hear, resumed
from tests.unit.node.harness import config, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
COLD = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=0.2, decode_per_sequence_ms=0.0, prefix_cache=False)
NAMED = (("x-request-id", "the-same"),)
Nodes = tuple[Node, Node]


def like(kind: type[SimEngine]) -> SimEngine:
    return kind(InferenceConfig(engine="sim", model="demo", sim=COLD))


@contextlib.asynccontextmanager
async def two(kind: type[SimEngine] = SimEngine) -> AsyncIterator[Nodes]:
    async with contextlib.AsyncExitStack() as stack:
        conf = config(sim=COLD, default_max_tokens=64)
        made = [await stack.enter_async_context(running(conf, like(kind))) for _ in range(2)]
        yield made[0][0], made[1][0]


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every journal is granted that is asked for."""
    monkeypatch.setattr(journal, "typed_refusal", lambda *_: "")
    monkeypatch.setattr(journal, "tunnel_refusal", lambda *_: "")


async def undisturbed(nodes: Nodes, request: Any) -> Heard:
    heard = await hear(nodes[0].address, request, (*ASK, *NAMED))
    assert not heard.code and heard.journal == "1"
    return heard


async def go_on(nodes: Nodes, request: Any, messages: Sequence[Any]) -> Heard:
    return await hear(nodes[1].address, resumed(request, messages), (*RESUME, *NAMED))


async def refusal(request: Any, kind: type[SimEngine] = SimEngine) -> str:
    """The node's word, when it is asked in earnest."""
    async with two(kind) as nodes:
        return (await hear(nodes[0].address, request, (*ASK, *NAMED))).journal


SEVERAL = pb.GenerateRequest(text="hello there", sampling=pb.SamplingParams(max_tokens=6, n=2, ignore_eos=True))


async def test_tokens_of_several_typed_sequences_are_one_muddle_to_the_next_node(granted: None) -> None:
    async with two() as nodes:
        whole = await undisturbed(nodes, SEVERAL)
        assert {message.index for message in whole.messages} == {0, 1}
        for cut in range(2, len(whole.messages)):  # each has said something
            had = whole.messages[:cut]
            rest = await go_on(nodes, SEVERAL, had)
            said = [[t for m in [*had, *rest.messages] if m.index == i for t in m.token_ids] for i in (0, 1)]
            wanted = [[t for m in whole.messages if m.index == i for t in m.token_ids] for i in (0, 1)]
            assert rest.code or said != wanted, cut


async def test_several_typed_sequences_are_refused() -> None:
    assert await refusal(SEVERAL) == "0; n is over 1"


@pytest.mark.parametrize(
    ("body", "why"),
    [({"prompt": "hello", "n": 2}, "n is over 1"), ({"prompt": ["hello", "good day"]}, "several prompts")],
    ids=["n over 1", "several prompts"],
)
async def test_nothing_says_whose_the_tokens_of_several_answers_are(
    body: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = resumes.web(TEXT, **body, max_tokens=6, ignore_eos=True)
    assert await refusal(request) == f"0; {why}"
    monkeypatch.setattr(journal, "tunnel_refusal", lambda *_: "")
    async with two() as nodes:
        whole = await undisturbed(nodes, request)
        events = [json.loads(line[6:]) for line in whole.body.decode().split("\n\n") if line.startswith("data: {")]
        for index in (0, 1):
            text = "".join(c["text"] for e in events for c in e["choices"] if c["index"] == index)
            assert text and not sim_text.decode(whole.tokens).startswith(text), "the first tokens are not one answer's"
        for cut in range(1, len(whole.messages)):
            assert (await go_on(nodes, request, whole.messages[:cut])).reason == "RESUME_INEXACT"


class Beams(SimEngine):
    """Its application searches as others' do: a request of one token for each beam and step, the best at the end."""

    def asgi_app(self) -> ASGIApp:
        return self._search

    async def _search(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        prompt = list(await self.tokenize(body["prompt"]))
        beams: list[list[int]] = [[], []]
        for step in range(body["max_tokens"]):
            for beam, tokens in enumerate(beams):
                call = GenerateCall(
                    f"b-{step}-{beam}", Prompt([*prompt, *tokens]), Sampling(1, seed=beam, ignore_eos=True)
                )
                call.past = past.get()
                async with aclosing(self.generate(call)) as deltas:
                    tokens += [token async for delta in deltas for token in delta.token_ids]
        await _events(send, [{"choices": [{"text": sim_text.decode(beams[1])}]}])


async def test_tokens_that_a_beam_search_tried_are_not_those_of_its_answer(granted: None) -> None:
    request = resumes.web(TEXT, prompt="hello there", max_tokens=4, use_beam_search=True)
    async with two(Beams) as nodes:
        whole = await undisturbed(nodes, request)
        text = json.loads(whole.body.split(b"\n\n")[0][6:])["choices"][0]["text"]
        assert len(whole.tokens) == 8 and not sim_text.decode(whole.tokens).startswith(text)
        told = next(i for i, message in enumerate(whole.messages) if message.body)
        rest = await go_on(nodes, request, whole.messages[: told + 1])
        assert rest.code == "INVALID_ARGUMENT", "more tokens than the request allows"


async def test_a_beam_search_is_refused() -> None:
    request = resumes.web(TEXT, prompt="hello there", max_tokens=4, use_beam_search=True)
    assert await refusal(request, Beams) == "0; beam search"


class Forgetful(SimEngine):
    """Of tokens that it hears again it has no log-probabilities, as an engine that does not compute them anew."""

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        async with aclosing(super().generate(call)) as deltas:
            async for delta in deltas:
                if delta.replayed:
                    delta.logprobs = ()
                yield delta


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_log_probabilities_over_http_cannot_be_said_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = resumes.web(TEXT, prompt="hello there", max_tokens=6, ignore_eos=True, logprobs=1)
    if path == CHAT:
        turns = [{"role": "user", "content": "hello"}]
        request = resumes.web(CHAT, messages=turns, max_tokens=6, ignore_eos=True, logprobs=True, top_logprobs=1)
    assert await refusal(request, Forgetful) == "0; log-probabilities over HTTP"
    monkeypatch.setattr(journal, "tunnel_refusal", lambda *_: "")
    async with two(Forgetful) as nodes:
        whole = await undisturbed(nodes, request)
        cuts = [i + 1 for i, message in enumerate(whole.messages) if message.token_ids]
        for cut in cuts:
            assert (await go_on(nodes, request, whole.messages[:cut])).reason == "RESUME_INEXACT"


class Seeing(SimEngine):
    """Its application fetches a picture that changes."""

    fetched = 0

    async def count_prompt(self, path: str, body: dict[str, Any]) -> Sequence[int]:
        return [8]

    def asgi_app(self) -> ASGIApp:
        return self._look

    async def _look(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        Seeing.fetched += 1
        prompt = Prompt(await self.tokenize(f"a picture of {Seeing.fetched}"))
        call = GenerateCall("p", prompt, Sampling(body["max_tokens"], ignore_eos=True))
        call.past = past.get()
        async with aclosing(self.generate(call)) as deltas:
            await _events(send, [{"choices": [{"text": delta.text}]} async for delta in deltas])


PICTURE = resumes.web(
    CHAT,
    messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://camera/now.png"}}]}],
    max_tokens=6,
)


async def test_a_picture_that_is_fetched_again_may_be_another_one(granted: None) -> None:
    async with two(Seeing) as nodes:
        whole = await undisturbed(nodes, PICTURE)
        told = next(i for i, message in enumerate(whole.messages) if message.token_ids)
        assert (await go_on(nodes, PICTURE, whole.messages[: told + 1])).reason == "RESUME_INEXACT"


async def test_input_that_is_not_text_is_refused() -> None:
    assert await refusal(PICTURE, Seeing) == "0; input that is not text"


class Calling(SimEngine):
    """Its application says a word, and then calls a tool, whose call it names by chance."""

    def asgi_app(self) -> ASGIApp:
        return self._call

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        prompt = Prompt(await self.tokenize("call"))
        call = GenerateCall("t", prompt, Sampling(body["max_tokens"], ignore_eos=True))
        call.past = past.get()
        await _start(send)
        name = f"call-{uuid.uuid4()}"
        said = 0
        async with aclosing(self.generate(call)) as deltas:
            async for delta in deltas:
                said += 1
                value: dict[str, Any] = {"content": delta.text}
                if said > 2:
                    value = {"tool_calls": [{"index": 0, "function": {"arguments": delta.text}}]}
                if said == 3:
                    value["tool_calls"][0]["id"] = name
                await _event(send, {"choices": [{"delta": value}]})
        await _end(send)


TOOLS = resumes.web(
    CHAT,
    messages=[{"role": "user", "content": "call"}],
    max_tokens=6,
    tools=[{"type": "function", "function": {"name": "f"}}],
)


async def test_a_tool_call_that_has_begun_would_get_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_TOOL_CALL", b"\0 never")
    async with two(Calling) as nodes:
        whole = await undisturbed(nodes, TOOLS)
        begun = next(i for i, message in enumerate(whole.messages) if b"call-" in message.body)
        before, after = whole.messages[:begun], whole.messages[: begun + 1]
        assert (await go_on(nodes, TOOLS, after)).reason == "RESUME_INEXACT"
        rest = await go_on(nodes, TOOLS, before)
        assert not rest.code and len(before) and b"".join(m.body for m in before) + rest.body != whole.body
        assert rest.tokens == whole.tokens[2:], "before it had a name it could go on, under another one"


async def test_a_stream_cannot_go_on_from_the_message_in_which_a_tool_call_begins() -> None:
    async with two(Calling) as nodes:
        whole = await undisturbed(nodes, TOOLS)
        (pinned,) = [i for i, message in enumerate(whole.messages) if message.pinned]
        assert whole.messages[pinned].pinned == "a tool call has begun"
        assert b"call-" in whole.messages[pinned].body


async def _start(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _event(send: Send, value: Any) -> None:
    data = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _events(send: Send, values: Sequence[Any]) -> None:
    await _start(send)
    for value in values:
        await _event(send, value)
    await _end(send)
