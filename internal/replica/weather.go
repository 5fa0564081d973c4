// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
)

// Faults is the weather of a replica: what tests and drills make go wrong. The zero
// value is a healthy replica.
type Faults struct {
	Hang         bool    `json:"hang"`             // nothing is answered, like a stopped process
	Stall        bool    `json:"stall"`            // HTTP answers, the engine stands still
	Slow         float64 `json:"slow"`             // the engine is so many times slower; 0 and 1 mean normal
	ErrorPercent float64 `json:"error_percent"`    // share of work that is refused, 0 to 100
	ErrorStatus  int     `json:"error_status"`     // with this status; 0 means 500
	DieAfter     int     `json:"die_after_tokens"` // connections break when an answer has so many tokens; 0: never
	NoMetrics    bool    `json:"no_metrics"`       // /metrics hangs
	KeepAliveMS  int     `json:"keep_alive_ms"`    // idle connections are closed after it; 0: as configured
}

func (f *Faults) check() error {
	switch {
	case !(f.Slow == 0 || f.Slow >= 1 && f.Slow <= 1e6):
		return fmt.Errorf("slow = %v, must be 0 or in [1; 1e6]", f.Slow)
	case !(f.ErrorPercent >= 0 && f.ErrorPercent <= 100):
		return fmt.Errorf("error_percent = %v, must be in [0; 100]", f.ErrorPercent)
	case f.ErrorStatus != 0 && (f.ErrorStatus < 400 || f.ErrorStatus > 599):
		return fmt.Errorf("error_status = %d, must be in [400; 599]", f.ErrorStatus)
	case f.DieAfter < 0 || f.KeepAliveMS < 0:
		return errors.New("die_after_tokens and keep_alive_ms must not be negative")
	}
	return nil
}

// weather is the part of the faults that handlers meet.
type weather struct {
	mu       sync.Mutex
	f        Faults
	thaw     chan struct{} // closed when the faults change
	debt     float64       // percent of errors owed
	dieAfter atomic.Int64
}

func (w *weather) init() { w.thaw = make(chan struct{}) }

func (w *weather) set(f Faults) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f = f
	w.debt = 0
	w.dieAfter.Store(int64(f.DieAfter))
	close(w.thaw)
	w.thaw = make(chan struct{})
}

// hold blocks a request while the replica hangs; one whose client leaves is aborted.
func (w *weather) hold(r *http.Request) { w.block(r, func(f *Faults) bool { return f.Hang }) }

func (w *weather) holdMetrics(r *http.Request) {
	w.block(r, func(f *Faults) bool { return f.NoMetrics })
}

