"""Starts the peers of the benchmarks in front of the same nodes or backends; each with two threads, as its docs advise.

    python -m loadtest.peers [--peers smg,nginx]     # the same plans through each in turn: see bench_peers.py

nginx, haproxy and Envoy do no model routing: they are the floor, not equals. The LLM routers run with their defaults
but for the log level (a line per request would be measured too).
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from loadtest.peers_setup import find
from loadtest.rig import START_LIMIT, Rig, RigError, free_port, workers_of

# Address and process ids; a program that starts no children has one.
Started = tuple[str, list[int]]
Start = Callable[[Rig, Sequence[str]], Started]

_LAUNCHED = ("smg", "sglang-router")  # these have subcommands
_OFFLINE = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "*"}
_LITELLM_START = 90.0
_MANY = 1_000_000  # limits that shall never be the limit


def _command(name: str) -> str:
    found = find(name)
    if found is None:
        raise RigError(f"{name} is not installed")
    return found


def nginx_http(rig: Rig, backends: Sequence[str]) -> Started:
    """nginx's ``proxy_pass`` with kept-alive connections and no buffering of answers."""
    port = free_port()
    home = rig.folder / f"nginx-{port}"
    home.mkdir()
    servers = "".join(f"server {b}; " for b in backends)
    paths = "".join(f"{k}_temp_path {home}/{k};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = home / "nginx.conf"
    config.write_text(
        f"daemon off; pid {home}/pid; error_log {home}/log crit; worker_processes 2;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {paths} client_body_buffer_size 128k;\n"
        f" upstream backends {{ least_conn; {servers} keepalive 1024; keepalive_requests {_MANY}; }}\n"
        f" server {{ listen 127.0.0.1:{port} backlog=4096; keepalive_requests {_MANY}; location / {{\n"
        '  proxy_pass http://backends; proxy_http_version 1.1; proxy_set_header Connection "";\n'
        "  proxy_buffering off; } } }\n"
    )
    pid = rig.spawn([_command("nginx"), "-c", str(config), "-p", str(home)], port)
    return f"127.0.0.1:{port}", [pid, *workers_of(pid, 2)]


def haproxy_http(rig: Rig, backends: Sequence[str]) -> Started:
    """haproxy, told to pass each event of a stream on at once."""
    port = free_port()
    servers = "".join(f"  server s{i} {b}\n" for i, b in enumerate(backends))
    config = rig.folder / f"haproxy-{port}.cfg"
    config.write_text(
        "global\n  nbthread 2\n  maxconn 8000\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 600s\n  timeout server 600s\n"
        "  option http-no-delay\n  http-reuse always\n"
        f"frontend in\n  bind 127.0.0.1:{port}\n  default_backend out\n"
        f"backend out\n  balance leastconn\n{servers}"
    )
    return f"127.0.0.1:{port}", [rig.spawn([_command("haproxy"), "-db", "-f", str(config)], port)]


def envoy_http(rig: Rig, backends: Sequence[str]) -> Started:
    """Envoy, HTTP/1.1 on both sides."""
    return _envoy(rig, backends, http2=False)


def envoy_grpc(rig: Rig, backends: Sequence[str]) -> Started:
    """Envoy, HTTP/2 on both sides."""
    return _envoy(rig, backends, http2=True)


def _envoy(rig: Rig, backends: Sequence[str], http2: bool) -> Started:
    port = free_port()
    types = "type.googleapis.com/envoy.extensions"
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "nodes", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"},
            }
        ],
    }
    cluster: dict[str, object] = {
        "name": "nodes",
        "type": "STATIC",
        "connect_timeout": "5s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {
            "thresholds": [{"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536}]
        },
        "load_assignment": {
            "cluster_name": "nodes",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket(b)}} for b in backends]}],
        },
    }
    if http2:
        cluster["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{types}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"address": _socket(f"127.0.0.1:{port}"), "filter_chains": [chain]}
    config = rig.folder / f"envoy-{port}.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    argv = [_command("envoy"), "-c", str(config), "--concurrency", "2", "--log-level", "error"]
    pid = rig.spawn([*argv, "--disable-hot-restart"], port)
    return f"127.0.0.1:{port}", [pid]


def _socket(address: str) -> dict[str, object]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def llm_router(name: str, policy: str, log_level: str) -> Start:
    """How to start one of the routers that share a command line."""

    def start(rig: Rig, backends: Sequence[str]) -> Started:
        port, metrics = free_port(), free_port()
        argv = [_command(name), *(["launch"] if name in _LAUNCHED else [])]
        argv += ["--host", "127.0.0.1", "--port", str(port)]
        argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
        argv += ["--worker-urls", *(f"http://{b}" for b in backends)]
        argv += ["--policy", policy, "--log-level", log_level]
        return f"127.0.0.1:{port}", [rig.spawn(argv, port, _OFFLINE)]

    return start


def litellm(rig: Rig, backends: Sequence[str]) -> Started:
    """litellm's proxy with one worker, which its docs advise for each core; it takes some ten seconds to start."""
    port = free_port()
    backend = [
        {"model_name": "*", "litellm_params": {"model": "openai/*", "api_base": f"http://{b}/v1", "api_key": "none"}}
        for b in backends
    ]
    config = rig.folder / f"litellm-{port}.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": backend, "router_settings": {"routing_strategy": "least-busy"}}))
    env = _OFFLINE | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    argv = [_command("litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--num_workers", "1", "--telemetry", "False"]
    return f"127.0.0.1:{port}", [rig.spawn(argv, port, env, limit=_LITELLM_START)]


# In the order of the tables. A name after "/" is a policy that is not the default.
HTTP: dict[str, Start] = {
    "smg": llm_router("smg", "cache_aware", "warn"),
    "sglang-router": llm_router("sglang-router", "cache_aware", "warn"),
    "vllm-router": llm_router("vllm-router", "cache_aware", "warning"),
    "vllm-router/rr": llm_router("vllm-router", "round_robin", "warning"),
    "envoy": envoy_http,
    "haproxy": haproxy_http,
    "nginx": nginx_http,
}
# Some hundred times the cost of the others for each request, so that it is asked for by name only.
ALL: dict[str, Start] = {**HTTP, "litellm": litellm}


def package(peer: str) -> str:
    """The installed thing that a peer's name stands for."""
    return peer.partition("/")[0]


def await_answer(address: str, body: bytes) -> None:
    """Until a chat request is answered with 200: an LLM router listens before it knows its workers. RigError else."""
    deadline = time.monotonic() + START_LIMIT
    last = "no answer"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{address}/v1/chat/completions", body, headers)
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                if answer.status == 200:
                    return
        except urllib.error.HTTPError as error:
            last = f"{error.code} {error.read(300)!r}"
        except OSError as error:
            last = str(error)
        time.sleep(0.1)
    raise RigError(f"{address} does not answer a chat request: {last}")


if __name__ == "__main__":
    from loadtest.bench_peers import main

    main()
