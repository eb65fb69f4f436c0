{{- define "lull.labels" -}}
app.kubernetes.io/name: lull
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lull.selector" -}}
app.kubernetes.io/name: lull
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lull.name" -}}
{{- if contains "lull" .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- else -}}{{ .Release.Name | trunc 45 | trimSuffix "-" }}-lull{{- end -}}
{{- end }}

{{/* The capabilities of the agent, as a JSON list. */}}
{{- define "lull.capabilities" -}}
{{- $all := .Values.capabilities.reading -}}
{{- if .Values.steering -}}
{{- $all = concat $all .Values.capabilities.steering -}}
{{- /* It is for network cards, which are of the node's network namespace. */ -}}
{{- if .Values.hostNetwork -}}{{- $all = append $all "NET_ADMIN" -}}{{- end -}}
{{- end -}}
{{- uniq $all | toJson -}}
{{- end }}

{{/* Names of the page and of the receiver, as a JSON list. */}}
{{- define "lull.httpNames" -}}
{{- $names := .Values.httpNames | default list -}}
{{- if and .Values.otlp.enabled (.Values.otlp.service).enabled -}}
{{- $service := printf "%s-otlp.%s.svc" (include "lull.name" .) .Release.Namespace -}}
{{- $names = concat $names (list $service (printf "%s.cluster.local" $service)) -}}
{{- end -}}
{{- if and $names (contains "http_names" (.Values.extraAgentConfig | default "")) -}}
{{- fail "extraAgentConfig has http_names: write these names into httpNames" -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* A value as TOML has it: JSON of texts and numbers is TOML. */}}
{{- define "lull.config" -}}
[agent]
discover = "kubernetes"
state = "/run/lull"
record = "/var/lib/lull/runs"
http = "0.0.0.0:{{ .Values.page.port }}"
{{- if .Values.otlp.enabled }}
otlp = "0.0.0.0:{{ .Values.otlp.port }}"
{{- end }}
{{- $names := include "lull.httpNames" . }}
{{- if ne $names "[]" }}
http_names = {{ $names }}
{{- end }}
{{- if and (eq .Values.policy "unmanaged") (not (regexMatch "(?m)^ *(adaptive_)?epoch\\b" (.Values.extraAgentConfig | default ""))) }}
epoch = "2s"
{{- end }}
{{- with .Values.extraAgentConfig }}
{{ . }}
{{- end }}
{{- if .Values.otlp.enabled }}
[agent.otlp_access]
certificate = "/etc/lull-otlp/tls.crt"
key = "/etc/lull-otlp/tls.key"
token = "/etc/lull-otlp/token"
{{- end }}
[kubernetes]
cpu_manager = {{ .Values.kubernetes.cpuManager | default "unknown" | toJson }}
{{- with .Values.kubernetes.cgroupRoot }}
cgroup_root = {{ toJson . }}
{{- end }}
{{- with .Values.kubernetes.nri }}
nri = {{ toJson . }}
{{- end }}
[policy]
name = {{ toJson .Values.policy }}
{{- range $template := .Values.match }}
[[match]]
name = {{ toJson .name }}
class = {{ toJson .class }}
pods = {{ toJson .pods }}
{{- with .latency }}
latency = {{ toJson . }}
{{- end }}
{{- with .query }}
query = {{ toJson . }}
{{- end }}
{{- range $name := list "otlp" "prometheus" }}
{{- with index $template $name }}
{{ $name }} = { {{- range $index, $key := keys . | sortAlpha }}{{ if $index }},{{ end }} {{ $key }} = {{ index $template $name $key | toJson }}{{ end }} }
{{- end }}
{{- end }}
{{- with .most }}
most = {{ int . }}
{{- end }}
{{- with .threads }}
threads = {{ int . }}
{{- end }}
{{- with .ideal }}
ideal = {{ toJson . }}
{{- end }}
{{- with .solo }}
solo = {{ toJson . }}
{{- end }}
{{- with .objectives }}
objectives = [{{ range $index, $one := . }}{{ if $index }}, {{ end }}{{ range $key, $value := $one }}{ {{ toJson $key }} = {{ toJson $value }} }{{ end }}{{ end }}]
{{- end }}
{{- end }}
{{ .Values.extraConfig }}
{{- end }}
