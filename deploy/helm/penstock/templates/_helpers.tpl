{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "penstock.name" -}}
{{- if contains "penstock" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-penstock{{ end -}}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "penstock.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "penstock.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{- /* Whether a pool has the hand that is asked for: dict "root" . "hand" "hpa". */ -}}
{{- define "penstock.hand" -}}
{{- $hand := .hand -}}
{{- range .root.Values.pools }}{{ if eq (dig "scale" "hand" "auto" .) $hand }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* The resource of a target and its API group, as "group/resource". */ -}}
{{- define "penstock.resource" -}}
{{- $kind := .kind | default "Deployment" -}}
{{- if .resource }}{{ $parts := splitn "." 2 .resource }}{{ $parts._1 }}/{{ $parts._0 }}
{{- else if eq $kind "Deployment" }}apps/deployments
{{- else if eq $kind "StatefulSet" }}apps/statefulsets
{{- else if eq $kind "LeaderWorkerSet" }}leaderworkerset.x-k8s.io/leaderworkersets
{{- else }}{{ fail (printf "scale.target.kind %s: say its scale.target.resource, as plural.group" $kind) }}{{ end -}}
{{- end }}

{{- /* The configuration file: what the chart knows, and .Values.config over it. */ -}}
{{- define "penstock.config" -}}
{{- $name := include "penstock.name" . -}}
{{- $listen := dict "http" "0.0.0.0:8080" "admin" "127.0.0.1:9900" "prometheus" "0.0.0.0:9901" -}}
{{- if .Values.epp.enabled }}{{ $_ := set $listen "epp" "0.0.0.0:9002" }}{{ end -}}
{{- if include "penstock.hand" (dict "root" . "hand" "hpa") }}{{ $_ := set $listen "metrics" "0.0.0.0:6443" }}{{ end -}}
{{- if include "penstock.hand" (dict "root" . "hand" "keda") }}{{ $_ := set $listen "keda" "0.0.0.0:9903" }}{{ $_ := set $listen "kedaPlaintext" true }}{{ end -}}
{{- $auth := dict -}}
{{- if .Values.auth.keysSecret }}{{ $_ := set $auth "keysFile" (printf "/etc/penstock/keys/%s" .Values.auth.keysKey) }}{{ end -}}
{{- if .Values.auth.jwt }}{{ $_ := set $auth "jwt" .Values.auth.jwt }}{{ end -}}
{{- if not $auth }}{{ fail "the gateway needs auth.keysSecret or auth.jwt: it refuses to listen beyond loopback without" }}{{ end -}}
{{- $pools := list -}}
{{- range .Values.pools -}}
{{- $p := deepCopy . -}}
{{- if dig "scale" "target" "resource" "" $p }}{{ $_ := unset $p.scale.target "resource" }}{{ end -}}
{{- $pools = append $pools $p -}}
{{- end -}}
{{- $c := dict "listen" $listen "auth" $auth "pools" $pools -}}
{{- $_ := set $c "kubernetes" (dict "namespace" .Release.Namespace "name" (printf "%s-scaler" $name) "service" (printf "%s/%s-metrics" .Release.Namespace $name)) -}}
{{- if .Values.tls.secret }}{{ $_ := set $c "tls" (dict "cert" "/etc/penstock/tls/tls.crt" "key" "/etc/penstock/tls/tls.key") }}{{ end -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- $_ := set $c "share" (dict "listen" "0.0.0.0:9902" "peers" (printf "dns:%s-peers.%s.svc:9902" $name .Release.Namespace) "secretFile" "/etc/penstock/share/secret") -}}
{{- end -}}
{{- toYaml (mergeOverwrite $c (deepCopy .Values.config)) -}}
{{- end }}

{{- /* A binding of the service account: root, kind and name of the role in ref, name, namespace ("" for a ClusterRoleBinding). */ -}}
{{- define "penstock.binding" }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if .namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "penstock.labels" .root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ .kind }}, name: "{{ .ref }}"}
subjects:
  - {kind: ServiceAccount, name: {{ include "penstock.account" .root }}, namespace: {{ .root.Release.Namespace }}}
{{- end }}
