// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Version is what /version answers: the engine generation whose wire format this is.
const Version = "0.32.0+penstock.simulated"

// ServerHeader is the Server header of every answer.
const ServerHeader = "penstock-replica (simulated)"

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	post := []string{http.MethodPost}
	get := []string{http.MethodGet, http.MethodHead}
	for _, rt := range []struct {
		path    string
		methods []string
		serve   http.HandlerFunc
	}{
		{"/health", get, func(http.ResponseWriter, *http.Request) {}},
		{"/ping", append(post, get...), func(http.ResponseWriter, *http.Request) {}},
		{"/version", get, func(w http.ResponseWriter, _ *http.Request) { writeValue(w, map[string]string{"version": Version}) }},
		{"/load", get, func(w http.ResponseWriter, _ *http.Request) {
			writeValue(w, map[string]int{"server_load": s.InFlight()})
		}},
		{"/metrics", get, s.metricsPage},
		{"/kv_event_sources", get, s.kvEventSources},
		{"/v1/models", get, s.listModels},
		{"/v1/chat/completions", post, s.chat},
		{"/v1/completions", post, s.completions},
		{"/v1/responses", post, s.responses},
		{"/v1/messages", post, s.messages},
		{"/v1/messages/count_tokens", post, s.countTokens},
		{"/v1/embeddings", post, s.embeddings},
		{"/tokenize", post, s.tokenize},
		{"/sleep", post, s.goToSleep},
		{"/wake_up", post, s.wakeUp},
		{"/is_sleeping", get, s.isSleeping},
		{"/detokenize", post, s.detokenize},
		{"/v1/load_lora_adapter", post, s.loadLoRA},
		{"/v1/unload_lora_adapter", post, s.unloadLoRA},
	} {
		s.mux.HandleFunc(rt.path, func(w http.ResponseWriter, r *http.Request) {
			if !slices.Contains(rt.methods, r.Method) {
				w.Header().Set("Allow", strings.Join(rt.methods, ", "))
				writeJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
				return
			}
			if rt.path == "/metrics" {
				s.weather.holdMetrics(r)
			}
			rt.serve(w, r)
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
	})
}

// Handler serves the replica's API without a listener of its own.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.weather.hold(r)
		w.Header().Set("Server", ServerHeader)
		w.Header().Set("Vary", "Origin")
		sw := &statusWriter{ResponseWriter: w}
		began := time.Now()
		defer func() {
			_, route := s.mux.Handler(r)
			if route == "/" {
				route = "none"
			}
			if sw.status == 0 {
				sw.status = http.StatusOK
			}
			s.http.observe(route, r.Method, sw.status, r.ContentLength, sw.bytes, time.Since(began))
		}()
		s.mux.ServeHTTP(sw, r)
	})
}

// gate refuses work of a replica that drains or has been told to fail.
func (s *Server) gate() *apiError {
	s.mu.Lock()
	draining, asleep := s.draining, s.asleep > 0
	s.mu.Unlock()
	if draining {
		return errDraining
	}
	if asleep {
		return errAsleep
	}
	if status := s.weather.strike(); status != 0 {
		return &apiError{status, "InternalServerError", "", fmt.Sprintf("simulated failure with status %d", status)}
	}
	return nil
}
