"""The chart's values, key by key, as JSON schema; ``schema.py`` has the words it is made of."""

from __future__ import annotations

from typing import Any

from helm.schema import (
    Schema,
    drain,
    flag,
    free,
    group,
    image,
    items,
    model,
    node_keys,
    one_of,
    placement,
    quantity,
    ref,
    resources,
    text,
    texts,
    whole,
)


def schema() -> dict[str, Any]:
    """Everything but the definitions."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Laya chart",
        **group(
            "Laya on Kubernetes.",
            **{"global": free("For charts that have this one below them.")},
            nameOverride=text("Replaces the chart's name in labels and names."),
            fullnameOverride=text("Replaces the first part of every name."),
            clusterDomain=text("DNS domain of the cluster."),
            bindAddress=one_of("What the processes bind; :: where the cluster speaks IPv6.", "0.0.0.0", "::"),
            imagePullSecrets=items("Secrets for the registry."),
            priorityClassName=text("Priority class of routers and nodes."),
            assignedUser=flag("The cluster chooses each pod's user and groups, as OpenShift does: name none."),
            cluster=text("Namespace in the store.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,63}$"),
            insecure=flag("Serve without API keys and cluster token."),
            auth=_auth(),
            logging=group(
                "What the processes write.",
                level=one_of("Least level.", "debug", "info", "warning", "error"),
                format=one_of("json for machines, text for people.", "json", "text"),
                accessLog=flag("One line for each request."),
            ),
            tracing=group(
                "Spans of requests to an OpenTelemetry collector, where config has an endpoint.",
                config=ref("tracing"),
                headersSecret=text('Secret whose key "headers" holds lines of the form "name: value".'),
            ),
            tls=_tls(),
            ca=group(
                "Authorities that sign an external store, Consul or a collector, at /etc/laya/ca/ca.crt.",
                existingSecret=text("Secret that holds them; empty takes well-known ones."),
                key=text("Key in that secret."),
            ),
            nodeTls=group(
                "TLS from routers to nodes.",
                enabled=flag("Speak TLS."),
                existingSecret=text("Secret with tls.crt, tls.key and ca.crt."),
                mutual=flag("Nodes want the routers' certificate too."),
                certManager=group(
                    "Have cert-manager make the secret.",
                    enabled=flag("Make a Certificate."),
                    issuerRef=_issuer(),
                ),
            ),
            discovery=one_of("Where routers look for nodes.", *DISCOVERY),
            redis=_redis(),
            consul=group(
                "Consul, where discovery is consul.",
                address=text("URL of an agent that every pod reaches.", pattern=r"^$|^https?://[^\s]+$"),
                existingSecret=text("Secret with an ACL token; empty sends none."),
                tokenKey=text("Key in that secret."),
                service=text("Name of the nodes' service."),
                datacenter=text("Datacenter; empty takes the agent's own."),
                tags=items("Tags of the nodes of this release.", {"type": "string"}),
            ),
            router=_router(),
            nodeDefaults=group("What every entry of models starts from.", **node_keys()),
            models={"type": "array", "description": "What is served.", "items": model()},
            metrics=_metrics(),
            networkPolicy=group(
                "Who may reach what.",
                enabled=flag("Make the policies."),
                clients=items("Peers that may reach the public port; empty lets everybody."),
                consul=items("Peers that check the nodes, where discovery is consul."),
                monitoring=items("Peers that may read metrics; empty lets the release's own namespace."),
            ),
            loadtest=_loadtest(),
        ),
    }


DISCOVERY = ("redis", "dns", "consul")


def _auth() -> Schema:
    return group(
        "Secrets of the cluster, in one Secret that you make.",
        existingSecret=text("Its name; may be empty with insecure alone."),
        clusterTokenKey=text("Key of the token that routers and nodes share."),
        apiKeysKey=text("Key of the file that `laya keys` writes."),
        testApiKeyKey=text("Key of an API key in plain text, for `helm test`."),
    )


def _tls() -> Schema:
    return group(
        "TLS on the public port.",
        enabled=flag("Speak TLS."),
        existingSecret=text("Secret of type kubernetes.io/tls."),
        mutual=flag("Clients must show a certificate that ca.crt of the secret has signed."),
        certManager=group(
            "Have cert-manager make the secret.",
            enabled=flag("Make a Certificate."),
            issuerRef=_issuer(),
            dnsNames=items("Names in the certificate.", {"type": "string"}),
        ),
        test=group(
            "How `helm test` checks the certificate; with mutual it shows the secret's own.",
            caKey=text("Key in the secret of the authority that signed; empty takes well-known authorities."),
            serverName=text("Name in the certificate; empty takes the first of dnsNames, or the service's name."),
        ),
    )


def _issuer() -> Schema:
    return group("Who signs.", name=text("Name of the issuer."), kind=one_of("Its kind.", "Issuer", "ClusterIssuer"))


def _redis() -> Schema:
    return group(
        "The store in which nodes register: the bundled one or an external one.",
        bundled=group(
            "Valkey, one pod with a volume.",
            enabled=flag("Run it."),
            image=image("Its image."),
            passwordKey=text("Key in auth.existingSecret of its password: letters and digits."),
            persistence=group(
                "Its volume.",
                enabled=flag("A claim; else what it holds goes with the pod, and nodes write themselves in again."),
                size=quantity("Its size."),
                storageClassName=text("Storage class; empty takes the cluster's default."),
            ),
            resources=resources(),
            nodeSelector=texts("Labels that its machine must have."),
            tolerations=items("Taints that do not keep it away."),
        ),
        external=group(
            "A store that is there.",
            url=text("URL without a password.", pattern=r"^$|^(redis|rediss)(\+sentinel)?://[^\s]+$"),
            existingSecret=text("Secret that holds the whole URL, password included."),
            urlKey=text("Key in that secret."),
        ),
    )


def _router() -> Schema:
    return group(
        "The routers.",
        image=image("The router's image."),
        replicas=whole("Routers, where autoscaling is off.", 1),
        server=ref("server"),
        config=ref("router"),
        **drain("router"),
        resources=resources(),
        autoscaling=group(
            "Number of routers by load.",
            enabled=flag("Make a HorizontalPodAutoscaler."),
            minReplicas=whole("Never fewer.", 1),
            maxReplicas=whole("Never more.", 1),
            targetCPUUtilizationPercentage=whole("CPU, of what is requested.", 1, 1000),
            targetRequestsInFlight=whole("Requests in flight for each router, by a metrics adapter; 0 is off."),
        ),
        service=group(
            "How clients reach the routers.",
            type=one_of("Kind of service.", "ClusterIP", "NodePort", "LoadBalancer"),
            httpPort=whole("Port for HTTP clients.", 1, 65535),
            grpcPort=whole("Port for gRPC clients.", 1, 65535),
            annotations=texts("Annotations of the service."),
            loadBalancerSourceRanges=items("Networks that may come in.", {"type": "string"}),
        ),
        ingress=group(
            "An Ingress for HTTP, one for gRPC.",
            enabled=flag("Make them."),
            className=text("Ingress class."),
            host=text("Host name for HTTP; empty makes none."),
            grpcHost=text("Host name for gRPC; empty makes none."),
            annotations=texts("Annotations of both."),
            grpcAnnotations=texts("More annotations of the one for gRPC."),
            tlsSecretName=text("Secret with the certificate of the hosts."),
        ),
        gateway=group(
            "An HTTPRoute of the Gateway API, and a GRPCRoute where gRPC has host names of its own.",
            enabled=flag("Make them."),
            parentRefs=items("Gateways."),
            hostnames=items("Host names; empty takes every one.", {"type": "string"}),
            grpcHostnames=items("Host names for gRPC alone; empty has it under hostnames.", {"type": "string"}),
        ),
        topologyKeys=items("Spread routers over these labels of machines.", {"type": "string"}),
        **placement(),
    )


def _metrics() -> Schema:
    return group(
        "For the Prometheus operator and Grafana.",
        serviceMonitor=group(
            "ServiceMonitors of routers and nodes.",
            enabled=flag("Make them."),
            interval=text("Time between two scrapes.", pattern="^[0-9]+(ms|s|m)$"),
            labels=texts("Labels that your Prometheus selects by."),
        ),
        prometheusRule=group("Alerts.", enabled=flag("Make them."), labels=texts("Labels that Prometheus selects by.")),
        dashboard=group(
            "A ConfigMap with the dashboard, for Grafana's sidecar.",
            enabled=flag("Make it."),
            labels=texts("Labels that the sidecar selects by."),
            annotations=texts("Annotations, for a folder."),
        ),
    )


def _loadtest() -> Schema:
    return group(
        "A load test by locust: a master with a web page, and workers.",
        enabled=flag("Run it."),
        image=image("The load test's image."),
        workers=whole("Processes that make the load, and one more in each for gRPC.", 1, 1000),
        host=text("URL to load; empty is this release's routers.", pattern=r"^$|^https?://[^\s/]+$"),
        args=items("Options of locust and of ours for the master.", {"type": "string"}),
        apiKeys=group(
            "API keys of the load, in plain text, one a line.",
            existingSecret=text("Secret that holds them; empty sends none."),
            key=text("Key in that secret."),
        ),
        ca=group(
            "Certificate that signed the routers', where they speak TLS.",
            existingSecret=text("Secret that holds it; empty takes the usual authorities."),
            key=text("Key in that secret."),
        ),
        resources=resources(),
        **placement(),
    )
