{{- define "headrace.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The Secret with passwords, and the one with credentials of the store. */}}
{{- define "headrace.passwords" -}}
{{ .Values.users.existingSecret | default (printf "%s-users" (include "headrace.name" .)) }}
{{- end }}

{{- define "headrace.credentials" -}}
{{ .Values.store.existingSecret | default (printf "%s-store" (include "headrace.name" .)) }}
{{- end }}

{{/* The ports for clients: name and number. */}}
{{- define "headrace.ports" -}}
amqp: 5672
mqtt: 1883
ws: 8083
http: 15672
{{- if .Values.tls.secretName }}
amqps: 5671
mqtts: 8883
https: 15671
{{- end }}
{{- end }}

{{- define "headrace.pod" -}}
metadata:
  labels: {{- include "headrace.selector" . | nindent 4 }}
  annotations:
    checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
    checksum/secret: {{ include (print $.Template.BasePath "/secret.yaml") . | sha256sum }}
spec:
  serviceAccountName: {{ include "headrace.name" . }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: headrace
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/headrace/headrace.yaml]
      {{- if eq .Values.mode "store" }}
      env:
        - name: HEADRACE_CLUSTER_NODE
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: HEADRACE_CLUSTER_ADVERTISE
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- if or .Values.store.existingSecret .Values.store.credentials }}
      envFrom:
        - secretRef: {name: {{ include "headrace.credentials" . }}}
      {{- end }}
      {{- end }}
      ports:
        {{- range $name, $port := include "headrace.ports" . | fromYaml }}
        - {name: {{ $name }}, containerPort: {{ $port }}}
        {{- end }}
        {{- if eq .Values.mode "store" }}
        - {name: cluster, containerPort: 25672}
        {{- end }}
      # Opening a large directory or store takes time: five minutes are allowed.
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /ready, port: http}
        periodSeconds: 5
        timeoutSeconds: 3
      {{- if .Values.users.list }}
      lifecycle:
        postStart:
          exec: {command: [sh, /etc/headrace/add-users.sh, /etc/headrace/users.txt, /run/headrace/users]}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/headrace, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if eq .Values.mode "volume" }}
        - {name: data, mountPath: /var/lib/headrace}
        {{- end }}
        {{- if .Values.users.list }}
        - {name: users, mountPath: /run/headrace/users, readOnly: true}
        {{- end }}
        {{- if .Values.tls.secretName }}
        - {name: tls, mountPath: /run/headrace/tls, readOnly: true}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "headrace.name" . }}}
    - name: tmp
      emptyDir: {}
    {{- if .Values.users.list }}
    - name: users
      secret: {secretName: {{ include "headrace.passwords" . }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.tls.secretName }}
    - name: tls
      secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.affinity }}
  affinity: {{- toYaml .Values.affinity | nindent 4 }}
  {{- else if eq .Values.mode "store" }}
  # Nodes on several machines, where there are several.
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels: {{- include "headrace.selector" . | nindent 16 }}
  {{- end }}
{{- end }}
