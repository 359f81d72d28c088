{{- define "laya.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of everything; takes (dict "root" $ "component" "router"). */}}
{{- define "laya.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: laya
{{ include "laya.selector" . }}
{{- end -}}

{{/* Labels of pods: no versions in them, or every new chart would start every model anew. */}}
{{- define "laya.podLabels" -}}
app.kubernetes.io/part-of: laya
{{ include "laya.selector" . }}
{{- end -}}

{{/* What selectors go by: never changes within a release. */}}
{{- define "laya.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
laya/model: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "laya.image" -}}
{{- $suffix := default "" .suffix -}}
{{- printf "%s:%s" .image.repository (default (printf "%s%s" .root.Chart.AppVersion $suffix) .image.tag) -}}
{{- end -}}

{{- define "laya.podSecurity" -}}
{{- include "laya.userSecurity" (dict "root" . "user" 10001) -}}
{{- end -}}

{{/* Takes (dict "root" $ "user" 10001). With assignedUser the cluster chooses user and groups. */}}
{{- define "laya.userSecurity" -}}
runAsNonRoot: true
{{- if not .root.Values.assignedUser }}
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The number of pods that an autoscaler has set: without it an upgrade would go back to one. Takes (dict "root" $ "kind" … "name" …). */}}
{{- define "laya.liveReplicas" -}}
{{- $live := lookup "apps/v1" .kind .root.Release.Namespace .name -}}
{{- with dig "spec" "replicas" "" $live }}
replicas: {{ . }}
{{- end }}
{{- end -}}

{{- define "laya.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Secrets of routers and nodes, as environment: they stand in no ConfigMap. */}}
{{- define "laya.secretEnv" -}}
{{- if .Values.auth.existingSecret }}
- name: LAYA_SERVER__CLUSTER_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.auth.existingSecret }}, key: {{ .Values.auth.clusterTokenKey }}}}
{{- end }}
{{- if eq .Values.discovery "redis" }}
{{- if .Values.redis.bundled.enabled }}
{{- if .Values.auth.existingSecret }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.auth.existingSecret }}, key: {{ .Values.redis.bundled.passwordKey }}}}
- name: LAYA_SERVER__REDIS
  value: redis://:$(REDIS_PASSWORD)@{{ include "laya.fullname" . }}-store:6379/0
{{- else }}
- name: LAYA_SERVER__REDIS
  value: redis://{{ include "laya.fullname" . }}-store:6379/0
{{- end }}
{{- else if .Values.redis.external.existingSecret }}
- name: LAYA_SERVER__REDIS
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.external.existingSecret }}, key: {{ .Values.redis.external.urlKey }}}}
{{- else }}
- name: LAYA_SERVER__REDIS
  value: {{ include "laya.storeUrl" . | quote }}
{{- end }}
{{- else if and (eq .Values.discovery "consul") .Values.consul.existingSecret }}
- name: LAYA_SERVER__CONSUL__TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.consul.existingSecret }}, key: {{ .Values.consul.tokenKey }}}}
{{- end }}
{{- end -}}

{{/* The external store's URL, with the authorities that sign it. */}}
{{- define "laya.storeUrl" -}}
{{- $url := .Values.redis.external.url -}}
{{- if and .Values.ca.existingSecret (hasPrefix "rediss" $url) (not (contains "ssl_ca_certs=" $url)) -}}
{{- printf "%s%sssl_ca_certs=/etc/laya/ca/ca.crt" $url (ternary "&" "?" (contains "?" $url)) -}}
{{- else -}}
{{- $url -}}
{{- end -}}
{{- end -}}

{{- define "laya.server" -}}
log_level: {{ .Values.logging.level }}
log_format: {{ .Values.logging.format }}
access_log: {{ .Values.logging.accessLog }}
cluster: {{ .Values.cluster | quote }}
{{- if .Values.insecure }}
insecure: true
{{- end }}
{{- if eq .Values.discovery "consul" }}
{{- $consul := omit .Values.consul "existingSecret" "tokenKey" }}
{{- if and .Values.ca.existingSecret (hasPrefix "https:" .Values.consul.address) }}{{ $_ := set $consul "ca_file" "/etc/laya/ca/ca.crt" }}{{ end }}
consul: {{ $consul | toJson }}
{{- end }}
{{- end -}}

{{/* The section `tracing` of a configuration file, empty where no endpoint is set. */}}
{{- define "laya.tracing" -}}
{{- if .Values.tracing.config.endpoint -}}
{{- $tracing := deepCopy .Values.tracing.config -}}
{{- if .Values.tracing.headersSecret }}{{ $_ := set $tracing "headers_file" "/etc/laya/tracing/headers" }}{{ end -}}
{{- if and .Values.ca.existingSecret (hasPrefix "https:" $tracing.endpoint) (not $tracing.ca_file) }}{{ $_ := set $tracing "ca_file" "/etc/laya/ca/ca.crt" }}{{ end -}}
{{- dict "tracing" $tracing | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "laya.filesMount" -}}
{{- if .Values.ca.existingSecret }}
- {name: ca, mountPath: /etc/laya/ca, readOnly: true}
{{- end }}
{{- if and .Values.tracing.config.endpoint .Values.tracing.headersSecret }}
- {name: tracing, mountPath: /etc/laya/tracing, readOnly: true}
{{- end }}
{{- end -}}

{{- define "laya.filesVolume" -}}
{{- with .Values.ca.existingSecret }}
- name: ca
  secret: {secretName: {{ . | quote }}, defaultMode: 0440, items: [{key: {{ $.Values.ca.key | quote }}, path: ca.crt}]}
{{- end }}
{{- if and .Values.tracing.config.endpoint .Values.tracing.headersSecret }}
- name: tracing
  secret:
    secretName: {{ .Values.tracing.headersSecret }}
    defaultMode: 0440
    items: [{key: headers, path: headers}]
{{- end }}
{{- end -}}

{{/* The secret with the certificate of nodes, and of routers towards them. */}}
{{- define "laya.nodeTlsSecret" -}}
{{- if .Values.nodeTls.certManager.enabled -}}
{{- printf "%s-node-tls" (include "laya.fullname" .) -}}
{{- else -}}
{{- .Values.nodeTls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* The secret with the public port's certificate. */}}
{{- define "laya.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{- printf "%s-tls" (include "laya.fullname" .) -}}
{{- else -}}
{{- .Values.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* Seconds that the slowest model may take to start, and ten minutes more. */}}
{{- define "laya.slowestStart" -}}
{{- $most := 0 -}}
{{- range .Values.models -}}
{{- $most = max $most (default $.Values.nodeDefaults.startupSeconds .startupSeconds) -}}
{{- end -}}
{{- add $most 600 -}}
{{- end -}}

{{/* The name that `helm test` looks for in the routers' certificate; empty is that of the service. */}}
{{- define "laya.testServerName" -}}
{{- if .Values.tls.test.serverName -}}
{{- .Values.tls.test.serverName -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- first .Values.tls.certManager.dnsNames | replace "*" "test" -}}
{{- end -}}
{{- end -}}
