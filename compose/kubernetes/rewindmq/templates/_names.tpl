{{/* The name of all objects: the release's. */}}
{{- define "rewindmq.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels that select the pods. Prometheus takes its job from the first one, and the alerts expect rewindmq. */}}
{{- define "rewindmq.selector" -}}
app.kubernetes.io/name: rewindmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rewindmq.labels" -}}
{{ include "rewindmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The ports for clients. */}}
{{- define "rewindmq.ports" -}}
{{- if .Values.tls.secret -}}
amqps: 5671
https: 15671
{{- else -}}
amqp: 5672
http: 15672
{{- end -}}
{{- end -}}

{{/* The broker's configuration file. JSON's values are TOML's. */}}
{{- define "rewindmq.settings" -}}
{{- $settings := dict "data" "/var/lib/rewindmq/data" "host" "0.0.0.0" "prometheus_port" 15692 -}}
{{- $_ := set $settings "default_user" .Values.firstUser.name -}}
{{- $_ := set $settings "default_pass_file" (printf "/etc/rewindmq/first-user/%s" .Values.firstUser.key) -}}
{{- with .Values.kafka.bootstrap -}}
{{- $_ := set $settings "kafka" . -}}
{{- $_ := set $settings "kafka_prefix" $.Values.kafka.prefix -}}
{{- end -}}
{{- if .Values.tls.secret -}}
{{- $_ := set $settings "tls_port" 5671 -}}
{{- $_ := set $settings "https_port" 15671 -}}
{{- $_ := set $settings "tls_cert" "/etc/rewindmq/tls/tls.crt" -}}
{{- $_ := set $settings "tls_key" "/etc/rewindmq/tls/tls.key" -}}
{{- end -}}
{{- range $name, $value := merge $settings .Values.settings }}
{{ $name }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
