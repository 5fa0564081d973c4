// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"text/template"
	"time"
)

// Bootstrap describes the Envoy that stands in front of a pool.
type Bootstrap struct {
	Listen    string   // host:port for clients
	Admin     string   // host:port of Envoy's own admin; "" none
	Pickers   []string // host:port of the endpoint pickers; all of them are used
	PickerTLS bool     // the pickers speak TLS
	Endpoints []string // ip:port of the pool's members
	FailOpen  bool     // pick without us when we are down; else answer 500
	// NoResponseBodies asks for no response bodies: cheaper, and a picker that
	// dies cuts no answer, but it sees neither usage nor the end of a stream.
	NoResponseBodies bool
	// IdleTimeout of a stream bounds what hangs at a frozen picker: the request, and
	// once more the answer that says so. Default 5 m.
	IdleTimeout time.Duration
	Retries     int // over the ordered list of endpoints; default 2
}

// bootstrapTemplate holds only what makes the promises true; see the comments in
// the output, which are for the person who merges it into an own configuration.
var bootstrapTemplate = template.Must(template.New("envoy").Funcs(template.FuncMap{
	"host": func(hp string) string { return netip.MustParseAddrPort(hp).Addr().String() },
	"port": func(hp string) uint16 { return netip.MustParseAddrPort(hp).Port() },
}).Parse(`# Envoy in front of an inference pool with Penstock as its endpoint picker.
# Made by: penstock envoy bootstrap
{{- if .Admin}}
admin:
  address: {socket_address: {address: {{host .Admin}}, port_value: {{port .Admin}}}}
{{- end}}
static_resources:
  listeners:
  - name: inference
    address: {socket_address: {address: {{host .Listen}}, port_value: {{port .Listen}}}}
    per_connection_buffer_limit_bytes: 1048576  # as much of a body as one message to the picker may hold
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: inference
          codec_type: AUTO
          http_protocol_options: {enable_trailers: true}
          # A picker that hangs hangs the request: no other timeout acts in full duplex mode.
          stream_idle_timeout: {{.Idle}}s
          request_timeout: 0s
          # What a client sends here must never reach the picker or the load balancer.
          # It has to happen before ext_proc: removing it on the route removes the pick as well.
          early_header_mutation_extensions:
          - name: envoy.http.early_header_mutation.header_mutation
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations:
              - remove: x-gateway-destination-endpoint
              # ext_proc removes content-length before the route is chosen.
              - remove: x-body-length
              - append: {header: {key: x-body-length, value: "%REQ(content-length)%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
          route_config:
            name: inference
            request_headers_to_remove: [x-body-length]
            virtual_hosts:
            - name: inference
              domains: ["*"]
              request_body_buffer_limit: 33554432  # above the largest prompt, else a retry of a long one ends in 507
              routes:
              # Envoy doubles the body of a request that has trailers where its route has
              # a retry policy. A body of known length has none, so only those are tried
              # again at the next endpoint of the list.
              - match: {prefix: "/", headers: [{name: x-body-length, present_match: true}]}
                route: &again
                  cluster: pool
                  timeout: 0s
                  idle_timeout: {{.Idle}}s
                  retry_policy: {retry_on: "connect-failure,refused-stream,reset-before-request", num_retries: {{.Retries}}}
              - match: {prefix: "/", headers: [{name: ":method", string_match: {exact: GET}}]}
                route: *again
              - match: {prefix: "/"}
                route: {cluster: pool, timeout: 0s, idle_timeout: {{.Idle}}s}
          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service:
                envoy_grpc: {cluster_name: picker, authority: picker}
              # {{if .FailOpen}}FailOpen: with the picker down the pool's fallback policy picks.{{else}}FailClose: with the picker down requests get a 500.{{end}}
              failure_mode_allow: {{.FailOpen}}
              processing_mode:
                request_header_mode: SEND
                response_header_mode: SEND
                request_body_mode: FULL_DUPLEX_STREAMED
                response_body_mode: {{if .NoResponseBodies}}NONE{{else}}FULL_DUPLEX_STREAMED{{end}}
                request_trailer_mode: SEND
                response_trailer_mode: {{if .NoResponseBodies}}SKIP{{else}}SEND{{end}}
              message_timeout: 60s
              metadata_options:
                forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint]}
                receiving_namespaces: {untyped: [envoy.lb]}
              mutation_rules: {allow_all_routing: true}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: pool
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http_protocol_options: {enable_trailers: true}}
    circuit_breakers: {thresholds: [{max_connections: 40000, max_requests: 40000, max_pending_requests: 40000, max_retries: 1000}]}
    # override_host sends to the picked member, and to the next of the list when it
    # fails. Unlike ORIGINAL_DST it never leaves the members of the cluster.
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources:
            - metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}
            - header: x-gateway-destination-endpoint
            selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.least_request
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest
    load_assignment:
      cluster_name: pool
      endpoints:
      - lb_endpoints:
{{- range .Endpoints}}
        - endpoint: {address: {socket_address: {address: {{host .}}, port_value: {{port .}}}}}
{{- end}}
  - name: picker
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    # Without the health check and a panic threshold of 0 a request that has a body
    # fails with 500 while the picker is down, whatever the failure mode says.
    # Without the merge window of 0 a change of health takes up to a second more.
    common_lb_config: {healthy_panic_threshold: {value: 0}, update_merge_window: 0s}
    health_checks:
    - timeout: 1s
      interval: 1s
      no_traffic_interval: 1s
      unhealthy_threshold: 1
      healthy_threshold: 1
      grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}
{{- if .PickerTLS}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context: {alpn_protocols: [h2]}
{{- end}}
    circuit_breakers: {thresholds: [{max_connections: 40000, max_requests: 40000, max_pending_requests: 40000}]}
    load_assignment:
      cluster_name: picker
      endpoints:
      - lb_endpoints:
{{- range .Pickers}}
        - endpoint: {address: {socket_address: {address: {{host .}}, port_value: {{port .}}}}}
{{- end}}
`))

// YAML returns the Envoy configuration. It fails on an address that is not
// ip:port, which a static Envoy configuration needs.
func (b Bootstrap) YAML() ([]byte, error) {
	all := slices.Concat([]string{b.Listen}, b.Pickers, b.Endpoints)
	if b.Admin != "" {
		all = append(all, b.Admin)
	}
	for _, hp := range all {
		if _, err := netip.ParseAddrPort(hp); err != nil {
			return nil, fmt.Errorf("%q is not ip:port: %w", hp, err)
		}
	}
	if len(b.Endpoints) == 0 {
		return nil, fmt.Errorf("the pool has no endpoint")
	}
	if len(b.Pickers) == 0 {
		return nil, fmt.Errorf("there is no endpoint picker")
	}
	if b.IdleTimeout <= 0 {
		b.IdleTimeout = 5 * time.Minute
	}
	if b.Retries <= 0 {
		b.Retries = 2
	}
	var out bytes.Buffer
	err := bootstrapTemplate.Execute(&out, struct {
		Bootstrap
		Idle int
	}{b, int(b.IdleTimeout.Seconds())})
	return out.Bytes(), err
}