func (w *weather) block(r *http.Request, cond func(*Faults) bool) {
	for {
		w.mu.Lock()
		held, thaw := cond(&w.f), w.thaw
		w.mu.Unlock()
		if !held {
			return
		}
		select {
		case <-thaw:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// strike returns the status that this request has to fail with; 0 for none. Failures
// are spread evenly, not drawn, so that a test can count them.
func (w *weather) strike() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.debt += w.f.ErrorPercent
	if w.debt < 100 {
		return 0
	}
	w.debt -= 100
	if w.f.ErrorStatus == 0 {
		return http.StatusInternalServerError
	}
	return w.f.ErrorStatus
}

// mangle breaks the connection of an answer that has n tokens where the weather says so.
func (s *Server) mangle(n int) {
	if die := int(s.weather.dieAfter.Load()); die > 0 && n >= die {
		panic(http.ErrAbortHandler)
	}
}

// Faults returns the weather.
func (s *Server) Faults() Faults {
	s.weather.mu.Lock()
	defer s.weather.mu.Unlock()
	return s.weather.f
}

// SetFaults changes the weather from now on.
func (s *Server) SetFaults(f Faults) error {
	if err := f.check(); err != nil {
		return err
	}
	rate := s.opt.Speed
	if f.Slow > 1 {
		rate /= f.Slow
	}
	if f.Hang || f.Stall {
		rate = 0
	}
	s.mu.Lock()
	s.clock.setRate(time.Now(), rate)
	s.mu.Unlock()
	keep := s.opt.KeepAlive
	if f.KeepAliveMS > 0 {
		keep = time.Duration(f.KeepAliveMS) * time.Millisecond
	}
	s.idle.set(keep)
	s.weather.set(f)
	s.poke()
	return nil
}

// FailLoRA makes loads of the named adapter fail with status and message; status 0
// makes them work again.
func (s *Server) FailLoRA(name string, status int, message string) {
	s.adapters.mu.Lock()
	defer s.adapters.mu.Unlock()
	if status == 0 {
		delete(s.adapters.errors, name)
		return
	}
	if s.adapters.errors == nil {
		s.adapters.errors = map[string]apiError{}
	}
	typ := "BadRequestError"
	switch status {
	case http.StatusNotFound:
		typ = "NotFoundError"
	case http.StatusBadRequest:
	default:
		typ = "InternalServerError"
	}
	s.adapters.errors[name] = apiError{status, typ, "", message}
}

// Restart is a restart in place, under the same address: connections break, the
// cache is cold, counters are zero, adapters that were loaded later are gone, and the
// port is closed for down.
func (s *Server) Restart(down time.Duration) error {
	s.closeListener(true)
	s.mu.Lock()
	for id, j := range s.jobs {
		j.lose()
		delete(s.jobs, id)
	}
	for _, r := range s.ranks {
		r.core.Reset(s.now())
		r.met.reset(&s.profile)
	}
	s.publish()
	s.born = time.Now().Add(down)
	s.mu.Unlock()
	s.adapters.reset(s.opt.LoRA, s.born)
	s.http.reset()
	s.poke()
	if !s.hadListener() {
		return nil
	}
	select {
	case <-time.After(down):
	case <-s.stop:
		return net.ErrClosed
	}
	return s.listenAgain()
}

// Kill closes the port and every connection at once and loses what was in flight, as
// if the process had died. Restart brings it back.
func (s *Server) Kill() {
	s.closeListener(true)
	s.mu.Lock()
	for id, j := range s.jobs {
		j.lose()
		delete(s.jobs, id)
		j.rank.core.Cancel(s.now(), id)
	}
	s.mu.Unlock()
	s.poke()
}

// Control serves the weather over HTTP; it belongs on a listener of its own:
//
//	GET  /faults             what is set
//	PUT  /faults             set it (fields of Faults; absent ones are healthy)
//	POST /restart?down=3s    restart in place
//	POST /kill               close the port and all connections
//	POST /lora_error         {"name", "status", "message"}; status 0 clears it
//	GET  /stats              the engine's state
func (s *Server) Control() http.Handler {
	mux := http.NewServeMux()
	fail := func(w http.ResponseWriter, err error) {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { writeValue(w, s.Faults()) })
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { writeValue(w, s.Stats()) })
	set := func(w http.ResponseWriter, r *http.Request) {
		var f Faults
		err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, 1<<16), &f, json.RejectUnknownMembers(true))
		if err == nil {
			err = s.SetFaults(f)
		}
		if err != nil {
			fail(w, err)
			return
		}
		writeValue(w, f)
	}
	mux.HandleFunc("PUT /faults", set)
	mux.HandleFunc("POST /faults", set)
	mux.HandleFunc("POST /restart", func(w http.ResponseWriter, r *http.Request) {
		var down time.Duration
		if v := r.URL.Query().Get("down"); v != "" {
			var err error
			if down, err = time.ParseDuration(v); err != nil || down < 0 {
				fail(w, fmt.Errorf("down = %q is not a duration", v))
				return
			}
		}
		if err := s.Restart(down); err != nil {
			fail(w, err)
		}
	})
	mux.HandleFunc("POST /kill", func(http.ResponseWriter, *http.Request) { s.Kill() })
	mux.HandleFunc("POST /lora_error", func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Name    string `json:"name"`
			Status  int    `json:"status"`
			Message string `json:"message"`
		}
		if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, 1<<16), &req, json.RejectUnknownMembers(true)); err != nil {
			fail(w, err)
			return
		}
		s.FailLoRA(req.Name, req.Status, req.Message)
	})
	return mux
}
