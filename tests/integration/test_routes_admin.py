"""Rules of a running router: its file, its snapshot, its workers, Admin and the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml

from shared.pb.laya.v1 import admin_pb2, inference_pb2
from tests.support.grpc_errors import reason
from tests.support.ports import eventually
from tests.support.router import Router, RouterWorld
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hybrid-routes.yaml"


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with RouterWorld() as world:
        yield world


async def laya(router: Router, *words: str, text: str = "") -> tuple[int, str, str]:
    """Exit code, output and errors of a ``laya routes`` command."""
    command = [sys.executable, "-m", "shared.cli.main", "routes", *words, "--admin", router.private]
    done = await asyncio.to_thread(
        subprocess.run, command, input=text, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout, done.stderr


async def explained(router: Router, **asked: Any) -> tuple[str, list[str]]:
    asked.setdefault("model", "auto")
    answer = await router.admin.Explain(admin_pb2.ExplainRequest(**asked), timeout=5)
    return answer.route.name, list(answer.route.pools)


def config(path: Path, **router: Any) -> str:
    file = path / "laya.yaml"
    file.write_text(yaml.safe_dump({"router": router}))
    return str(file)


async def test_the_hybrid_example_sends_each_kind_where_it_says(world: RouterWorld, tmp_path: Path) -> None:
    small, large = await world.node("s", "small"), await world.node("l", "large")
    flags = ["--node", small.address, "--node", large.address]
    file = config(tmp_path, routes={"file": str(EXAMPLE)})
    router = await (await world.router("--config", file, *flags)).ready(2)
    assert await explained(router, prompt="Extract the dates as JSON: 3 May") == (
        "hybrid-extraction",
        ["small", "large"],
    )
    assert await explained(router, prompt="def f(x): return x") == ("hybrid-code", ["large", "small"])
    assert await explained(router, prompt_tokens=4000) == ("hybrid-long", ["large", "small"])
    assert await explained(router, structured=True, prompt="a form") == ("hybrid-structured", ["small", "large"])
    assert (await explained(router, prompt="How are you?"))[0] == "hybrid-rest"
    assert (await explained(router, model="small"))[0] == ""
    for chunk in ("x", ""):
        large.chunks.put_nowait(chunk)
    request = inference_pb2.GenerateRequest(model="auto", text="Please refactor this function")
    call = router.inference.Generate(request, timeout=10)
    assert dict(await call.initial_metadata())["laya-route"] == "hybrid-code@1"
    async for _ in call:
        pass
    (seen,) = large.called_with
    assert seen["laya-rewrite"] == "large"
    await large.say(headroom_tokens=0)

    async def small_takes_it() -> bool:
        small.chunks.put_nowait("x")
        large.chunks.put_nowait("x")
        call = router.inference.Generate(request, timeout=10)
        node = dict(await call.initial_metadata())["laya-node"]
        call.cancel()
        return str(node) == "s"

    await eventually(small_takes_it, "the large one is full")


async def test_an_operator_changes_explains_compares_and_goes_back(world: RouterWorld, tmp_path: Path) -> None:
    node = await world.node("n1", "m")
    router = await (await world.router("--node", node.address)).ready()
    assert (await laya(router, "list"))[2].endswith("every request goes by its model's name\n")
    code, out, err = await laya(router, "put", str(EXAMPLE), "--note", "first")
    assert code == 0 and "+- name: hybrid-code" in out and "version 1" in err
    assert "no node serves pool 'large' now" in err and "content pattern" in err
    code, out, _ = await laya(router, "list", "--json")
    listed = json.loads(out)
    assert listed["version"] == 1 and listed["rules"][0]["name"] == "hybrid-code"
    assert "hybrid-rest" in (await laya(router, "list"))[1]

    code, out, _ = await laya(router, "get", "hybrid-long")
    changed = out.replace("1024", "2048")
    code, out, err = await laya(router, "put", "-", "--dry-run", text=changed)
    assert code == 0 and "-      min: 1024" in out and "would change version 1" in err
    code, _, err = await laya(router, "put", "-", "--expect", "1", "--author", "eve", text=changed)
    assert code == 0 and "version 2" in err
    code, _, err = await laya(router, "put", "-", "--expect", "1", text=changed)
    assert code == 5 and "at version 2 by now" in err
    code, _, err = await laya(router, "put", "-", text=changed)
    assert code == 0 and "so already" in err
    code, out, _ = await laya(router, "diff", "1")
    assert code == 1 and "+      min: 2048" in out
    code, out, _ = await laya(router, "diff", str(EXAMPLE))
    assert code == 1 and "+      min: 1024" in out

    code, _, err = await laya(router, "rm", "hybrid-code", "nothing-there")
    assert code == 5 and "'nothing-there' does not exist" in err
    assert (await laya(router, "rm", "hybrid-code"))[0] == 0
    code, out, _ = await laya(router, "explain", "auto", "--prompt", "def f(): pass", "--prompt-tokens", "3000")
    assert "rule hybrid-long (version 3): large > small" in out
    assert "nearly: hybrid-rest: 'hybrid-long' comes before it" in out
    code, out, _ = await laya(router, "history")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:]] == ["2", "3"]
    assert "eve" in out and "~hybrid-long" in out and "-hybrid-code" in out
    code, _, err = await laya(router, "rollback", "1")
    assert code == 0 and "version 4" in err
    assert (await laya(router, "diff", str(EXAMPLE)))[0] == 0
    assert (await laya(router, "rollback", "0"))[0] == 5
    assert await router.metric("laya_router_routes_version") == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: a, targets: x, fallback: {route: a}}", "in a circle"),
        ("- {name: a, targets: x, fallback: {route: b}}", "is no route"),
        ("- {name: a, targets: x}\n- {name: a, targets: y}", "is there twice"),
        ("- {name: a, targets: [{pool: x, weight: 0}]}", "every weight is 0"),
        ("- {name: a, targets: x, when: {model: {regex: '('}}}", "no RE2 pattern"),
        ("- {name: a, targets: x}\n- {name: b, targets: y, when: {model: z}}", "can never match"),
        ("nonsense", "a list of rules"),
    ],
)
async def test_what_cannot_be_is_refused_whole(world: RouterWorld, tmp_path: Path, text: str, said: str) -> None:
    router = await world.router()
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    code, _, err = await laya(router, "put", str(file))
    assert code in (2, 5) and said in err
    assert "Traceback" not in err
    answer = await router.admin.GetRoutes(admin_pb2.GetRoutesRequest(), timeout=5)
    assert not answer.rules_json


async def test_a_bad_file_stops_the_start_with_its_name(world: RouterWorld, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {name: a, targets: x, when: {modle: y}}")
    file = config(tmp_path, routes={"file": str(rules)})
    command = [sys.executable, "-m", "router_node.main", "--config", file, "--port", "0", "--admin-port", "0"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "rules.yaml" in done.stderr and "modle" in done.stderr


async def test_a_watched_file_is_taken_when_it_changes_and_kept_out_when_it_is_bad(
    world: RouterWorld, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {name: a, targets: x}")
    file = config(tmp_path, routes={"file": str(rules), "watch": True})
    router = await world.router("--config", file)
    rules.write_text("- {name: a, targets: yy}\n- {name: b, priority: -1, targets: x, when: {model: z}}")
    await router.metric_is("laya_router_routes_version", 2)
    rules.write_text("- {name: a, targets: []}")

    async def said() -> bool:
        answer = await router.admin.GetRoutes(admin_pb2.GetRoutesRequest(), timeout=5)
        return "name at least one pool" in answer.kept and len(answer.rules_json) == 2

    await eventually(said, "the fault is shown")
    history = await router.admin.RouteHistory(admin_pb2.RouteHistoryRequest(), timeout=5)
    assert [change.author for change in history.changes] == ["file rules.yaml"]


async def test_routers_share_the_table_and_start_from_the_snapshot_while_the_store_is_away(
    world: RouterWorld, tmp_path: Path, valkey: Valkey
) -> None:
    saved = tmp_path / "state" / "routes.json"
    file = config(tmp_path, routes={"snapshot_file": str(saved), "reconcile_interval": 0.5})
    one = await world.router("--config", file, "--redis", valkey.url)
    two = await world.router("--redis", valkey.url)
    code, _, err = await laya(one, "put", str(EXAMPLE))
    assert code == 0, err
    await two.metric_is("laya_router_routes_version", 1)
    await two.metric_is("laya_router_routes_rules", 5)

    async def on_disk() -> bool:
        return saved.exists() and json.loads(saved.read_text())["number"] == 1

    await eventually(on_disk, "the table is saved")
    world.routers.remove(one)
    await one.stop()
    valkey.stop()
    node = await world.node("s", "small")
    three = await (await world.router("--config", file, "--redis", valkey.url, "--node", node.address)).ready()
    assert (await explained(three, prompt_tokens=4000))[0] == "hybrid-long"
    status, _, body = await three.get("/readyz")
    assert status == 200 and b"begun with the snapshot file" in body
    assert await three.metric("laya_router_routes_store_up") == 0
    code, _, err = await laya(three, "rm", "hybrid-rest")
    assert code == 4 and "Nothing was changed" in err
    valkey.start()
    await three.metric_is("laya_router_routes_store_up", 1)
    await two.metric_is("laya_router_routes_store_up", 1)
    code, _, err = await laya(three, "rm", "hybrid-rest")
    assert code == 0, err
    await two.metric_is("laya_router_routes_rules", 4)
    assert (await three.get("/readyz"))[2] == b"ready\n"


async def test_workers_go_by_the_supervisors_rules(world: RouterWorld, valkey: Valkey) -> None:
    node = await world.node("n1", "m")
    router = await (await world.router("--node", node.address, "--workers", "2", "--redis", valkey.url)).ready()
    code, _, err = await laya(router, "put", "-", text="- {name: a, targets: m, when: {model: auto}}")
    assert code == 0, err
    request = inference_pb2.GenerateRequest(model="auto", text="hello")

    async def routed(tag: str) -> bool:
        for _ in range(6):
            for chunk in ("x", ""):
                node.chunks.put_nowait(chunk)
            stub = router.inference  # another connection, so perhaps another worker
            try:
                call = stub.Generate(request, timeout=5)
                if dict(await call.initial_metadata()).get("laya-route") != tag:
                    return False
            except grpc.aio.AioRpcError as error:
                assert reason(error) in ("MODEL_NOT_FOUND", "NO_NODE")
                return False
        return True

    await eventually(lambda: routed("a@1"), "every worker knows the rule")
    code, _, err = await laya(router, "put", "-", text="- {name: a, targets: m, when: {model: [auto, other]}}")
    assert code == 0, err
    await eventually(lambda: routed("a@2"), "every worker knows the change")
