"""Which methods go to nodes, and the cap on what metadata may ask for."""

from __future__ import annotations

import pytest

from router_node.relay.fields import Fields
from router_node.relay.methods import LIST_MODELS_PATH, METHODS, TUNNEL_PATH, check_caps
from router_node.relay.settings import RelaySettings
from shared.errors import LayaError
from shared.pb.laya.v1 import inference_pb2, openai_pb2


def test_every_method_of_the_two_services_but_the_list_of_models_goes_to_nodes():
    services = [
        inference_pb2.DESCRIPTOR.services_by_name["Inference"],
        openai_pb2.DESCRIPTOR.services_by_name["OpenAI"],
    ]
    paths = {f"/{service.full_name}/{method.name}".encode() for service in services for method in service.methods}
    assert paths - {LIST_MODELS_PATH} == set(METHODS)
    assert METHODS[TUNNEL_PATH].label == "OpenAI.Call"


def test_metadata_may_ask_for_n_times_max_tokens_and_no_more():
    settings, fields = RelaySettings(max_n=2, max_max_tokens=100), Fields()
    fields.max_new_tokens = 200
    check_caps(fields, settings)
    fields.max_new_tokens = 201
    with pytest.raises(LayaError, match="at most 200"):
        check_caps(fields, settings)
