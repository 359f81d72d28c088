"""The cluster token."""

from __future__ import annotations

import pytest

from inference_node.auth import ClusterAuth
from shared.errors import Code, LayaError


def test_without_a_token_everybody_is_let_in():
    auth = ClusterAuth("")
    assert not auth.required
    auth.check({})


@pytest.mark.parametrize(
    "fields",
    [
        {b"laya-cluster-token": b"s3cret"},
        {b"authorization": b"Bearer s3cret"},
        {b"authorization": b"bearer  s3cret "},
    ],
)
def test_the_right_token_is_let_in(fields):
    ClusterAuth("s3cret").check(fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "needs the cluster token"),
        ({b"authorization": b"Basic s3cret"}, "needs the cluster token"),
        ({b"laya-cluster-token": b""}, "is wrong"),
        ({b"laya-cluster-token": b"s3cre"}, "is wrong"),
        ({b"laya-cluster-token": b"other", b"authorization": b"Bearer s3cret"}, "is wrong"),
        ({b"authorization": b"Bearer \xff"}, "is wrong"),
    ],
)
def test_anything_else_is_unauthenticated_and_never_shows_the_token(fields, words):
    with pytest.raises(LayaError, match=words) as e:
        ClusterAuth("s3cret").check(fields)
    assert (e.value.code, e.value.reason) == (Code.UNAUTHENTICATED, "CLUSTER_TOKEN_INVALID")
    assert "s3cret" not in str(e.value)
