"""Names, binds and flags."""

from __future__ import annotations

import pytest

from inference_node.config import check_bind, model_name, model_names, parse
from shared.config.schema import Config, ConfigError, InferenceConfig, ServerConfig


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (InferenceConfig(model="/models/qwen-awq/"), "qwen-awq"),
        (InferenceConfig(model="org/name@v1"), "name"),
        (InferenceConfig(model="/m/x.gguf"), "x"),
        (InferenceConfig(model="org/name", served_model_name="mine"), "mine"),
        (InferenceConfig(engine="sim"), "sim"),
    ],
)
def test_the_name_clients_ask_for(config, name):
    assert model_name(config) == name


def test_aliases_follow_without_repeats():
    assert model_names(InferenceConfig(model="a", aliases=["b", "a", "b"])) == ("a", "b")


def test_a_wide_bind_needs_a_token_or_insecure():
    wide = InferenceConfig(host="0.0.0.0")
    with pytest.raises(ConfigError, match=r"inference\.host: 0\.0\.0\.0 .*server\.cluster_token"):
        check_bind(Config(inference=wide))
    check_bind(Config(inference=wide, server=ServerConfig(cluster_token="x")))
    check_bind(Config(inference=wide, server=ServerConfig(insecure=True)))
    check_bind(Config())


def test_flags_override_their_keys_and_absent_ones_do_not():
    args, overrides = parse(["--engine", "sim", "--port", "0", "--insecure", "--ready-fd", "3", "--config", "f"])
    assert (args.ready_fd, args.config) == (3, "f")
    given = {k: v for k, v in overrides.items() if v is not None}
    assert given == {"inference.engine": "sim", "inference.port": 0, "server.insecure": True}
