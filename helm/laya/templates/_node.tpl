{{/* The configuration file of a node; takes (dict "root" $ "node" merged entry). */}}
{{- define "laya.nodeConfig" -}}
{{- $n := .node -}}
{{- $server := mergeOverwrite (include "laya.server" .root | fromYaml) (default dict $n.server) (dict "drain_timeout" $n.drainSeconds) -}}
{{- if .root.Values.nodeTls.enabled -}}
{{- $tls := dict "cert_file" "/etc/laya/tls/tls.crt" "key_file" "/etc/laya/tls/tls.key" -}}
{{- if .root.Values.nodeTls.mutual }}{{ $_ := set $tls "ca_file" "/etc/laya/tls/ca.crt" }}{{ end -}}
{{- $_ := set $server "tls" $tls -}}
{{- end -}}
{{- $config := dict "host" .root.Values.bindAddress "port" 9000 -}}
{{- $own := deepCopy (default dict $n.config) -}}
{{- if not $own.served_model_name }}{{ $_ := set $config "served_model_name" $n.name }}{{ end -}}
{{- if $n.source.sim -}}
{{- $_ := set $config "engine" "sim" -}}
{{- else if $n.source.hub -}}
{{- $_ := set $config "model" (ternary (printf "%s@%s" $n.source.hub $n.source.revision) $n.source.hub (not (empty $n.source.revision))) -}}
{{- if $n.source.downloadFirst }}{{ $_ := set $config "offline" true }}{{ end -}}
{{- else -}}
{{- $_ := set $config "model" (printf "/models/%s" (default "" $n.source.path) | trimSuffix "/") -}}
{{- $_ := set $config "offline" true -}}
{{- end -}}
{{- $args := deepCopy (default dict $n.engineArgs) -}}
{{- if and (gt (int $n.gpus) 1) (not (hasKey $args "tensor_parallel_size")) -}}
{{- $_ := set $args "tensor_parallel_size" (int $n.gpus) -}}
{{- end -}}
{{- if $args }}{{ $_ := set $config "engine_args" $args }}{{ end -}}
{{- mergeOverwrite (dict "server" $server "inference" (mergeOverwrite $own $config)) (include "laya.tracing" .root | fromYaml) | toYaml -}}
{{- end -}}

{{/* A node's probe by HTTP, or by `laya health` where only a client with a certificate is answered. */}}
{{- define "laya.nodeProbe" -}}
{{- if and .root.Values.nodeTls.enabled .root.Values.nodeTls.mutual -}}
exec: {command: [laya, health, --quiet{{ if .live }}, --live{{ end }}, "127.0.0.1:9000"]}
{{- else if .root.Values.nodeTls.enabled -}}
httpGet: {path: {{ ternary "/healthz" "/readyz" .live }}, port: grpc, scheme: HTTPS}
{{- else -}}
httpGet: {path: {{ ternary "/healthz" "/readyz" .live }}, port: grpc}
{{- end -}}
{{- end -}}

