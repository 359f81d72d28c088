"""TLS on both hops: clients to the router, and router and node with certificates of both, replaced while they run."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.calls import ask, stub_of
from tests.support.certs import Authority, Pair
from tests.support.processes import ROOT, Cluster, Proc, Spec, cluster

CHAT = "/v1/chat/completions"


class Site:
    """Certificates of a router and a node in files that can be replaced, and those of strangers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.ca = self.authority.file
        self.router = self.put("router")
        self.to_node = self.put("router-to-node")
        self.node = self.put("node")
        (folder / "strange").mkdir()
        self.stranger = Authority(folder / "strange").pair("router-to-node")

    def put(self, name: str, subject: str = "") -> Pair:
        """A new pair in the files of that name."""
        made = self.authority.pair(subject or f"{name}-1")
        live = Pair(str(self.folder / f"{name}.live.crt"), str(self.folder / f"{name}.live.key"))
        shutil.copy(made.cert, live.cert)
        shutil.copy(made.key, live.key)
        return live

    def spec(self, **router: str) -> Spec:
        """A cluster in which every hop is TLS, and router and node show each other certificates."""
        return Spec(
            router={
                "LAYA_SERVER__TLS__CERT_FILE": self.router.cert,
                "LAYA_SERVER__TLS__KEY_FILE": self.router.key,
                "LAYA_ROUTER__NODE_TLS__CA_FILE": self.ca,
                "LAYA_ROUTER__NODE_TLS__CERT_FILE": self.to_node.cert,
                "LAYA_ROUTER__NODE_TLS__KEY_FILE": self.to_node.key,
                **router,
            },
            node={
                "LAYA_SERVER__TLS__CERT_FILE": self.node.cert,
                "LAYA_SERVER__TLS__KEY_FILE": self.node.key,
                "LAYA_SERVER__TLS__CA_FILE": self.ca,
                "LAYA_ROUTER__NODE_TLS__CA_FILE": self.ca,  # this is what makes a node on loopback speak TLS
            },
        )

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """A client's context."""
        made = ssl.create_default_context(cafile=self.ca)
        if pair is not None:
            made.load_cert_chain(pair.cert, pair.key)
        return made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[Cluster]:
    with cluster(site.spec()) as c:
        yield c


