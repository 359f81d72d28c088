"""What the node's parts see of it."""

from __future__ import annotations

import asyncio

import pytest

from inference_node.engines.base import EngineError
from inference_node.state import NodeState
from shared.errors import Code, LayaError
from tests.unit.node.harness import config
from tests.unit.node.test_report import serving


async def test_it_is_ready_between_the_engines_start_and_a_drain_or_failure():
    state = NodeState(config(), "n")
    told = []
    state.on_change.append(lambda: told.append(state.ready))
    assert not state.ready
    with pytest.raises(LayaError, match="still loading"):
        _ = state.serving
    admission = serving(state, asyncio.get_running_loop().time)
    state.drain()
    assert admission.closed_reason
    state.drain(undo=True)
    state.fail(EngineError("broken", fatal=True))
    state.fail(EngineError("again", fatal=True))
    assert told == [True, False, True, False]
    assert state.failure == "broken" and admission.closed_reason == "the engine has failed"


async def test_a_drain_before_the_start_holds():
    state = NodeState(config(), "n")
    state.drain()
    assert serving(state, asyncio.get_running_loop().time).closed_reason
    assert not state.ready


async def test_models_go_by_name_or_alias():
    state = NodeState(config(aliases=["b"]), "n")
    assert [state.check_model(n) for n in ("", "demo", "b")] == ["demo"] * 3
    with pytest.raises(LayaError, match="demo, b") as e:
        state.check_model("x" * 10_000)
    assert e.value.code == Code.NOT_FOUND and len(e.value.message) < 300


async def test_only_a_fatal_engine_error_ends_the_node():
    state = NodeState(config(), "n")
    assert state.engine_error(EngineError("small")).code == Code.INTERNAL
    assert not state.failed.is_set()
    state.engine_error(EngineError("large", fatal=True))
    assert state.failed.is_set()
