// SPDX-License-Identifier: Apache-2.0

package console

import "net/http"

// Scrapes returns a handler for whoever collects metrics or asks for health: it may
// listen where the admin API must not. It answers GET and HEAD of /metrics, /healthz,
// /readyz and /replicas/{id}/metrics, changes nothing and shows no decision, no
// configuration and no address that is not in the metrics.
func (s *Server) Scrapes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /replicas/{id}/metrics", s.replicaMetrics)
	if s.o.Metrics != nil {
		mux.Handle("GET /metrics", s.o.Metrics)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}
