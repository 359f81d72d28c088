"""The plain data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import NodeSpec, NodeState, Report
from shared.pb.laya.v1 import node_pb2


def test_report_mirrors_the_message_field_by_field() -> None:
    names = {field.name for field in node_pb2.WatchResponse.DESCRIPTOR.fields}
    assert {name for name in dir(Report(1)) if not name.startswith("_")} == names


@given(st.integers(0, 10_000_000), st.integers(1, 256))
def test_need_is_whole_blocks_and_no_more_than_necessary(tokens: int, block: int) -> None:
    need = NodeState("n", "", NodeSpec("m", kv_block_tokens=block), 0, 1).need(tokens)
    assert need % block == 0 and tokens <= need < tokens + block


def test_state_names_what_keeps_a_node_from_serving() -> None:
    node = NodeState("n", "", NodeSpec("m"), 0, 1)
    assert node.state == "dark"
    node.link_up = True
    assert node.state == "starting"
    node.ready, node.reported_at = True, 1.0
    assert node.state == "ready"
    node.closed_reason = "memory"
    assert node.state == "closed"
    node.draining = True
    assert node.state == "draining"


def test_unknown_sizes_of_a_node_are_never_negative() -> None:
    spec = NodeSpec(
        "m", max_seq_len=-1, kv_capacity_tokens=-5, kv_block_tokens=0, max_num_seqs=-2, default_max_tokens=0
    )
    assert (spec.max_seq_len, spec.kv_capacity_tokens, spec.max_num_seqs) == (0, 0, 0)
    assert (spec.kv_block_tokens, spec.default_max_tokens) == (1, 1)
