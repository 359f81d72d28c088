"""Values that make no sense: each is refused by its path, before anything reaches a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import SIM, template
from tests.support.chart_features import GATEWAY, MODEL, models

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "fractional GPU": (models(gpus=0.5), "models.*gpus"),
    "fractional GPU as a resource": (models(resources={"limits": {"nvidia.com/gpu": 0.5}}), "nvidia.com"),
    "unknown key": ({"router": {"replica": 1}}, "replica"),
    "unknown setting": (models(config={"max_seq": 1}), "max_seq"),
    "setting of the wrong type": (models(config={"max_seq_len": "long"}), "max_seq_len"),
    "negative grace": ({"router": {"graceMarginSeconds": -1}}, "graceMarginSeconds"),
    "model without a source": ({"models": [{"name": "a"}]}, "source"),
    "two sources": (models(source={"hub": "a/b", "claim": "c"}), "source"),
    "latest": ({"router": {"image": {"tag": "latest"}}}, "tag"),
    "scale to zero": (models(autoscaling={"enabled": True, "minReplicas": 0}), "minReplicas"),
    "bad name": ({"models": [{"name": "Q_1", "source": {"sim": True}}]}, "name"),
    "TLS without a secret": ({"tls": {"enabled": True}}, "tls: is enabled and has no certificate"),
    "node TLS without a secret": ({"nodeTls": {"enabled": True}}, "nodeTls.existingSecret"),
    "no secret": ({"auth": {"existingSecret": ""}}, "auth.existingSecret: names no secret"),
    "two stores": ({"redis": {"external": {"url": "redis://a:1"}}}, "redis: bundled.enabled and external are both set"),
    "no store": ({"redis": {"bundled": {"enabled": False}}}, "discovery is redis and there is none"),
    "two discovery sources": (
        {"discovery": "dns", "consul": {"address": "http://c:8500"}},
        "consul.address: is set, and discovery is dns",
    ),
    "a store beside DNS": ({"discovery": "dns", "redis": {"external": {"url": "redis://a:1"}}}, "keep one source"),
    "Consul without an agent": ({"discovery": "consul"}, "no agent is named"),
    "Consul behind a policy": (
        {"discovery": "consul", "consul": {"address": "http://c:1"}, "networkPolicy": {"enabled": True}},
        "networkPolicy.consul: names no peer",
    ),
    "unknown discovery": ({"discovery": "etcd"}, "discovery"),
    "same name twice": ({"models": [MODEL, MODEL]}, r"models\[1\].name: sim stands there twice"),
    "claims of a Deployment": (models(kind="Deployment", cache={"persistent": True}), "cannot have a claim each"),
    "KEDA without Prometheus": (models(autoscaling={"enabled": True}), "prometheusAddress"),
    "a load without keys": ({"loadtest": {"enabled": True}}, "loadtest.apiKeys.existingSecret"),
    "a load at no address": ({"loadtest": {"enabled": True, "host": "router:8000"}}, "loadtest.*host"),
    "GPUs beside gpus": (models(resources={"limits": {"nvidia.com/gpu": 1}}), "set gpus: 1"),
    "a share of a GPU's slice": (models(resources={"limits": {"nvidia.com/mig-1g.5gb": 0.5}}), "mig-1g.5gb"),
    "the name of another part": ({"models": [{**MODEL, "name": "router"}]}, r"models\[0\].name: router is the name"),
    "a name too long for its pods": (
        {"fullnameOverride": "a" * 30, "models": [{**MODEL, "name": "b" * 30}]},
        r"models\[0\].name: .* has 61 characters",
    ),
    "TLS that is not on": ({"tls": {"existingSecret": "cert"}}, "tls: has settings and is not enabled"),
    "node TLS by an unknown issuer": (
        {"nodeTls": {"enabled": True, "certManager": {"enabled": True}}},
        "nodeTls.certManager.issuerRef.name",
    ),
    "one name for two kinds of route": (
        {"router": {"gateway": {**GATEWAY, "grpcHostnames": ["a.b"]}}},
        "router.gateway.grpcHostnames: a.b stands in hostnames too",
    ),
    "one name for two backends": (
        {"router": {"ingress": {"enabled": True, "host": "a.b", "grpcHost": "a.b"}}},
        "router.ingress: host and grpcHost are the same",
    ),
    "a route to no gateway": ({"router": {"gateway": {"enabled": True}}}, "parentRefs"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused_by_path(helm: Path, helm3: Path, tmp_path: Path, name: str) -> None:
    values, message = BAD[name]
    for binary in (helm, helm3):
        result = template(binary, tmp_path, SIM, values)
        assert result.returncode != 0
        assert re.search(message, result.stderr.replace("/", ".")) or re.search(message, result.stderr), result.stderr
