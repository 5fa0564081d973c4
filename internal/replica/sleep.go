// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
)

// The sleep mode of the real server, which has it where it was started with
// --enable-sleep-mode and its development endpoints are on: level 1 moves the weights
// off the accelerator, level 2 forgets them, too. The KV cache is lost in both.

// errAsleep answers requests to a server that sleeps; the real one does not answer
// them in a useful way either.
var errAsleep = &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "", "the engine sleeps; POST /wake_up first"}

// goToSleep is POST /sleep?level=1.
func (s *Server) goToSleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if r.URL.Query().Get("level") == "2" {
		level = 2
	}
	s.setSleep(w, level)
}

// wakeUp is POST /wake_up.
func (s *Server) wakeUp(w http.ResponseWriter, _ *http.Request) { s.setSleep(w, 0) }

func (s *Server) setSleep(w http.ResponseWriter, level int) {
	if !s.opt.SleepMode {
		writeJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		return
	}
	s.mu.Lock()
	if level > 0 && s.asleep == 0 {
		for _, r := range s.ranks {
			r.core.Reset(s.now()) // what the cache held is gone
		}
	}
	s.asleep = level
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
}

// isSleeping is GET /is_sleeping.
func (s *Server) isSleeping(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	asleep := s.asleep > 0
	s.mu.Unlock()
	writeValue(w, map[string]bool{"is_sleeping": asleep})
}

// sleepState is the value of each state of vllm:engine_sleep_state.
func (s *Server) sleepState() (awake, offloaded, discarded float64) {
	switch s.asleep {
	case 1:
		return 0, 1, 0
	case 2:
		return 0, 1, 1
	}
	return 1, 0, 0
}
