"""As much of a Kubernetes API server as `helm template --dry-run=server` asks for: objects of apps/v1 by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

_KINDS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
_VERSION = {"groupVersion": "apps/v1", "version": "v1"}
_PAGES: dict[str, Any] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [{"name": "apps", "versions": [_VERSION], "preferredVersion": _VERSION}],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [{"name": n, "namespaced": True, "kind": k, "verbs": ["get"]} for k, n in _KINDS.items()],
    },
}


@contextmanager
def kubernetes(folder: Path, *objects: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Serve these objects; yields the environment in which kubectl and Helm find them."""
    pages = dict(_PAGES)
    for one in objects:
        meta = one["metadata"]
        pages[f"/apis/apps/v1/namespaces/{meta['namespace']}/{_KINDS[one['kind']]}/{meta['name']}"] = one

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if page is None else page).encode()
            self.send_response(404 if page is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
            cluster = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            user = {"name": "a", "user": {}}
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "users": [user],
                "contexts": [context],
            }
            file = folder / "kubeconfig"
            file.write_text(yaml.safe_dump({"apiVersion": "v1", **config, "current-context": "a"}))
            yield {"KUBECONFIG": str(file)}
        finally:
            server.shutdown()
            thread.join(10)
