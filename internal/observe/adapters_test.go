// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// adapterShelf is the part of a fake engine that loads adapters.
type adapterShelf struct {
	mu     sync.Mutex
	calls  map[string]int
	paths  map[string]string
	listed []string
	refuse func(name, path string, call int) (int, string)
}

func (s *adapterShelf) load(body string) (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var req struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	if err := json.Unmarshal([]byte(body), &req); err != nil {
		return 422, err.Error()
	}
	if s.calls == nil {
		s.calls, s.paths = map[string]int{}, map[string]string{}
	}
	s.calls[req.Name]++
	s.paths[req.Name] = req.Path
	if s.refuse != nil {
		if status, answer := s.refuse(req.Name, req.Path, s.calls[req.Name]); status != 0 {
			return status, answer
		}
	}
	if !slices.Contains(s.listed, req.Name) {
		s.listed = append(s.listed, req.Name)
	}
	return 200, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", req.Name)
}

func (s *adapterShelf) models() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := `{"data":[{"id":"m","owned_by":"vllm"}`
	for _, n := range s.listed {
		out += fmt.Sprintf(`,{"id":%q,"parent":"m"}`, n)
	}
	return out + "]}"
}

func (s *adapterShelf) called(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[name]
}

// shelves puts one behind each host and keeps their lists of models up to date.
func shelves(f *fakeFleet, hosts ...string) map[string]*adapterShelf {
	out := map[string]*adapterShelf{}
	for _, h := range hosts {
		s := &adapterShelf{}
		out[h] = s
		f.set(h, func(r *fakeReplica) { r.load = s.load })
	}
	return out
}

func adapterText(e fleet.EndpointState, name string) string {
	for _, a := range e.Adapters {
		if a.Name == name {
			return strings.TrimSuffix(a.State.String()+": "+a.Reason, ": ")
		}
	}
	if slices.Contains(e.Models, name) {
		return "listed"
	}
	return "absent"
}

const wrongShape = "The size of tensor a (64) must match the size of tensor b (96) at non-singleton dimension 1"

// One adapter that no replica can load fails for good with the engine's words, after
// one try each; it keeps neither another adapter nor the base model waiting. What a
// replica has already is left alone. A new path is a new chance.
func TestAdaptersAreLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := []string{"a:1", "b:1"}
		ob, f, state := watched(t, hosts, Options{})
		s := shelves(f, hosts...)
		for _, h := range hosts {
			s[h].refuse = func(name, path string, _ int) (int, string) {
				if name == "bad" && path == "/adapters/bad" {
					return 400, fmt.Sprintf(`{"object":"error","message":%q,"type":"BadRequestError","param":null,"code":400}`, wrongShape)
				}
				return 0, ""
			}
		}
		s["b:1"].listed = []string{"good"}
		f.set("b:1", func(r *fakeReplica) { r.models = s["b:1"].models() })
		time.Sleep(2 * modelsEvery) // the list is read
		ob.SetAdapters(AdapterPlan{Names: []string{"bad", "good"}, Path: "/adapters/{name}"})
		time.Sleep(5 * time.Second)
		for _, h := range hosts {
			e := state()[h]
			phase(t, e, fleet.PhaseReady, "")
			if got := adapterText(e, "good"); got != "listed" {
				t.Errorf("%s: good is %s", h, got)
			}
			if got := adapterText(e, "bad"); got != "failed: "+wrongShape {
				t.Errorf("%s: bad is %s", h, got)
			}
		}
		if a, b := s["a:1"].called("good"), s["b:1"].called("good"); a != 1 || b != 0 {
			t.Errorf("good was loaded %d and %d times; a lacks it, b has it", a, b)
		}
		if got := s["a:1"].paths["good"]; got != "/adapters/good" {
			t.Errorf("path %q", got)
		}
		for _, h := range hosts {
			f.set(h, func(r *fakeReplica) { r.models = s[h].models() })
		}
		time.Sleep(time.Hour)
		if n := s["a:1"].called("bad"); n != 1 {
			t.Errorf("what cannot load was tried %d times in an hour", n)
		}
		if n := s["a:1"].called("good"); n != 1 {
			t.Errorf("good was loaded %d times", n)
		}
		ob.SetAdapters(AdapterPlan{Names: []string{"bad", "good"}, Path: "/fixed/{name}"})
		time.Sleep(3 * time.Second)
		if got := adapterText(state()["a:1"], "bad"); got != "listed" || s["a:1"].paths["bad"] != "/fixed/bad" {
			t.Errorf("after a new path bad is %s, from %s", got, s["a:1"].paths["bad"])
		}
		ob.SetAdapters(AdapterPlan{})
		time.Sleep(time.Minute)
		if got := adapterText(state()["a:1"], "bad"); got != "absent" {
			t.Errorf("with an empty plan, and no word of it from the replica, bad is %s", got)
		}
	})
}

