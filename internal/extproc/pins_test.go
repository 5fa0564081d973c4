// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/penstock-project/penstock/internal/fleet"
)

// TestPinIsAHeaderMutation names the rank beside the endpoint, and takes away what a
// client names itself.
func TestPinIsAHeaderMutation(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		f := newPool(t, 1)
		now := fleet.At(time.Now())
		s := *f.Snapshot()
		s.Endpoints = slices.Clone(s.Endpoints)
		e := &s.Endpoints[0]
		e.Engine, e.Running, e.ScrapedAt = "vllm", fleet.Known(0, now), now
		if ranks > 1 {
			e.Notes = fleet.NoteRanks
			for r := range ranks {
				e.Loads = append(e.Loads, fleet.Load{Model: "m", Rank: r, Running: fleet.Known(float64(r), now), Waiting: fleet.Known(0, now), Finished: fleet.Known(0, now)})
			}
		}
		f.Observe(&s)
		_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
		for _, named := range []bool{false, true} {
			p := newProxy(t, addr)
			head := heads(chatPath, false, fds, fds)
			if named {
				h := head.GetRequestHeaders().Headers
				h.Headers = append(h.Headers, &corev3.HeaderValue{Key: "x-data-parallel-rank", RawValue: []byte("9")})
			}
			p.send(head, reqBody(chatBody("m", "hi"), true))
			res := p.recv()
			m := res.GetRequestHeaders().GetResponse().GetHeaderMutation()
			pin := ""
			for _, h := range m.GetSetHeaders() {
				if h.GetHeader().GetKey() == "x-data-parallel-rank" {
					pin = string(h.GetHeader().GetRawValue())
					if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
						t.Errorf("%v", h)
					}
				}
			}
			removed := slices.Contains(m.GetRemoveHeaders(), "x-data-parallel-rank")
			if destinationOf(res) != "127.10.0.1:8000" || (pin != "") != (ranks > 1) || removed != (named && ranks == 1) {
				t.Errorf("%d ranks, named %v: %v", ranks, named, m)
			}
			p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
		}
	}
}