{{/* The pod of a node; takes (dict "root" $ "node" merged "name" resource name "who" label dict). */}}
{{- define "laya.nodePod" -}}
{{- $ := .root -}}
{{- $n := .node -}}
{{- $gpu := gt (int $n.gpus) 0 -}}
{{- $image := include "laya.image" (dict "root" $ "image" $n.image "suffix" (ternary "-sim" (ternary "-cuda" "-cpu" $gpu) (not (empty $n.source.sim)))) -}}
metadata:
  labels:
    {{- include "laya.podLabels" .who | nindent 4 }}
    {{- with $n.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    laya/config: {{ include "laya.nodeConfig" . | sha256sum | trunc 16 | quote }}
    {{- with $n.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "laya.fullname" $ }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # preStop, then the drain, then the engine's end: {{ $n.preStopSeconds }} + {{ $n.drainSeconds }} + {{ $n.graceMarginSeconds }} s.
  terminationGracePeriodSeconds: {{ add $n.preStopSeconds $n.drainSeconds $n.graceMarginSeconds }}
  securityContext: {{- include "laya.podSecurity" $ | nindent 4 }}
  {{- with $.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $n.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $n.source.hub $n.source.downloadFirst }}
  initContainers:
    # The download alone has the network's token, and its failures are its own.
    - name: download
      image: {{ $image }}
      imagePullPolicy: {{ $n.image.pullPolicy }}
      terminationMessagePolicy: FallbackToLogsOnError
      command: [hf, download, {{ $n.source.hub | quote }}{{ with $n.source.revision }}, --revision, {{ . | quote }}{{ end }}]
      env: {{- include "laya.hfToken" . | trim | nindent 8 }}
        - {name: HF_HOME, value: /var/lib/laya/huggingface}
      resources:
        requests: {cpu: 100m, memory: 256Mi}
        limits: {memory: 4Gi}
      securityContext: {{- include "laya.containerSecurity" $ | nindent 8 }}
      volumeMounts:
        - {name: home, mountPath: /var/lib/laya}
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    - name: node
      image: {{ $image }}
      imagePullPolicy: {{ $n.image.pullPolicy }}
      args: [--config, /etc/laya/laya.yaml]
      # `kubectl describe pod` shows the line with which it ended.
      terminationMessagePolicy: FallbackToLogsOnError
      env: {{- include "laya.secretEnv" $ | trim | nindent 8 }}
        {{- if $.Values.assignedUser }}
        # torch asks for the user's name, which such a user has not.
        - {name: USER, value: laya}
        {{- end }}
        - name: LAYA_INFERENCE__NODE_ID
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- if $.Values.nodeTls.enabled }}
        # By name, because the certificate names no address.
        - name: LAYA_INFERENCE__ADVERTISE
          value: $(LAYA_INFERENCE__NODE_ID).{{ .name }}.{{ $.Release.Namespace }}.svc.{{ $.Values.clusterDomain }}:9000
        {{- if $.Values.nodeTls.mutual }}
        - {name: LAYA_HEALTH_CA, value: /etc/laya/tls/ca.crt}
        - {name: LAYA_HEALTH_CERT, value: /etc/laya/tls/tls.crt}
        - {name: LAYA_HEALTH_CERT_KEY, value: /etc/laya/tls/tls.key}
        - {name: LAYA_HEALTH_SERVER_NAME, value: probe.{{ .name }}.{{ $.Release.Namespace }}.svc.{{ $.Values.clusterDomain }}}
        {{- end }}
        {{- end }}
        {{- if not $n.source.downloadFirst }}
        {{- with include "laya.hfToken" . | trim }}{{ . | nindent 8 }}{{ end }}
        {{- end }}
        {{- with $n.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: grpc, containerPort: 9000}
      # Until the model is loaded, however long that takes, up to {{ $n.startupSeconds }} s.
      startupProbe:
        {{- include "laya.nodeProbe" (dict "root" $ "live" false) | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 8
        failureThreshold: {{ div (add $n.startupSeconds 9) 10 }}
      readinessProbe:
        {{- include "laya.nodeProbe" (dict "root" $ "live" false) | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 4
        failureThreshold: 2
      # Only for a process that has stopped: a busy node answers within milliseconds, a dead engine ends the process.
      livenessProbe:
        {{- include "laya.nodeProbe" (dict "root" $ "live" true) | nindent 8 }}
        periodSeconds: 20
        timeoutSeconds: 15
        failureThreshold: 9
      lifecycle:
        preStop: {exec: {command: [sleep, {{ $n.preStopSeconds | quote }}]}}
      {{- $resources := deepCopy $n.resources }}
      {{- if $gpu }}
      {{- $_ := set $resources "limits" (mergeOverwrite (default dict $resources.limits) (dict $n.gpuResource (int $n.gpus))) }}
      {{- end }}
      resources: {{- toYaml $resources | nindent 8 }}
      securityContext: {{- include "laya.containerSecurity" $ | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/laya/laya.yaml, subPath: laya.yaml, readOnly: true}
        - {name: home, mountPath: /var/lib/laya}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- if or $n.source.claim $n.source.hostPath }}
        - {name: models, mountPath: /models, readOnly: true}
        {{- end }}
        {{- if $.Values.nodeTls.enabled }}
        - {name: tls, mountPath: /etc/laya/tls, readOnly: true}
        {{- end }}
        {{- with include "laya.filesMount" $ | trim }}{{ . | nindent 8 }}{{ end }}
  volumes:
    - name: config
      configMap: {name: {{ .name }}}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    # Shared memory of the engine's processes; it counts towards the container's memory.
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $n.shmSize }}}
    {{- if $n.cache.hostPath }}
    - name: home
      hostPath: {path: {{ $n.cache.hostPath }}, type: DirectoryOrCreate}
    {{- else if not $n.cache.persistent }}
    - name: home
      emptyDir: {sizeLimit: {{ $n.cache.size }}}
    {{- end }}
    {{- with $n.source.claim }}
    - name: models
      persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
    {{- end }}
    {{- with $n.source.hostPath }}
    - name: models
      hostPath: {path: {{ . }}, type: Directory}
    {{- end }}
    {{- if $.Values.nodeTls.enabled }}
    - name: tls
      secret: {secretName: {{ include "laya.nodeTlsSecret" $ }}, defaultMode: 0440}
    {{- end }}
    {{- with include "laya.filesVolume" $ | trim }}{{ . | nindent 4 }}{{ end }}
  {{- with $n.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $n.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $n.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "laya.hfToken" -}}
{{- with .node.hfToken.existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.node.hfToken.key }}}}
{{- end }}
{{- end -}}
