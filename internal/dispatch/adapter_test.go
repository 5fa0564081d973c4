// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

func adapterRow(id string, state fleet.AdapterState, reason string) fleet.EndpointState {
	r := row(id)
	r.Models = []string{"m"}
	r.Adapters = []fleet.Adapter{{Name: "sql", State: state, Reason: reason}}
	return r
}

// A request for an adapter that is being loaded waits for it; one for an adapter that
// no replica can load is told why, in the engine's words; neither concerns the base
// model. A replica that lacks the adapter never gets the request.
func TestAdapterBeingLoaded(t *testing.T) {
	p := newPool(t, Options{HoldFor: 10 * time.Second})
	p.see(adapterRow("a", fleet.AdapterLoading, ""), adapterRow("b", fleet.AdapterFailed, "LoRA rank 64 is greater than max_lora_rank 16."))
	ask := func(adapter string) (Send, Verdict) {
		r := prompt(16, part{7, 800})
		r.Adapter = adapter
		return p.ask(r)
	}
	_, v := ask("sql")
	if v.Kind != Held || !strings.Contains(v.Reason, `adapter "sql" is being loaded`) {
		t.Fatalf("%v %q", v.Kind, v.Reason)
	}
	if s, v := ask(""); v.Kind != Sent || s.Slot < 0 {
		t.Errorf("the base model: %v %q", v.Kind, v.Reason)
	}
	p.after(2)
	loaded := row("a")
	loaded.Models = []string{"m", "sql"}
	sends := p.d.Observe(p.now, &fleet.Snapshot{Pool: "p", Version: 9, At: p.now, Endpoints: []fleet.EndpointState{loaded, row("b")}}, nil)
	if len(sends) != 1 || sends[0].Endpoint != "a" || sends[0].Request.Adapter != "sql" {
		t.Errorf("once a has it: %+v", sends)
	}

	p = newPool(t, Options{HoldFor: 10 * time.Second})
	p.see(adapterRow("a", fleet.AdapterFailed, "no such file"), adapterRow("b", fleet.AdapterFailed, "no such file"))
	if _, v := ask("sql"); v.Kind != Refused || v.Cause != route.DropAdapter || !strings.Contains(v.Reason, "refuses to load it: no such file") {
		t.Errorf("%v %v %q", v.Kind, v.Cause, v.Reason)
	}
}

// Idle adapters stay resident in the router's memory, the count of holders follows
// what is believed, and a copy is cheaper to lose than the last of its kind.
func TestAdapterHolders(t *testing.T) {
	p := newPool(t, Options{})
	p.d.o.Profile.LoRASlots, p.d.learned.adapterMS = 2, 500
	rows := []fleet.EndpointState{row("a"), row("b"), row("c")}
	for i := range rows {
		rows[i].LoRASlots = fleet.Known(2, p.now)
	}
	p.see(rows...)
	check := func() {
		t.Helper()
		want := map[string]int32{}
		for i := range p.d.aux {
			for _, u := range p.d.aux[i].lora {
				want[u.name]++
			}
		}
		if fmt.Sprint(want) != fmt.Sprint(p.d.holders) {
			t.Fatalf("holders %v, believed %v", p.d.holders, want)
		}
	}
	for _, u := range []struct {
		slot int32
		name string
	}{{0, "hot"}, {0, "x"}, {1, "hot"}, {1, "x"}, {2, "lone"}, {2, "x"}} {
		p.d.useAdapter(u.slot, u.name)
		p.d.leaveAdapter(u.slot, u.name)
		check()
	}
	for range 5 { // as often asked for as the other
		for _, n := range []string{"hot", "lone"} {
			u := p.d.learned.adapters[n]
			u.add(p.d.now, 1, adapterSeconds)
			p.d.learned.adapters[n] = u
		}
	}
	p.d.learned.adapters["lone"] = p.d.learned.adapters["hot"]
	if !p.d.holdsAdapter(0, "hot") || p.d.holdsAdapter(2, "hot") {
		t.Error("an idle adapter is no stranger")
	}
	if copied, last := p.d.displaces(0), p.d.displaces(2); copied <= 0 || copied >= last {
		t.Errorf("to push out a copy costs %.1f ms, the last one %.1f ms", copied, last)
	}
	for k := range 20 {
		p.d.useAdapter(int32(k%3), fmt.Sprintf("n%d", k))
		p.d.leaveAdapter(int32(k%3), fmt.Sprintf("n%d", k))
		check()
	}
	restarted := row("a")
	restarted.StartTime = fleet.Known(1e6, p.now)
	p.see(restarted, row("b"))
	p.see(restarted)
	check()
}

// A replica that answers that it lacks an adapter which it listed gets no request for
// it until its list was read again; other adapters and the base model are not
// concerned, and the replica is not blamed.
func TestAdapterDenied(t *testing.T) {
	p := newPool(t, Options{})
	rows := []fleet.EndpointState{row("a"), row("b")}
	for i := range rows {
		rows[i].Models = []string{"m", "sql", "other"}
	}
	p.see(rows...)
	ask := func(adapter string) Send {
		r := prompt(16, part{7, 800})
		r.Adapter = adapter
		s, v := p.ask(r)
		if v.Kind != Sent {
			t.Fatalf("%v %q", v.Kind, v.Reason)
		}
		return s
	}
	first := ask("sql")
	v, sends := p.d.Retry(p.now, first.Ticket, fleet.OutcomeClientError, nil)
	if v.Kind != Sent || len(sends) != 1 || sends[0].Endpoint == first.Endpoint {
		t.Fatalf("%v %q %+v", v.Kind, v.Reason, sends)
	}
	for range 10 {
		if s := ask("sql"); s.Endpoint == first.Endpoint {
			t.Fatal("sent to the replica that lacks it")
		}
	}
	if p.load(first.Endpoint).Failed != 0 {
		t.Error("the replica is blamed")
	}
	// Busy as the other one is, all else goes there.
	if s := ask("other"); s.Endpoint != first.Endpoint {
		t.Error("another adapter keeps away from it as well")
	}
	p.after(deniedFor.Seconds() + 1)
	went := map[string]bool{}
	for range 30 {
		went[ask("sql").Endpoint] = true
	}
	if !went[first.Endpoint] {
		t.Error("its list was read again, and it still gets none")
	}
}

// A scrape that is older than what we sent does not bring back what had to go for it;
// it counts where slots are left, and where others send requests, too.
func TestAdapterScrapeAndOwnAccount(t *testing.T) {
	p := newPool(t, Options{})
	r := row("a")
	r.LoRASlots = fleet.Known(2, p.now)
	r.Adapters = []fleet.Adapter{{Name: "old", State: fleet.AdapterResident}}
	p.see(r)
	p.d.useAdapter(0, "x")
	if !p.d.holdsAdapter(0, "old") {
		t.Error("one slot is ours, the other may hold what the scrape shows")
	}
	p.d.useAdapter(0, "y")
	if p.d.holdsAdapter(0, "old") {
		t.Error("both slots are ours: the other adapter had to go")
	}
	p.d.slots[0].ForeignStreams = 1
	if !p.d.holdsAdapter(0, "old") {
		t.Error("others send there as well: our account is not all")
	}
}
