"""The Helm chart's ways in: TLS, ingress, gateway, policies, and the pod of `helm test` that goes through them."""

from __future__ import annotations

from pathlib import Path

from tests.support.chart import SIM, config_of, of_kind, one, pod_specs, render
from tests.support.chart_features import FEATURES


def test_the_user_is_the_clusters_where_it_assigns_one(helm: Path, tmp_path: Path) -> None:
    for name, spec in pod_specs(render(helm, tmp_path, SIM, FEATURES["assigned-user"])):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"]), name
        for c in spec["containers"]:
            env = {e["name"]: e.get("value") for e in c.get("env", [])}
            # The image's home is another user's: what has no volume there works elsewhere.
            homes = {m["mountPath"] for m in c["volumeMounts"]} & {"/var/lib/laya", "/data"}
            assert homes or (env["HOME"], c["workingDir"]) == ("/tmp", "/tmp"), name


def test_the_asking_pod_speaks_tls_as_the_routers_do(helm: Path, tmp_path: Path) -> None:
    pod = one(render(helm, tmp_path, SIM, FEATURES["cert-manager"]), "Pod", "rel-laya-test-token")["spec"]
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert (env["LAYA_TLS"], env["LAYA_CA"], env["LAYA_SERVER_NAME"]) == ("1", "/etc/laya/tls/ca.crt", "a.b")
    assert pod["volumes"][1]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    shown = one(render(helm, tmp_path, SIM, FEATURES["tls"]), "Pod", "rel-laya-test-token")["spec"]
    assert {i["path"] for i in shown["volumes"][1]["secret"]["items"]} == {"ca.crt", "tls.crt", "tls.key"}


def test_policies_let_the_asking_pod_pass(helm: Path, tmp_path: Path) -> None:
    manifests = render(
        helm, tmp_path, SIM, {"networkPolicy": {"enabled": True, "clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}
    )
    public = one(manifests, "NetworkPolicy", "rel-laya-router")["spec"]["ingress"][0]
    asking = one(manifests, "Pod", "rel-laya-test-token")["metadata"]["labels"]
    assert any(
        p.get("podSelector", {"matchLabels": {"": ""}})["matchLabels"].items() <= asking.items() for p in public["from"]
    )


def test_one_host_name_has_one_kind_of_route(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, FEATURES["gateway"])
    assert not of_kind(manifests, "GRPCRoute")
    paths = {
        m["path"]["value"]
        for r in one(manifests, "HTTPRoute", "rel-laya-router")["spec"]["rules"]
        for m in r["matches"]
    }
    assert paths == {"/v1", "/laya.v1.Inference", "/grpc.health.v1.Health"}
    both = render(helm, tmp_path, SIM, FEATURES["gateway-two-names"])
    assert one(both, "GRPCRoute", "rel-laya-router")["spec"]["hostnames"] == ["g.b"]
    assert len(one(both, "HTTPRoute", "rel-laya-router")["spec"]["rules"]) == 1


def test_an_ingress_says_what_its_backend_speaks(helm: Path, tmp_path: Path) -> None:
    for secure, spoken in ((False, ("HTTP", "GRPC")), (True, ("HTTPS", "GRPCS"))):
        values = {"tls": {"enabled": True, "existingSecret": "cert"}} if secure else {}
        manifests = render(helm, tmp_path, SIM, FEATURES["ingress"], values)
        for kind, protocol in zip(("http", "grpc"), spoken, strict=True):
            notes = one(manifests, "Ingress", f"rel-laya-router-{kind}")["metadata"]["annotations"]
            assert notes["nginx.ingress.kubernetes.io/backend-protocol"] == protocol


def test_a_private_authority_verifies_all_that_is_outside(helm: Path, tmp_path: Path) -> None:
    manifests = render(helm, tmp_path, SIM, FEATURES["private-authority"])
    consul = render(helm, tmp_path, SIM, FEATURES["consul-policy"])
    for kind, name in (("Deployment", "rel-laya-router"), ("StatefulSet", "rel-laya-sim")):
        [container] = one(manifests, kind, name)["spec"]["template"]["spec"]["containers"]
        file = "/etc/laya/ca/ca.crt"
        assert {"name": "ca", "mountPath": "/etc/laya/ca", "readOnly": True} in container["volumeMounts"]
        assert {"name": "LAYA_SERVER__REDIS", "value": f"rediss://a:6379/0?db=1&ssl_ca_certs={file}"} in container[
            "env"
        ]
        assert config_of(manifests, name)["tracing"]["ca_file"] == file
        assert config_of(consul, name)["server"]["consul"]["ca_file"] == file
    checks = one(consul, "NetworkPolicy", "rel-laya-node")["spec"]["ingress"][0]["from"]
    assert {"ipBlock": {"cidr": "10.0.0.0/8"}} in checks
