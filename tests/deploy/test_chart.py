"""The Helm chart: what comes out is valid on every Kubernetes it is for, and right in what matters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shared.config import load
from tests.support.chart import (
    CHART,
    EXAMPLES,
    SIM,
    Manifest,
    config_of,
    containers,
    of_kind,
    one,
    pod_specs,
    render,
    workloads,
)
from tests.support.chart_features import FEATURES, models
from tests.support.fake_kubernetes import kubernetes
from tests.support.tools import run

KUBERNETES = ("1.29", "1.33", "1.37")
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "Certificate", "HTTPRoute", "GRPCRoute"}


@pytest.fixture(params=[*FEATURES, *(e.stem for e in EXAMPLES)])
def manifests(request: pytest.FixtureRequest, helm: Path, tmp_path: Path) -> list[Manifest]:
    """The chart with one feature on, or with the values of an example."""
    name = request.param
    if name in FEATURES:
        return render(helm, tmp_path, SIM, FEATURES[name])
    return render(helm, tmp_path, next(e for e in EXAMPLES if e.stem == name))


def test_every_manifest_is_valid_and_right(manifests: list[Manifest]) -> None:
    """All that holds whatever the values are."""
    for version in KUBERNETES:
        for m in manifests:
            if m["kind"] in CUSTOM:
                continue  # any other kind without a schema is an error
            kubernetes_validate.validate(m, version, strict=True)
    check_selectors(manifests)
    for name, spec in pod_specs(manifests):
        check_security(name, spec)
        check_mounts(name, spec, manifests)
        check_probes(name, spec)
    for workload in workloads(manifests):
        check_grace(workload)
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))
    assert all(len(name) <= (52 if kind == "StatefulSet" else 63) for kind, name in names)
    for m in manifests:
        labels = {**m["metadata"]["labels"], **m["metadata"].get("annotations", {})}
        assert all(isinstance(value, str) for value in labels.values()), m["metadata"]


def check_selectors(manifests: list[Manifest]) -> None:
    """Every selector finds the pods it is for."""
    labels = [w["spec"]["template"]["metadata"]["labels"] for w in workloads(manifests)]

    def found(selector: dict[str, str]) -> int:
        return sum(selector.items() <= one.items() for one in labels)

    for w in workloads(manifests):
        assert found(w["spec"]["selector"]["matchLabels"]) == 1, w["metadata"]["name"]
    for service in of_kind(manifests, "Service"):
        assert found(service["spec"]["selector"]) == 1, service["metadata"]["name"]
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        assert found(budget["spec"]["selector"]["matchLabels"]) == 1
    targets = {(w["kind"], w["metadata"]["name"]) for w in workloads(manifests)}
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in targets
        assert "replicas" not in one(manifests, target["kind"], target["name"])["spec"]
        least = scaler["spec"].get("minReplicas", scaler["spec"].get("minReplicaCount"))
        assert least >= 1
    for policy in of_kind(manifests, "NetworkPolicy"):
        assert found(policy["spec"]["podSelector"]["matchLabels"]) or "-node" in policy["metadata"]["name"]
    services = [s["metadata"]["labels"] for s in of_kind(manifests, "Service")]
    for monitor in of_kind(manifests, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        assert any(selector.items() <= s.items() for s in services)


def check_security(name: str, spec: Manifest) -> None:
    """Not root, nothing to escalate, no token of Kubernetes, no image without a version, no secret in plain words."""
    assert spec["securityContext"]["runAsNonRoot"] is True, name
    assert spec["automountServiceAccountToken"] is False, name
    assert spec["enableServiceLinks"] is False, name
    for c in containers(spec):
        context = c["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        image, _, tag = c["image"].rpartition(":")
        assert image and tag and tag != "latest", c["image"]
        for entry in c.get("env", []):
            if "TOKEN" in entry["name"] or "PASSWORD" in entry["name"] or entry["name"].endswith("_KEY"):
                assert "value" not in entry or entry["value"].startswith("/"), entry


def check_mounts(name: str, spec: Manifest, manifests: list[Manifest]) -> None:
    """Every mount has its volume, every volume is mounted, every ConfigMap is one of ours."""
    volumes = {v["name"]: v for v in spec.get("volumes", [])}
    for w in workloads(manifests):
        if w["spec"]["template"]["spec"] is spec:
            volumes |= {v["metadata"]["name"]: v for v in w["spec"].get("volumeClaimTemplates", [])}
    mounted = {m["name"] for c in containers(spec) for m in c.get("volumeMounts", [])}
    assert mounted == set(volumes), name
    assert "/tmp" in {m["mountPath"] for c in containers(spec) for m in c["volumeMounts"]} or "store" in name
    for v in volumes.values():
        if "configMap" in v:
            one(manifests, "ConfigMap", v["configMap"]["name"])


def check_probes(name: str, spec: Manifest) -> None:
    """Probes hit a port that the container opens; ready before anything is liveness; liveness takes its time."""
    for c in spec["containers"]:
        ports = {p["name"] for p in c.get("ports", [])}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = c.get(kind)
            assert probe is not None or "test" in name, f"{name} lacks {kind}"
            for action in ("httpGet", "tcpSocket", "grpc"):
                if probe is not None and action in probe:
                    assert probe[action]["port"] in ports
        live = c.get("livenessProbe", {"periodSeconds": 60, "failureThreshold": 2})
        assert live["periodSeconds"] * live["failureThreshold"] >= 90


def check_grace(workload: Manifest) -> None:
    """A pod is killed only after preStop, the drain and the end of the engine."""
    spec = workload["spec"]["template"]["spec"]
    comment = {v["name"]: v for v in spec["volumes"]}
    if "store" in workload["metadata"]["name"] or "loadtest" in workload["metadata"]["name"]:
        return
    main = spec["containers"][0]
    wait = int(main["lifecycle"]["preStop"]["exec"]["command"][1])
    assert comment["config"]["configMap"]["name"] == workload["metadata"]["name"]
    assert spec["terminationGracePeriodSeconds"] > wait


@pytest.mark.parametrize("router_drain, node_drain", [(1, 1), (60, 120), (900, 3600)])
def test_the_grace_period_covers_what_the_process_is_told(
    helm: Path, tmp_path: Path, router_drain: int, node_drain: int
) -> None:
    values = {"router": {"drainSeconds": router_drain}, "nodeDefaults": {"drainSeconds": node_drain}}
    manifests = render(helm, tmp_path, SIM, values)
    for kind, name, stop in (("Deployment", "rel-laya-router", 5), ("StatefulSet", "rel-laya-sim", 20)):
        spec = one(manifests, kind, name)["spec"]["template"]["spec"]
        told = config_of(manifests, name)["server"]["drain_timeout"]
        before = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        assert told == (router_drain if kind == "Deployment" else node_drain)
        assert spec["terminationGracePeriodSeconds"] >= before + told + stop


def test_both_helms_render_the_same(helm: Path, helm3: Path, tmp_path: Path) -> None:
    for example in EXAMPLES:
        assert render(helm, tmp_path, example) == render(helm3, tmp_path, example)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_lint_finds_nothing(helm: Path, helm3: Path, example: Path) -> None:
    for binary in (helm, helm3):
        result = run(binary, "lint", "--strict", CHART, "-f", example)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "[WARNING]" not in result.stdout


def test_the_chart_packs(helm: Path, helm3: Path, tmp_path: Path) -> None:
    for binary in (helm, helm3):
        result = run(binary, "package", CHART, "-d", tmp_path)
        assert result.returncode == 0, result.stderr


def test_the_version_is_the_products() -> None:
    from shared.version import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_the_schema_is_what_the_configuration_says() -> None:
    from helm import schema

    assert schema.FILE.read_text() == schema.write(), "run `python helm/schema.py`"


def test_every_key_of_the_values_is_described() -> None:
    import json

    schema = json.loads((CHART / "values.schema.json").read_text())

    def look(at: Any, path: str) -> None:
        if isinstance(at, dict):
            for name, key in at.get("properties", {}).items() if isinstance(at.get("properties"), dict) else ():
                assert "$ref" in key or key.get("description") or "gpu" in name, f"{path}.{name}"
            for name, value in at.items():
                look(value, f"{path}.{name}")
        elif isinstance(at, list):
            for i, value in enumerate(at):
                look(value, f"{path}[{i}]")

    look(schema, "")


def test_an_upgrade_of_the_chart_starts_no_model_anew(helm: Path, tmp_path: Path) -> None:
    """What a new chart version changes stands in no pod of a node, and in no selector."""
    copy = tmp_path / "laya"
    run("cp", "-r", CHART, copy)
    chart = copy / "Chart.yaml"
    chart.write_text(chart.read_text().replace("\nversion: ", "\nversion: 9"))
    values = tmp_path / "v.yaml"
    values.write_text(yaml.safe_dump(SIM))
    new = run(helm, "template", "rel", copy, "--namespace", "prod", "-f", values)
    assert new.returncode == 0, new.stderr
    old = render(helm, tmp_path, SIM)
    newer = [m for m in yaml.safe_load_all(new.stdout) if m]
    assert old != newer
    for before in workloads(old):
        after = one(newer, before["kind"], before["metadata"]["name"])
        assert before["spec"] == after["spec"]


def test_a_changed_setting_starts_its_own_pods_anew(helm: Path, tmp_path: Path) -> None:
    def marks(*values: dict[str, Any]) -> dict[str, str]:
        manifests = render(helm, tmp_path, SIM, *values)
        pods = {w["metadata"]["name"]: w["spec"]["template"]["metadata"] for w in workloads(manifests)}
        return {name: pod.get("annotations", {}).get("laya/config", "") for name, pod in pods.items()}

    before, after = marks(), marks({"router": {"config": {"timeout_ms": 50}}})
    assert {name for name in before if before[name] != after[name]} == {"rel-laya-router"}


def test_routers_are_replaced_without_a_gap(helm: Path, tmp_path: Path) -> None:
    router = one(render(helm, tmp_path, SIM), "Deployment", "rel-laya-router")
    assert router["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    probe = router["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    wait = int(router["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert probe["periodSeconds"] * probe["failureThreshold"] <= wait


def test_gpus_are_whole_and_set_tensor_parallelism(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, models(source={"hub": "a/b"}, gpus=4))
    node = one(manifests, "StatefulSet", "rel-laya-sim")["spec"]["template"]["spec"]["containers"][0]
    assert node["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert node["image"].endswith("-cuda")
    assert config_of(manifests, "rel-laya-sim")["inference"]["engine_args"] == {"tensor_parallel_size": 4}


def test_a_download_has_the_token_and_the_node_has_none(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, FEATURES["download-first"])
    spec = one(manifests, "StatefulSet", "rel-laya-sim")["spec"]["template"]["spec"]
    names = [{e["name"] for e in c["env"]} for c in (spec["initContainers"][0], spec["containers"][0])]
    assert "HF_TOKEN" in names[0]
    assert "HF_TOKEN" not in names[1]
    assert config_of(manifests, "rel-laya-sim")["inference"]["offline"] is True


@pytest.mark.parametrize("kind, pod", [("StatefulSet", "0"), ("Deployment", "6d4cf56db6-x2x9k")])
def test_a_scaler_counts_the_pods_of_its_own_model(helm: Path, tmp_path: Path, kind: str, pod: str) -> None:
    auto = {"enabled": True, "prometheusAddress": "http://p:9090"}
    manifests = render(helm, tmp_path, SIM, models(name="qwen", kind=kind, autoscaling=auto))
    for trigger in one(manifests, "ScaledObject", "rel-laya-qwen")["spec"]["triggers"]:
        for pattern in re.findall(r'pod=~"([^"]+)"', trigger["metadata"]["query"]):
            assert re.fullmatch(pattern, f"rel-laya-qwen-{pod}")
            assert not re.fullmatch(pattern, f"rel-laya-qwen-big-{pod}")


def test_routers_that_are_scaled_by_their_cpu_sleep_between_requests(helm: Path, tmp_path: Path) -> None:
    scaled: dict[str, dict[str, object]] = {"router": {"autoscaling": {"enabled": True}}}
    for more, expected in (({}, None), (scaled, 0)):
        manifests = render(helm, tmp_path, SIM, more)
        config = yaml.safe_load(one(manifests, "ConfigMap", "rel-laya-router")["data"]["laya.yaml"])
        assert config["router"].get("busy_poll_us") == expected
    scaled["router"]["config"] = {"busy_poll_us": 50}
    config = yaml.safe_load(
        one(render(helm, tmp_path, SIM, scaled), "ConfigMap", "rel-laya-router")["data"]["laya.yaml"]
    )
    assert config["router"]["busy_poll_us"] == 50


def test_a_store_outside_runs_none_inside(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, FEATURES["external-store-secret"])
    assert not [m for m in manifests if m["metadata"]["name"].endswith("-store")]
    env = one(manifests, "Deployment", "rel-laya-router")["spec"]["template"]["spec"]["containers"][0]["env"]
    url = next(e for e in env if e["name"] == "LAYA_SERVER__REDIS")
    assert url["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "redis-url"}


def test_traces_go_where_the_values_say_from_routers_and_nodes(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, FEATURES["tracing"])
    for name in ("rel-laya-router", "rel-laya-sim"):
        said = yaml.safe_load(one(manifests, "ConfigMap", name)["data"]["laya.yaml"])["tracing"]
        assert said == {
            "endpoint": "http://otel:4318",
            "sample_ratio": 0.1,
            "headers_file": "/etc/laya/tracing/headers",
        }
    plain = render(helm, tmp_path, SIM)
    assert "tracing" not in yaml.safe_dump_all(plain)


def test_dns_asks_for_the_services_of_the_models(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, FEATURES["dns"])
    (entry,) = config_of(manifests, "rel-laya-router")["router"]["dns"]
    service, namespace = entry["name"].split(".")[:2]
    headless = one(manifests, "Service", service)
    assert namespace == headless["metadata"]["namespace"]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert headless["spec"]["ports"][0]["port"] == entry["port"]
    assert not [m for m in manifests if m["metadata"]["name"].endswith("-store")]
    (entry,) = config_of(render(helm, tmp_path, SIM, FEATURES["dns-node-tls"]), "rel-laya-router")["router"]["dns"]
    assert entry == {
        "name": f"_{headless['spec']['ports'][0]['name']}._tcp.{service}.prod.svc.cluster.local",
        "port": 0,
    }


@pytest.mark.parametrize("feature", FEATURES)
def test_what_is_configured_is_a_configuration(helm: Path, tmp_path: Path, feature: str) -> None:
    """Routers and nodes take the files: the schema of the configuration is the last word on them."""
    for m in of_kind(render(helm, tmp_path, SIM, FEATURES[feature]), "ConfigMap"):
        if "laya.yaml" in m["data"]:
            file = tmp_path / "laya.yaml"
            file.write_text(m["data"]["laya.yaml"])
            load(file, environ={})


def test_a_load_test_is_off_and_may_load_what_it_is_told_alone(helm: Path, tmp_path: Path) -> None:
    assert not any("loadtest" in m["metadata"]["name"] for m in render(helm, tmp_path, SIM))
    for more, host in (({}, "rel-laya-router.prod.svc.cluster.local"), ({"host": "http://10.0.0.9:8000"}, "10.0.0.9")):
        load = {"enabled": True, "workers": 3, "apiKeys": {"existingSecret": "load"}, **more}
        manifests = render(helm, tmp_path, SIM, {"loadtest": load})
        for part, replicas in (("master", 1), ("worker", 3)):
            spec = one(manifests, "Deployment", f"rel-laya-loadtest-{part}")["spec"]
            [locust] = spec["template"]["spec"]["containers"]
            env = {e["name"]: e["value"] for e in locust["env"]}
            assert spec["replicas"] == replicas and env["LAYA_I_OWN_THIS_HOST"] == host
            assert env["LOCUST_HOST"] == f"http://{host}:8000"
            assert "--expect-workers" in locust["args"] or part == "worker"
        ports = one(manifests, "Service", "rel-laya-loadtest-master")["spec"]["ports"]
        assert [port["port"] for port in ports] == [5557]  # nobody in the cluster reaches the page


def test_an_upgrade_keeps_the_number_that_an_autoscaler_set(helm3: Path, tmp_path: Path) -> None:
    """Without a number, Helm's patch would take the old one out, and Kubernetes go on with a single pod."""
    live = [
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "prod"},
            "spec": {"replicas": 5},
        }
        for kind, name in (("Deployment", "rel-laya-router"), ("StatefulSet", "rel-laya-sim"))
    ]
    values = tmp_path / "v.yaml"
    scaled = {"router": {"autoscaling": {"enabled": True}}, **models(autoscaling={"enabled": True, "kind": "hpa"})}
    values.write_text(yaml.safe_dump({**SIM, **scaled}))
    argv = ["template", "rel", CHART, "--namespace", "prod", "-f", values, "--dry-run=server"]
    with kubernetes(tmp_path, *live) as env:
        done = run(helm3, *argv, env=env)
    assert done.returncode == 0, done.stderr
    manifests = [m for m in yaml.safe_load_all(done.stdout) if m]
    for one_of in live:
        meta = one_of["metadata"]
        assert isinstance(meta, dict)
        assert one(manifests, str(one_of["kind"]), meta["name"])["spec"]["replicas"] == 5
