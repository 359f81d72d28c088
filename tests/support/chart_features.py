"""The Helm chart's features, one by one: values that turn each on."""

from __future__ import annotations

from typing import Any

from tests.support.chart import SIM

MODEL = SIM["models"][0]  # type: ignore[index]
GATEWAY = {"enabled": True, "parentRefs": [{"name": "gw"}], "hostnames": ["a.b"]}


def models(**more: Any) -> dict[str, Any]:
    """Values with the one model, and more keys for it."""
    return {"models": [{**MODEL, **more}]}


# Each feature on or off, over one simulated model.
FEATURES: dict[str, dict[str, Any]] = {
    "insecure": {"auth": {"existingSecret": ""}, "insecure": True},
    "no-models": {"models": []},
    "tls": {"tls": {"enabled": True, "existingSecret": "cert", "mutual": True}},
    "cert-manager": {
        "tls": {"enabled": True, "certManager": {"enabled": True, "issuerRef": {"name": "le"}, "dnsNames": ["a.b"]}}
    },
    "node-cert-manager": {
        "nodeTls": {"enabled": True, "mutual": True, "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    "node-tls": {"nodeTls": {"enabled": True, "existingSecret": "nodes"}},
    "node-mtls": {
        "nodeTls": {"enabled": True, "existingSecret": "nodes", "mutual": True},
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    "external-store": {
        "redis": {"bundled": {"enabled": False}, "external": {"url": "rediss+sentinel://a:26379,b:26379/main"}}
    },
    "external-store-secret": {"redis": {"bundled": {"enabled": False}, "external": {"existingSecret": "store"}}},
    "store-without-volume": {"redis": {"bundled": {"persistence": {"enabled": False}}}},
    "dns": {"discovery": "dns"},
    "dns-node-tls": {"discovery": "dns", "nodeTls": {"enabled": True, "existingSecret": "nodes"}},
    "dns-insecure": {"discovery": "dns", "auth": {"existingSecret": ""}, "insecure": True},
    "assigned-user": {"assignedUser": True, "tls": {"enabled": True, "existingSecret": "cert"}},
    "consul": {"discovery": "consul", "consul": {"address": "http://c:8500", "existingSecret": "consul"}},
    "private-authority": {
        "ca": {"existingSecret": "ours"},
        "redis": {"bundled": {"enabled": False}, "external": {"url": "rediss://a:6379/0?db=1"}},
        "tracing": {"config": {"endpoint": "https://otel:4318"}},
    },
    "consul-policy": {
        "discovery": "consul",
        "consul": {"address": "https://c:8501"},
        "ca": {"existingSecret": "ours"},
        "networkPolicy": {"enabled": True, "consul": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "tracing": {"tracing": {"config": {"endpoint": "http://otel:4318", "sample_ratio": 0.1}, "headersSecret": "otel"}},
    "router-hpa": {"router": {"autoscaling": {"enabled": True, "targetRequestsInFlight": 500}}},
    "ingress": {"router": {"ingress": {"enabled": True, "host": "a.b", "grpcHost": "g.b", "tlsSecretName": "t"}}},
    "gateway": {"router": {"gateway": GATEWAY}},
    "gateway-two-names": {
        "router": {"gateway": {**GATEWAY, "grpcHostnames": ["g.b"]}}
    },
    "load-balancer": {"router": {"service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]}}},
    "a-number-for-a-name": models(name="70"),
    "no-budgets": {
        "router": {"podDisruptionBudget": {"enabled": False}},
        "nodeDefaults": {"podDisruptionBudget": {"enabled": False}},
    },
    "deployment": models(kind="Deployment"),
    "hub": models(source={"hub": "a/b", "revision": "main"}, hfToken={"existingSecret": "hf"}, gpus=1),
    "download-first": models(source={"hub": "a/b", "downloadFirst": True}, hfToken={"existingSecret": "hf"}),
    "claim": models(source={"claim": "models", "path": "a"}, gpus=2, runtimeClassName="nvidia"),
    "host-path": models(source={"hostPath": "/srv", "path": "a"}, cache={"hostPath": "/var/cache/laya"}),
    "persistent-cache": models(cache={"persistent": True, "storageClassName": "fast"}),
    "keda": models(autoscaling={"enabled": True, "prometheusAddress": "http://p:9090"}),
    "node-hpa": models(autoscaling={"enabled": True, "kind": "hpa"}),
    "monitoring": {
        "metrics": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True, "annotations": {"folder": "laya"}},
        }
    },
    "network-policy": {"networkPolicy": {"enabled": True, "clients": [{"podSelector": {}}]}},
    "loadtest": {
        "loadtest": {"enabled": True, "apiKeys": {"existingSecret": "load"}, "ca": {"existingSecret": "ca"}},
        "tls": {"enabled": True, "existingSecret": "cert"},
        "networkPolicy": {"enabled": True, "clients": [{"podSelector": {}}]},
    },
    "placement": {
        "router": {
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "x"},
            "extraEnv": [{"name": "A", "value": "b"}],
        },
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "high",
    },
}  # fmt: skip