// What may succeed another time is tried again after longer and longer pauses, five
// times, and rests then.
func TestAdapterLoadsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, f, state := watched(t, []string{"a:1"}, Options{})
		s := shelves(f, "a:1")["a:1"]
		s.refuse = func(name, _ string, call int) (int, string) {
			if name == "slow" && call < 8 {
				return 503, `{"error":{"message":"engine is starting"}}`
			}
			return 0, ""
		}
		ob.SetAdapters(AdapterPlan{Names: []string{"slow", "next"}, Path: "/x/{name}"})
		time.Sleep(4500 * time.Millisecond)
		if got := adapterText(state()["a:1"], "slow"); got != "loading: engine is starting" {
			t.Errorf("slow is %s", got)
		}
		if got := adapterText(state()["a:1"], "next"); got != "listed" {
			t.Errorf("next is %s: the other one must not keep it waiting", got)
		}
		time.Sleep(5 * time.Minute)
		if n := s.called("slow"); n != loadTries {
			t.Errorf("%d tries, want %d", n, loadTries)
		}
		if got := adapterText(state()["a:1"], "slow"); got != "failed: engine is starting" {
			t.Errorf("slow is %s", got)
		}
		f.set("a:1", func(r *fakeReplica) { r.models = s.models() })
		time.Sleep(25 * time.Minute)
		if n := s.called("slow"); n != loadTries+2 {
			t.Errorf("%d tries, want two more", n)
		}
	})
}

// A new process in place has none of what was loaded, and gets it again once, whichever
// tells of it first: its metrics, its list of models, or that a load went there. From then
// on there is no moment without the adapter.
func TestAdaptersComeBackAfterARestart(t *testing.T) {
	metrics := func(start int) func(*fakeReplica) {
		return func(r *fakeReplica) {
			r.metrics = fmt.Sprintf("vllm:num_requests_running 0\nprocess_start_time_seconds %d\n", start)
		}
	}
	for _, first := range []string{"/metrics", "/v1/models", "/v1/load_lora_adapter"} {
		t.Run(strings.TrimPrefix(first, "/"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ob, f, state := watched(t, []string{"a:1"}, Options{})
				s := shelves(f, "a:1")["a:1"]
				f.set("a:1", metrics(100))
				restart, told := make(chan bool, 1), make(chan bool, 1)
				f.mu.Lock()
				f.before = func(path string) {
					if path == first || path == "/v1/models" && first == "/v1/load_lora_adapter" {
						select {
						case <-restart:
							s.mu.Lock()
							s.listed = nil
							s.mu.Unlock()
							told <- true
						default:
						}
					}
					if path == first {
						select {
						case <-told:
							f.set("a:1", metrics(200))
						default:
						}
					}
					if path == "/v1/models" {
						time.Sleep(50 * time.Millisecond)
						f.set("a:1", func(r *fakeReplica) { r.models = s.models() })
					}
				}
				f.mu.Unlock()
				ob.SetAdapters(AdapterPlan{Names: []string{"x"}, Path: "/x/{name}"})
				time.Sleep(time.Minute)
				if s.called("x") != 1 || adapterText(state()["a:1"], "x") != "listed" {
					t.Fatalf("%d loads, x is %s", s.called("x"), adapterText(state()["a:1"], "x"))
				}
				restart <- true
				for s.called("x") == 1 {
					time.Sleep(10 * time.Millisecond)
				}
				for range 1500 {
					time.Sleep(20 * time.Millisecond)
					if got := adapterText(state()["a:1"], "x"); got != "listed" {
						t.Fatalf("after it was loaded again x is %s", got)
					}
				}
				if s.called("x") != 2 {
					t.Errorf("%d loads after a restart", s.called("x"))
				}
			})
		})
	}
}

// An engine that says it loaded and never lists it is asked again.
func TestAdaptersThatAreNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, f, state := watched(t, []string{"a:1"}, Options{})
		s := shelves(f, "a:1")["a:1"]
		ob.SetAdapters(AdapterPlan{Names: []string{"x"}, Path: "/x/{name}"})
		time.Sleep(5 * time.Second)
		if s.called("x") != 1 {
			t.Fatalf("%d loads", s.called("x"))
		}
		if got := adapterText(state()["a:1"], "x"); got != "listed" {
			t.Errorf("just loaded, x is %s", got)
		}
		time.Sleep(listedWithin + 2*time.Second)
		if s.called("x") != 2 {
			t.Errorf("%d loads of what the engine does not list", s.called("x"))
		}
	})
}

func TestJudgeLoad(t *testing.T) {
	for _, c := range []struct {
		status    int
		body      string
		reason    string
		permanent bool
	}{
		{200, "Success: LoRA adapter 'x' added successfully.", "", false},
		{400, `{"error":{"message":"The lora adapter 'x' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."}}`, "", false},
		{400, `{"object":"error","message":"LoRA rank 64 is greater than max_lora_rank 16.","code":400}`, "LoRA rank 64 is greater than max_lora_rank 16.", true},
		{404, `{"error":{"message":"Loading lora x failed: No adapter found for /x"}}`, "Loading lora x failed: No adapter found for /x", true},
		{404, `{"detail":"Not Found"}`, "/v1/load_lora_adapter answers 404: the engine does not allow it (vLLM: VLLM_ALLOW_RUNTIME_LORA_UPDATING)", true},
		{401, ``, "/v1/load_lora_adapter answers 401", true},
		{429, `{"detail":"too many"}`, "too many", false},
		{500, `{"error":"out of memory"}`, "out of memory", false},
		{503, `starting`, "starting", false},
	} {
		reason, permanent := judgeLoad(c.status, []byte(c.body))
		if reason != c.reason || permanent != c.permanent {
			t.Errorf("%d %s: %q, permanent %v", c.status, c.body, reason, permanent)
		}
	}
}
