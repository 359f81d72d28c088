"""Nodes, pools and names."""

from __future__ import annotations

import pytest

from router_node.dispatch import Dispatcher, DispatchSettings, NodeSpec, Report
from router_node.dispatch.registry import REMEMBERED
from shared.errors import Code, LayaError
from tests.unit.dispatch.support import MODEL, Bed


def test_alias_leads_to_the_model_and_a_model_s_name_goes_before_an_alias() -> None:
    bed = Bed()
    a = bed.node("a", model="big", aliases=("best", "small"))
    b = bed.node("b", model="small")
    assert bed.reserve(model="best").node is a
    assert bed.reserve(model="big").node is a
    assert bed.reserve(model="small").node is b


def test_name_with_two_revisions_takes_the_one_with_most_ready_nodes() -> None:
    bed = Bed()
    bed.node("a", revision="r1")
    bed.node("b", revision="r2")
    assert [pool.revision for pool in bed.dispatcher.resolve(MODEL)] == ["r1", "r2"]
    bed.node("c", revision="r2")
    assert [pool.revision for pool in bed.dispatcher.resolve(MODEL)] == ["r2", "r1"]
    bed.dispatcher.set_link("b", False)
    bed.dispatcher.set_link("c", False)
    assert bed.dispatcher.resolve(MODEL)[0].revision == "r1"
    assert bed.reserve().node.id == "a"


def test_models_lists_what_can_be_asked_for() -> None:
    bed = Bed()
    bed.node("a", model="m2", max_seq_len=100, aliases=("x",), revision="7")
    bed.node("b", model="m2", max_seq_len=200, aliases=("y",), revision="7")
    bed.node("c", model="m1")
    bed.dispatcher.set_link("b", False)
    assert [tuple(model) for model in bed.dispatcher.models()] == [
        ("m1", (), "", 0, 1, 1),
        ("m2", ("x", "y"), "7", 200, 1, 2),
    ]


def test_unknown_model_names_those_there_are() -> None:
    bed = Bed()
    bed.node("a", model="one", aliases=("uno",))
    with pytest.raises(LayaError, match="one, uno") as caught:
        bed.ask(model="two")
    assert (caught.value.code, caught.value.reason) == (Code.NOT_FOUND, "MODEL_NOT_FOUND")
    with pytest.raises(LayaError, match="No model is served") as caught:
        Bed().ask()
    assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "NO_NODE")  # one may join in a moment


def test_a_model_whose_nodes_left_is_unavailable_for_a_while_and_then_unknown() -> None:
    bed = Bed()
    bed.node("a")
    bed.dispatcher.remove_node("a")
    with pytest.raises(LayaError) as caught:
        bed.ask()
    assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "NO_NODE")
    assert bed.dispatcher.models() == []
    bed.clock.now += REMEMBERED + 1
    bed.node("b", model="other")
    with pytest.raises(LayaError) as caught:
        bed.ask()
    assert caught.value.code == Code.NOT_FOUND


def test_models_without_nodes_are_bounded() -> None:
    bed = Bed()
    for i in range(600):
        bed.node("a", model=f"m{i}")
        bed.dispatcher.remove_node("a")
    assert len(bed.dispatcher._registry._pools) <= 300


def test_same_node_described_again_keeps_its_reservations_and_reports() -> None:
    bed = Bed()
    node = bed.node("a")
    reservation = bed.reserve()
    again = bed.dispatcher.add_node("a", "elsewhere:2", NodeSpec(MODEL, kv_capacity_tokens=16_384))
    assert again is node and node.address == "elsewhere:2" and node.reserved_tokens == reservation.tokens
    assert node.state == "ready"


def test_node_that_serves_another_model_now_changes_its_pool() -> None:
    bed = Bed()
    node = bed.node("a")
    bed.reserve()
    bed.dispatcher.add_node("a", "a:1", NodeSpec("new", kv_block_tokens=32))
    assert bed.reserve(model="new").node is node
    assert node.block == 32
    with pytest.raises(LayaError):
        bed.ask()


def test_a_node_that_goes_and_comes_keeps_the_reservations_of_its_open_streams() -> None:
    bed = Bed()
    bed.node("a")
    reservation = bed.reserve()
    bed.dispatcher.remove_node("a")
    assert bed.dispatcher.reserved_tokens == reservation.tokens
    back = bed.dispatcher.add_node("a", "a:1", NodeSpec(MODEL))
    assert back is reservation.node and back.reserved_tokens == reservation.tokens
    assert back.state == "dark"
    bed.dispatcher.remove_node("a")
    reservation.end()
    assert bed.dispatcher.reserved_tokens == 0
    assert bed.dispatcher.add_node("a", "a:1", NodeSpec(MODEL)) is not back


def test_slots_are_used_again_and_removal_of_nobody_is_nothing() -> None:
    bed = Bed()
    for i in range(50):
        node = bed.node(f"n{i}")
        assert node.slot == 0
        bed.dispatcher.remove_node(f"n{i}")
        bed.dispatcher.remove_node(f"n{i}")
    assert bed.dispatcher.nodes() == [] and not bed.dispatcher.ready
    assert len(bed.dispatcher._registry.owners) == 0


def fresh(boot: str) -> Report:
    return Report(sequence=1, boot_id=boot, kv_capacity_tokens=1600, headroom_tokens=1600, ready=True, full=True)


def test_a_node_that_started_anew_is_not_ready_by_what_the_old_process_said() -> None:
    d = Dispatcher("w", DispatchSettings(), lambda: 0.0)
    spec = NodeSpec("m", kv_capacity_tokens=1600, max_seq_len=1000, boot_id="b1")
    d.add_node("n", "a:1", spec)
    d.set_link("n", True)
    d.on_watch_reset("n")
    d.on_report("n", fresh("b1"))
    node = d.node("n")
    assert node is not None and node.state == "ready"
    d.add_node("n", "a:1", NodeSpec("m", kv_capacity_tokens=1600, max_seq_len=1000, boot_id="b2"))
    assert node.state == "starting"
    d.on_watch_reset("n")
    d.on_report("n", fresh("b2"))
    assert node.state == "ready"
