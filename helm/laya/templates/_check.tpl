{{/* What the schema cannot say: values that contradict each other. Each message says where, what and what to do. */}}
{{- define "laya.check" -}}
{{- if and (not .Values.auth.existingSecret) (not .Values.insecure) -}}
{{- fail "auth.existingSecret: names no secret, and routers and nodes are reachable by others; make one (docs/kubernetes.md has the commands) or set insecure: true" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) (not .Values.tls.certManager.enabled) -}}
{{- fail "tls: is enabled and has no certificate; set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (or (not .Values.tls.certManager.issuerRef.name) (not .Values.tls.certManager.dnsNames)) -}}
{{- fail "tls.certManager: needs issuerRef.name and at least one of dnsNames" -}}
{{- end -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls: existingSecret and certManager.enabled are both set; keep one" -}}
{{- end -}}
{{- $own := .Values.nodeTls.certManager -}}
{{- if and .Values.nodeTls.enabled (not .Values.nodeTls.existingSecret) (not $own.enabled) -}}
{{- fail "nodeTls.existingSecret: names no secret with tls.crt, tls.key and ca.crt; make one, or set nodeTls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.nodeTls.existingSecret $own.enabled -}}
{{- fail "nodeTls: existingSecret and certManager.enabled are both set; keep one" -}}
{{- end -}}
{{- if and $own.enabled (not $own.issuerRef.name) -}}
{{- fail "nodeTls.certManager.issuerRef.name: names no issuer; it has to be one that puts its ca.crt into the secret" -}}
{{- end -}}
{{- range $what, $tls := dict "tls" .Values.tls "nodeTls" .Values.nodeTls -}}
{{- if and (not $tls.enabled) (or $tls.existingSecret $tls.certManager.enabled $tls.mutual) -}}
{{- fail (printf "%s: has settings and is not enabled, so all would go in clear; set %s.enabled: true, or leave them out" $what $what) -}}
{{- end -}}
{{- end -}}
{{- $external := or .Values.redis.external.url .Values.redis.external.existingSecret -}}
{{- if eq .Values.discovery "redis" -}}
{{- if and .Values.redis.bundled.enabled $external -}}
{{- fail "redis: bundled.enabled and external are both set; keep one" -}}
{{- end -}}
{{- if and (not .Values.redis.bundled.enabled) (not $external) -}}
{{- fail "redis: discovery is redis and there is none; set redis.bundled.enabled, redis.external.url or redis.external.existingSecret" -}}
{{- end -}}
{{- if and .Values.redis.external.url .Values.redis.external.existingSecret -}}
{{- fail "redis.external: url and existingSecret are both set; keep one" -}}
{{- end -}}
{{- else if $external -}}
{{- fail (printf "redis.external: is set, and discovery is %s; keep one source of nodes" .Values.discovery) -}}
{{- end -}}
{{- if and (eq .Values.discovery "consul") (not .Values.consul.address) -}}
{{- fail "consul.address: discovery is consul and no agent is named" -}}
{{- end -}}
{{- if and (ne .Values.discovery "consul") .Values.consul.address -}}
{{- fail (printf "consul.address: is set, and discovery is %s; keep one source of nodes" .Values.discovery) -}}
{{- end -}}
{{- if and (eq .Values.discovery "consul") .Values.networkPolicy.enabled (not .Values.networkPolicy.consul) (not (and .Values.nodeTls.enabled .Values.nodeTls.mutual)) -}}
{{- fail "networkPolicy.consul: names no peer, so Consul's agent could not check the nodes and no router would find one; name the agent's pods or addresses" -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $i, $m := .Values.models -}}
{{- if hasKey $seen $m.name -}}
{{- fail (printf "models[%d].name: %s stands there twice; each entry needs a name of its own" $i $m.name) -}}
{{- end -}}
{{- $_ := set $seen $m.name true -}}
{{- $name := printf "%s-%s" (include "laya.fullname" $) $m.name -}}
{{- if has $m.name (list "router" "router-each" "store" "dashboard" "loadtest-master" "loadtest-worker") -}}
{{- fail (printf "models[%d].name: %s is the name of another part of the chart; choose another and set config.served_model_name to what clients ask for" $i $m.name) -}}
{{- end -}}
{{- $node := mergeOverwrite (deepCopy $.Values.nodeDefaults) (deepCopy $m) -}}
{{- if and (eq $node.kind "StatefulSet") (gt (len $name) 52) -}}
{{- fail (printf "models[%d].name: %s has %d characters, and Kubernetes makes no pods for a StatefulSet with more than 52; shorten it or set fullnameOverride, and config.served_model_name to what clients ask for" $i $name (len $name)) -}}
{{- end -}}
{{- range $part, $amounts := pick $node.resources "limits" "requests" -}}
{{- if and (hasKey $amounts $node.gpuResource) (ne (int (get $amounts $node.gpuResource)) (int $node.gpus)) -}}
{{- fail (printf "models[%d].resources.%s: has %s, which gpus sets; set gpus: %v and leave it out" $i $part $node.gpuResource (get $amounts $node.gpuResource)) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.nodeTls.enabled (eq $node.kind "Deployment") -}}
{{- fail (printf "models[%d].kind: nodeTls needs names for pods, which only a StatefulSet has" $i) -}}
{{- end -}}
{{- if and $node.cache.persistent (eq $node.kind "Deployment") -}}
{{- fail (printf "models[%d].cache.persistent: a Deployment's pods cannot have a claim each; use kind: StatefulSet, or source.claim" $i) -}}
{{- end -}}
{{- if and $node.cache.persistent $node.cache.hostPath -}}
{{- fail (printf "models[%d].cache: persistent and hostPath are both set; keep one" $i) -}}
{{- end -}}
{{- if and $node.autoscaling.enabled (gt (int $node.autoscaling.minReplicas) (int $node.autoscaling.maxReplicas)) -}}
{{- fail (printf "models[%d].autoscaling: minReplicas is above maxReplicas" $i) -}}
{{- end -}}
{{- if and $node.autoscaling.enabled (eq $node.autoscaling.kind "keda") (not $node.autoscaling.prometheusAddress) -}}
{{- fail (printf "models[%d].autoscaling.prometheusAddress: KEDA reads the nodes' metrics from Prometheus; name it, or use kind: hpa" $i) -}}
{{- end -}}
{{- end -}}
{{- $r := .Values.router.autoscaling -}}
{{- if and $r.enabled (gt (int $r.minReplicas) (int $r.maxReplicas)) -}}
{{- fail "router.autoscaling: minReplicas is above maxReplicas" -}}
{{- end -}}
{{- $l := .Values.loadtest -}}
{{- if and $l.enabled .Values.auth.existingSecret (not $l.host) (not $l.apiKeys.existingSecret) -}}
{{- fail "loadtest.apiKeys.existingSecret: the routers want API keys and the load has none; make a secret of keys, one a line (docs/loadtest.md)" -}}
{{- end -}}
{{- if and .Values.router.gateway.enabled (not .Values.router.gateway.parentRefs) -}}
{{- fail "router.gateway.parentRefs: names no Gateway" -}}
{{- end -}}
{{- $g := .Values.router.gateway -}}
{{- if and $g.enabled $g.grpcHostnames -}}
{{- if not $g.hostnames -}}
{{- fail "router.gateway.hostnames: is empty, which is every name, grpcHostnames among them, and a gateway takes one kind of route for a name; name those for HTTP" -}}
{{- end -}}
{{- range $g.grpcHostnames -}}
{{- if has . $g.hostnames -}}
{{- fail (printf "router.gateway.grpcHostnames: %s stands in hostnames too, and a gateway takes one kind of route for a name; leave grpcHostnames empty to have both there" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.router.ingress.enabled .Values.router.ingress.host (eq .Values.router.ingress.host .Values.router.ingress.grpcHost) -}}
{{- fail "router.ingress: host and grpcHost are the same, and an ingress has one backend for a name; give gRPC another" -}}
{{- end -}}
{{- if and .Values.router.ingress.enabled (not .Values.router.ingress.host) (not .Values.router.ingress.grpcHost) -}}
{{- fail "router.ingress: names neither host nor grpcHost" -}}
{{- end -}}
{{- end -}}