def channel_to(site: Site, address: str) -> grpc.Channel:
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(site.ca).read_bytes()))


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def shown_by(address: str, context: ssl.SSLContext) -> tuple[str, str, str]:
    """Subject of the certificate that is shown, TLS version, and protocol by ALPN."""
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(endpoint(address), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        subject = dict(field[0] for field in tls.getpeercert()["subject"])  # type: ignore[index,misc]
        return str(subject["commonName"]), str(tls.version()), str(tls.selected_alpn_protocol())


def refused(address: str, context: ssl.SSLContext) -> bool:
    """Whether the handshake, or the first byte after it, fails."""
    try:
        with (
            socket.create_connection(endpoint(address), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            return not tls.recv(1)
    except (ssl.SSLError, ConnectionError):
        return True


def wait(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.05)


def test_grpc_passes_both_hops(site: Site, running: Cluster) -> None:
    with channel_to(site, running.address) as channel:
        stub = stub_of(channel)
        whole = stub.Complete(pb.CompleteRequest(request=ask(12, "a story")), timeout=20)
        pieces = [p for p in stub.Generate(ask(12, "a story"), timeout=20) if p.text]
        assert whole.completions[0].text == "".join(p.text for p in pieces)


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_passes_both_hops(site: Site, running: Cluster, stream: bool) -> None:
    body = json.dumps(
        {"model": "sim", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stream": stream}
    )
    client = http.client.HTTPSConnection(*endpoint(running.address), timeout=20, context=site.context())
    try:
        client.request("POST", CHAT, body, {"content-type": "application/json"})
        answer = client.getresponse()
        data = answer.read()
    finally:
        client.close()
    assert answer.status == 200
    if stream:
        assert data.count(b"data: ") > 3 and data.rstrip().endswith(b"data: [DONE]")
    else:
        assert json.loads(data)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("version", ["--http2", "--http1.1"])
def test_curl_speaks_what_it_was_asked_to_by_alpn(site: Site, running: Cluster, version: str) -> None:
    url = f"https://{running.address}/v1/models"
    done = subprocess.run(
        ["curl", "-sS", version, "--cacert", site.ca, "-w", "\n%{http_version} %{http_code}", url],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    body, _, last = done.stdout.rpartition("\n")
    assert last == ("2 200" if version == "--http2" else "1.1 200")
    assert json.loads(body)["data"][0]["id"] == "sim"


def test_the_command_line_asks_over_tls_as_its_environment_says(site: Site, running: Cluster) -> None:
    def laya(**env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "shared.cli.main", "generate", "Once", "--raw", "--max-tokens", "2"]
        known = {**os.environ, "LAYA_ADDRESS": running.router.address, **env}
        return subprocess.run(argv, cwd=ROOT, env=known, capture_output=True, text=True, timeout=30, check=False)

    done = laya(
        LAYA_CA=site.ca, LAYA_SERVER_NAME="localhost", LAYA_CERT=site.router.cert, LAYA_CERT_KEY=site.router.key
    )
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr
    done = laya(LAYA_CA="/not/there")
    assert (done.returncode, done.stderr) == (2, "laya: /not/there: cannot be read (No such file or directory)\n")


def test_only_current_tls_is_spoken(site: Site, running: Cluster) -> None:
    assert shown_by(running.address, site.context())[1:] == ("TLSv1.3", "h2")
    older = site.context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shown_by(running.address, older)[1] == "TLSv1.2"
    assert shown_by(running.nodes[0].address, site.context(site.to_node))[1:] == ("TLSv1.3", "h2")


@pytest.mark.parametrize("version", ["tls1", "tls1_1"])
def test_tls_before_1_2_is_refused(running: Cluster, version: str) -> None:
    done = subprocess.run(
        ["openssl", "s_client", f"-{version}", "-cipher", "ALL:@SECLEVEL=0", "-connect", running.address],
        input=b"",
        capture_output=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert b"Cipher is (NONE)" in done.stdout or b"protocol version" in done.stderr


def test_a_node_refuses_whoever_shows_no_certificate_or_a_stranger_s(site: Site, running: Cluster) -> None:
    node = running.nodes[0].address
    assert not refused(node, site.context(site.to_node))
    assert refused(node, site.context())
    assert refused(node, site.context(site.stranger))
    with socket.create_connection(endpoint(node), timeout=10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"HTTP/1.1" not in plain.recv(100)
    test_grpc_passes_both_hops(site, running)


def test_a_router_with_a_stranger_s_certificate_reaches_no_node(site: Site, running: Cluster) -> None:
    router = Proc(
        "router",
        ["router_node.main", "--port", "0", "--admin-port", "0", "--node", running.nodes[0].address],
        {
            "LAYA_SERVER__CLUSTER_TOKEN": running.spec.token,
            "LAYA_ROUTER__NODE_TLS__CA_FILE": site.ca,
            "LAYA_ROUTER__NODE_TLS__CERT_FILE": site.stranger.cert,
            "LAYA_ROUTER__NODE_TLS__KEY_FILE": site.stranger.key,
        },
    )
    try:
        admin = endpoint(router.ready["admin"])
        wait(lambda: "cannot connect to" in router.output(), "the router says that it cannot reach the node")
        client = http.client.HTTPConnection(*admin, timeout=10)
        client.request("GET", "/readyz")
        answer = client.getresponse()
        assert answer.status == 503
        assert b"dark" in answer.read()
        client.close()
    finally:
        assert router.stop() == 0


def test_handshakes_that_stop_take_no_more_than_connections_may(site: Site) -> None:
    few = site.spec(LAYA_SERVER__MAX_CONNECTIONS="20", LAYA_SERVER__HEADER_TIMEOUT="1")
    with cluster(few) as c:
        silent = [socket.create_connection(endpoint(c.address), timeout=10) for _ in range(60)]
        try:
            wait(lambda: c.metric("laya_router_net_ends_total", reason="max_connections") >= 40, "refusals")
            wait(lambda: c.metric("laya_router_net_ends_total", reason="tls_timeout") >= 20, "time-outs")
            assert shown_by(c.address, site.context())[0].startswith("router-")
        finally:
            for one in silent:
                one.close()


def test_certificates_are_replaced_under_a_live_stream(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with cluster(site.spec()) as c, channel_to(site, c.address) as channel:
        got: list[int] = []
        failed: list[BaseException] = []
        enough = threading.Event()

        def read() -> None:
            try:
                for piece in stub_of(channel).Generate(ask(4000, "a story"), timeout=60):
                    got.append(len(piece.token_ids))
                    if enough.is_set():
                        return
            except BaseException as error:
                failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        wait(lambda: got, "the stream runs")

        for name in ("router", "node", "router-to-node"):
            site.put(name, f"{name}-2")
        as_router = site.context(site.to_node)
        wait(lambda: shown_by(c.address, site.context())[0] == "router-2", "the router shows its new certificate")
        wait(lambda: shown_by(c.nodes[0].address, as_router)[0] == "node-2", "the node shows its new certificate")
        wait(lambda: c.router.output().count("certificates_reloaded") == 2, "the router has both of its pairs")

        shutil.copy(site.node.key, site.router.key)  # no pair any more
        wait(lambda: "certificates_not_reloaded" in c.router.output(), "the bad pair is noticed")
        before = len(got)
        wait(lambda: len(got) > before + 200, "the stream still runs")
        assert shown_by(c.address, site.context())[0] == "router-2"
        with channel_to(site, c.address) as other:
            assert stub_of(other).Complete(pb.CompleteRequest(request=ask(3, "a story")), timeout=20).completions
        assert c.router.output().count("certificates_not_reloaded") == 1
        enough.set()
        reader.join(10)
        assert not reader.is_alive() and not failed, failed
        assert c.metric("laya_router_nodes", state="ready") == 1


PROCESSES = {
    "router": ["router_node.main", "--admin-port", "0"],
    "workers": ["router_node.main", "--admin-port", "0", "--workers", "2"],
    "node": ["inference_node.main", "--engine", "sim", "--model", "demo"],
}


@pytest.mark.parametrize(
    ("process", "mistake", "key", "says"),
    [
        ("router", "missing", "cert_file", "there is no file"),
        ("router", "mismatch", "key_file", "is not the key of the certificate"),
        ("router", "noise", "cert_file", "holds no certificate in PEM form"),
        ("router", "encrypted", "key_file", "is encrypted"),
        ("router", "authority", "ca_file", "there is no file"),
        ("workers", "mismatch", "key_file", "is not the key of the certificate"),
        ("node", "mismatch", "key_file", "is not the key of the certificate"),
        ("node", "authority", "ca_file", "there is no file"),
    ],
)
def test_a_bad_pair_ends_the_start_with_two_and_one_sentence(
    site: Site, tmp_path: Path, process: str, mistake: str, key: str, says: str
) -> None:
    pair, ca = Pair(site.router.cert, site.router.key), site.ca
    noise = tmp_path / "noise.pem"
    noise.write_bytes(os.urandom(500))
    if mistake == "missing":
        pair.cert = str(tmp_path / "none.crt")
    elif mistake == "mismatch":
        pair.key = site.node.key
    elif mistake == "noise":
        pair.cert = str(noise)
    elif mistake == "encrypted":
        pair = Authority(tmp_path).pair("locked", password=b"secret")
    else:
        ca = str(tmp_path / "none.pem")
    env = {
        "LAYA_SERVER__TLS__CERT_FILE": pair.cert,
        "LAYA_SERVER__TLS__KEY_FILE": pair.key,
        "LAYA_SERVER__TLS__CA_FILE": ca,
    }
    if process == "node":
        env["LAYA_ROUTER__NODE_TLS__CA_FILE"] = site.ca
    done = subprocess.run(
        [sys.executable, "-m", *PROCESSES[process], "--port", "0"],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith(("laya-router: ", "laya-node: "))]
    assert done.returncode == 2, done.stderr
    assert len(set(said)) == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"server.tls.{key}: " in said[0] and says in said[0]


def test_a_bad_pair_towards_nodes_ends_the_start_too(site: Site) -> None:
    env = {"LAYA_ROUTER__NODE_TLS__CERT_FILE": site.router.cert, "LAYA_ROUTER__NODE_TLS__KEY_FILE": site.node.key}
    done = subprocess.run(
        [sys.executable, "-m", *PROCESSES["router"], "--port", "0"],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "router.node_tls.key_file: " in done.stderr
