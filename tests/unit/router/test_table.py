"""Clients and operators see the models that can be asked for, and the nodes behind them."""

from __future__ import annotations

import json

from router_node.dispatch import Dispatcher, DispatchSettings, NodeSpec, Report
from router_node.routes.live import LiveTable
from router_node.routes.rules import parse
from router_node.routes.table import RouteTable
from shared.pb.laya.v1 import inference_pb2


def add(dispatcher: Dispatcher, node_id: str, model: str, *, ready: bool = True, **more: object) -> None:
    fields: dict[str, object] = {"max_seq_len": 4096, "kv_capacity_tokens": 65_536, "boot_id": "b1", "engine": "sim"}
    dispatcher.add_node(node_id, f"{node_id}:1", NodeSpec(model, **(fields | more)))  # type: ignore[arg-type]
    dispatcher.set_link(node_id, True)
    dispatcher.on_watch_reset(node_id)
    dispatcher.on_report(
        node_id,
        Report(
            sequence=1,
            boot_id="b1",
            kv_capacity_tokens=65_536,
            headroom_tokens=65_536,
            full=True,
            ready=ready,
        ),
    )


def table() -> tuple[Dispatcher, RouteTable]:
    dispatcher = Dispatcher("w0", DispatchSettings(), lambda: 0.0)
    return dispatcher, RouteTable(dispatcher, clock=lambda: 1000.5)


def test_an_empty_cluster_has_empty_lists() -> None:
    _, routes = table()
    assert routes.models() == [] and routes.routes() == []
    assert json.loads(routes.models_json()) == {"object": "list", "data": []}
    assert routes.list_models_grpc() == b""


def test_models_are_listed_once_with_their_nodes_counted() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n2", "b", aliases=("bee",), quantization="awq", revision="r1")
    add(dispatcher, "n1", "b", aliases=("bee", "bea"), quantization="awq", revision="r1")
    add(dispatcher, "n3", "a")
    first, second = routes.models()
    assert (first.name, first.nodes, second.name, second.nodes) == ("a", 1, "b", 2)
    assert sorted(second.aliases) == ["bea", "bee"]
    assert (second.quantization, second.revision, second.engine, second.max_seq_len) == ("awq", "r1", "sim", 4096)


def test_a_pool_promises_its_shortest_context() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n1", "m", max_seq_len=8192)
    add(dispatcher, "n2", "m", max_seq_len=2048)
    add(dispatcher, "n3", "m", max_seq_len=0)
    assert routes.models()[0].max_seq_len == 2048


def test_a_model_that_no_node_serves_now_is_a_route_but_not_listed() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n1", "m", ready=False)
    assert routes.models() == []
    (route,) = routes.routes()
    assert (route.name, list(route.node_ids)) == ("m", ["n1"])


def test_openai_clients_see_aliases_and_the_context_length() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n1", "m", aliases=("em",))
    cards = json.loads(routes.models_json())["data"]
    assert [card["id"] for card in cards] == ["m", "em"]
    assert {card["root"] for card in cards} == {"m"}
    assert cards[0] == {
        "id": "m",
        "object": "model",
        "created": 1000,
        "owned_by": "laya",
        "root": "m",
        "parent": None,
        "max_model_len": 4096,
    }


def test_lists_are_kept_until_a_node_changes() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n1", "m")
    grpc_list, http_list = routes.list_models_grpc(), routes.models_json()
    assert routes.list_models_grpc() is grpc_list and routes.models_json() is http_list
    add(dispatcher, "n2", "other")
    routes.invalidate()
    answer = inference_pb2.ListModelsResponse.FromString(routes.list_models_grpc())
    assert [model.name for model in answer.models] == ["m", "other"]
    assert [card["id"] for card in json.loads(routes.models_json())["data"]] == ["m", "other"]


def test_names_that_only_rules_know_are_listed_as_aliases_of_what_they_lead_to() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n1", "large")
    trees = [
        {"name": "r1", "when": {"model": ["auto", "large"]}, "targets": "gone", "fallback": "large@"},
        {"name": "r2", "when": {"model": "nowhere"}, "targets": "gone"},
        {"name": "r3", "when": {"model": {"prefix": "any-"}}, "targets": "large"},
    ]
    routes.swap(LiveTable(1, {rule.name: rule for rule in map(parse, trees)}, {}))
    (only,) = routes.models()
    assert (only.name, list(only.aliases)) == ("large", ["auto"])
    assert [card["id"] for card in json.loads(routes.models_json())["data"]] == ["large", "auto"]
    routes.swap(None)
    assert list(routes.models()[0].aliases) == []


def test_a_model_whose_node_rests_is_still_listed() -> None:
    dispatcher, routes = table()
    add(dispatcher, "n1", "m")
    dispatcher.nodes()[0].health.ejected = True
    assert [model.name for model in routes.models()] == ["m"]
