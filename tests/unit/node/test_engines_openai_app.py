"""The application that engines of our own share: their name, their refusals, before anything is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from inference_node.engines.base import BadRequest, GenerateCall
from inference_node.engines.openai_app import LocalOpenAI
from inference_node.engines.sim import SimEngine
from shared.config.schema import InferenceConfig, SimConfig
from tests.unit.node.asgi import call


class Careful(LocalOpenAI):
    """An application with an engine that refuses late, and a key of its own that it must not leave unheard."""

    def check_body(self, body: dict[str, Any]) -> None:
        if body.get("odd"):
            raise BadRequest("odd is not taken", "odd")

    async def prepare(self, call: GenerateCall) -> None:
        if call.sampling.seed == 13:
            raise BadRequest("13 is no seed", "seed")


@pytest.fixture
async def app() -> AsyncIterator[Careful]:
    engine = SimEngine(InferenceConfig(engine="sim", model="m", sim=SimConfig(prefill_tokens_per_second=1e7)))
    engine.name = "mine"
    await engine.start()
    yield Careful(engine)
    await engine.stop()


async def test_it_speaks_in_its_engines_name(app: Careful) -> None:
    answer = await call(app, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert answer.headers[b"x-laya-engine"] == b"mine" and answer.json["system_fingerprint"] == "mine"
    missing = await call(app, "POST", "/v1/nothing", {})
    assert (missing.status, "the mine engine has no /v1/nothing" in missing.json["error"]["message"]) == (404, True)
    models = await call(app, "GET", "/v1/models")
    assert models.json["data"][0]["owned_by"] == "laya-mine"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("more", "param"), [({"odd": 1}, "odd"), ({"seed": 13}, "seed")])
async def test_a_refusal_is_an_error_and_never_a_stream(
    app: Careful, stream: bool, more: dict[str, Any], param: str
) -> None:
    answer = await call(app, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": stream, **more})
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
