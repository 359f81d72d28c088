"""Writes ``laya/values.schema.json``: what the chart's values may be, with a description of every key.

The settings of the configuration file come from the schema of the configuration, so that a chart accepts what its
processes accept. ``python helm/schema.py`` writes the file; with ``--check`` it only says whether it would change.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from helm.settings import definitions  # noqa: E402

FILE = Path(__file__).resolve().parent / "laya" / "values.schema.json"
Schema = dict[str, Any]
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


def text(about: str, **more: Any) -> Schema:
    """A string."""
    return {"type": "string", "description": about, **more}


def flag(about: str) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": about}


def whole(about: str, least: int = 0, most: int | None = None) -> Schema:
    """A whole number."""
    bound = {} if most is None else {"maximum": most}
    return {"type": "integer", "description": about, "minimum": least, **bound}


def free(about: str) -> Schema:
    """An object that Kubernetes judges."""
    return {"type": "object", "description": about}


def texts(about: str) -> Schema:
    """An object whose values are strings."""
    return {"type": "object", "description": about, "additionalProperties": {"type": "string"}}


def items(about: str, of: Schema | None = None) -> Schema:
    """A list."""
    return {"type": "array", "description": about, "items": of or {"type": "object"}}


def group(about: str, required: tuple[str, ...] = (), /, **keys: Schema) -> Schema:
    """An object with these keys and no others."""
    out: Schema = {"type": "object", "description": about, "additionalProperties": False, "properties": keys}
    return {**out, "required": list(required)} if required else out


def one_of(about: str, *values: str) -> Schema:
    """One of some words."""
    return {"description": about, "enum": list(values)}


def quantity(about: str) -> Schema:
    """An amount as Kubernetes writes it."""
    return {"type": ["string", "integer"], "description": about, "pattern": QUANTITY}


def ref(name: str) -> Schema:
    """A definition of this file."""
    return {"$ref": f"#/definitions/{name}"}


def image(about: str) -> Schema:
    """Where an image is."""
    return group(
        about,
        repository=text("Registry and name, without a tag.", pattern=r"^[^\s:@]+(:[0-9]+/[^\s:@]+)?$"),
        tag=text("Tag; empty takes the chart's appVersion. Not latest.", **{"not": {"const": "latest"}}),
        pullPolicy=one_of("When the kubelet pulls.", "IfNotPresent", "Always", "Never"),
    )


def resources() -> Schema:
    """Requests and limits; whole GPUs only, and those by `gpus`."""
    amounts: Schema = {
        "type": "object",
        # Devices, which have a domain in their names, come whole.
        "patternProperties": {"/": {"type": "integer", "minimum": 0}},
        "additionalProperties": {"type": ["string", "number"], "pattern": QUANTITY},
    }
    return group(
        "What a container asks for and may take.",
        requests={**amounts, "description": "Kept for it."},
        limits={**amounts, "description": "Never more than this. The memory plan of a node goes by the limit."},
    )


def placement() -> dict[str, Schema]:
    """Where pods go, and what else they carry."""
    return {
        "nodeSelector": texts("Labels that a machine must have."),
        "tolerations": items("Taints that do not keep the pods away."),
        "affinity": free("Affinity of the pods, as Kubernetes has it."),
        "podAnnotations": texts("Annotations of the pods."),
        "podLabels": texts("More labels of the pods."),
        "extraEnv": items("More environment variables, as in a container."),
    }


def drain(who: str) -> dict[str, Schema]:
    """How a pod ends: grace = preStop + drain + margin, so it is always longer than the first two."""
    return {
        "drainSeconds": whole(f"Time that running requests have to finish once a {who} stops.", 1, 86_400),
        "preStopSeconds": whole("Time before SIGTERM in which proxies learn that the pod goes.", 0, 600),
        "graceMarginSeconds": whole("Time after the drain before the process is killed.", 5, 600),
        "podDisruptionBudget": group(
            "How many may be away at once when machines are emptied.",
            enabled=flag("Make one."),
            maxUnavailable={"type": ["integer", "string"], "description": "Number or percentage."},
        ),
    }


def node_keys() -> dict[str, Schema]:
    """Keys of `nodeDefaults` and of an entry of `models`."""
    return {
        "image": image("The node's image. An empty tag takes appVersion with -cuda, -cpu or -sim after it."),
        "kind": one_of(
            "StatefulSet: pods with names and volumes of their own, replaced in place. Deployment: a new node is loaded"
            " before an old one goes, which takes a place for one more.",
            "StatefulSet",
            "Deployment",
        ),
        "replicas": whole("Nodes that serve the model."),
        "gpus": whole("GPUs of each node, whole ones; over one sets tensor_parallel_size. 0 runs on the CPU.", 0, 64),
        "gpuResource": text("Name of a GPU among the machine's resources."),
        "runtimeClassName": text("Runtime class, where GPUs need one of their own (often nvidia)."),
        "shmSize": quantity("Size of /dev/shm; counts towards the memory limit."),
        "startupSeconds": whole("Longest time from start to a loaded model, the download included.", 10, 172_800),
        **drain("node"),
        "cache": group(
            "What is below /var/lib/laya: downloads of the hub, kernels that the engine compiles.",
            size=quantity("Size of the volume."),
            persistent=flag("A claim for each pod, kept over restarts; else it goes with the pod."),
            storageClassName=text("Storage class of the claims; empty takes the cluster's default."),
            hostPath=text("A folder of the machine instead, shared by its nodes and writable by user 10001."),
        ),
        "hfToken": group(
            "Token for models of the hub that want one.",
            existingSecret=text("Secret that holds it; empty sends none."),
            key=text("Key in that secret."),
        ),
        "resources": resources(),
        **placement(),
        "autoscaling": group(
            "Number of nodes by headroom and queue. Never zero: the last node would have to load before an answer.",
            enabled=flag("Make a ScaledObject or a HorizontalPodAutoscaler."),
            kind=one_of("keda reads Prometheus itself; hpa wants a metrics adapter.", "keda", "hpa"),
            minReplicas=whole("Never fewer.", 1),
            maxReplicas=whole("Never more.", 1),
            targetKvUse={
                "type": "number",
                "description": "Share of KV that may be promised, for each node, before there are more.",
                "exclusiveMinimum": 0,
                "maximum": 1,
            },
            targetWaiting=whole("Requests that may wait, for each node, before there are more.", 1),
            prometheusAddress=text("URL of Prometheus, for KEDA."),
            scaleDownSeconds=whole("Nodes go only after so long with less to do.", 0, 3600),
        ),
    }


def source() -> Schema:
    """Where a model comes from: exactly one way."""
    path = text("Folder of the model below the volume's root.", pattern=r"^[^/].*$")
    ways = (
        group(
            "A model of the hub, downloaded.",
            ("hub",),
            hub=text("Id of the repository.", pattern=r"^[\w.\-]+/[\w.\-]+$"),
            revision=text("Branch, tag or commit; empty takes the newest."),
            downloadFirst=flag("An init container downloads; the node itself never asks the hub."),
        ),
        group(
            "A model on a volume that is there.",
            ("claim",),
            claim=text("Name of a PersistentVolumeClaim."),
            path=path,
        ),
        group(
            "A model in a folder of the machine.",
            ("hostPath",),
            hostPath=text("Folder of the machine.", pattern="^/"),
            path=path,
        ),
        group(
            "No model: the simulator, which says so in every answer.",
            ("sim",),
            sim={"const": True, "description": "True."},
        ),
    )
    return {"description": "Where the model comes from: one of hub, claim, hostPath and sim.", "oneOf": list(ways)}


def model() -> Schema:
    """An entry of `models`."""
    return group(
        "Nodes that serve one model. Every key of nodeDefaults may stand here too.",
        ("name", "source"),
        name=text("Name of the nodes, and of the model for clients.", pattern=NAME, maxLength=30),
        source=source(),
        config=ref("inference"),
        server=ref("server"),
        engineArgs={"type": "object", "description": "Arguments of the engine; the node checks them against its own."},
        **node_keys(),
    )


def write() -> str:
    """The whole file."""
    from helm.values import schema

    return json.dumps({**schema(), "definitions": definitions()}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    new = write()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FILE.read_text() == new else "values.schema.json is not what helm/schema.py writes")
    FILE.write_text(new)
