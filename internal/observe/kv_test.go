// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/testinput"
)

func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tokens(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

// The layouts that engines use say the same.
func layouts(t testing.TB) map[string][]byte {
	block := func(h uint64) []byte {
		return binary.BigEndian.AppendUint64([]byte("sha256 before the last eight: "), h)
	}
	return map[string][]byte{
		"maps": pack(t, []any{1.5, []any{map[string]any{
			"type": "BlockStored", "block_hashes": []uint64{11, 1<<63 + 5}, "parent_block_hash": nil, "token_ids": tokens(0, 8), "block_size": 4,
			"lora_id": nil, "medium": "GPU", "lora_name": "ad1", "extra_keys": []any{[]any{"ad1", "tenant-a"}, nil}, "group_idx": 0,
			"kv_cache_spec_kind": "full_attention", "one_more": map[string]any{"deep": []int{1}},
		}}, 0}),
		"arrays": pack(t, []any{1.5, []any{[]any{
			"BlockStored", []any{11, int64(-1<<63 + 5)}, nil, tokens(0, 8), 4, nil, "GPU", "ad1", []any{[]any{"ad1", "tenant-a"}, nil}, 0, "full_attention", nil, "later",
		}}}),
		"bytes": pack(t, []any{1, []any{[]any{
			"BlockStored", []any{block(11), block(1<<63 + 5)}, nil, tokens(0, 8), 4, 1, "cpu", "ad1", []any{[]any{"ad1", "tenant-a"}},
		}}, 3}),
	}
}

func TestKVLayouts(t *testing.T) {
	for name, b := range layouts(t) {
		batch, err := decodeKV(b)
		if err != nil || len(batch.events) != 1 {
			t.Errorf("%s: %v %v", name, batch, err)
			continue
		}
		e := batch.events[0]
		if e.kind != "BlockStored" || !cmp.Equal(e.hashes, []uint64{11, 1<<63 + 5}) || e.child || e.block != 4 || e.lora != "ad1" || e.salt() != "tenant-a" || !cmp.Equal(e.tokens, tokens(0, 8)) {
			t.Errorf("%s: %+v", name, e)
		}
		v := newKVView(7, "m")
		got := v.take(0, &batch, time.Time{}, nil)
		want := []CacheChange{
			{Kind: CacheStored, Keys: TokenKeys(nil, prefix.Seed(7, "m", "ad1", "tenant-a"), tokens(0, 8), 4)},
			{Kind: CacheUsed, Tokens: 8},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if b, err := decodeKV(pack(t, []any{1.5, []any{[]any{"AllBlocksCleared"}, []any{"Unknown", 1, nil}, map[string]any{"type": "BlockRemoved", "block_hashes": []int{3}}}, 2})); err != nil || len(b.events) != 3 || b.rank != 2 {
		t.Errorf("%+v %v", b, err)
	}
}

// An event that cannot be read costs itself, not the batch.
func TestKVBadEvent(t *testing.T) {
	good := func(h int) any { return []any{"BlockRemoved", []int{h}} }
	for name, bad := range map[string]any{
		"a hash that is a map": []any{"BlockRemoved", []any{map[string]any{"h": 1}}}, "hashes that are a number": []any{"BlockStored", 7, nil, []int{1}, 4},
		"a size that is a text": map[string]any{"type": "BlockStored", "block_hashes": []int{1}, "block_size": "four"}, "no tag": []any{}, "a number": 5,
	} {
		b, err := decodeKV(pack(t, []any{1.5, []any{good(1), bad, good(2)}, 3}))
		if err != nil || b.bad != 1 || b.rank != 3 || len(b.events) != 2 || !cmp.Equal(b.events[1].hashes, []uint64{2}) {
			t.Errorf("%s: %+v %v", name, b, err)
		}
	}
	if b, err := decodeKV([]byte{0x92, 0x01, 0x92, 0x92, 0xac}); err == nil {
		t.Errorf("a message that ends within an event: %+v", b)
	}
}

func FuzzKV(f *testing.F) {
	for _, b := range layouts(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		batch, err := decodeKV(b)
		if err != nil {
			return
		}
		newKVView(1, "m").take(0, &batch, time.Time{}, nil)
	})
}

// TestKVView follows a cache: children know their parents, groups count once, what is
// removed goes, and orphans are dropped.
func TestKVView(t *testing.T) {
	v := newKVView(7, "m")
	take := func(seq uint64, events ...kvEvent) []CacheChange {
		return v.take(seq, &kvBatch{events: events}, time.Time{}, nil)
	}
	first := kvEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: tokens(0, 8), block: 4}
	take(0, first)
	all := TokenKeys(nil, prefix.Seed(7, "m", "", ""), tokens(0, 12), 4)
	got := take(1, kvEvent{kind: "BlockStored", hashes: []uint64{3}, parent: 2, child: true, tokens: tokens(8, 4), block: 4}, first)
	if d := cmp.Diff([]CacheChange{{Kind: CacheStored, Parent: all[1], Keys: all[2:]}, {Kind: CacheStored, Keys: all[:2]}, {Kind: CacheUsed, Tokens: 12}}, got); d != "" {
		t.Error(d)
	}
	got = take(2, kvEvent{kind: "BlockRemoved", hashes: []uint64{1, 3, 99}})
	if d := cmp.Diff([]CacheChange{{Kind: CacheRemoved, Keys: all[2:]}, {Kind: CacheUsed, Tokens: 8}}, got); d != "" {
		t.Error(d) // block 1 was stored twice
	}
	take(3, kvEvent{kind: "BlockStored", hashes: []uint64{9}, parent: 77, child: true, tokens: tokens(0, 4), block: 4},
		kvEvent{kind: "BlockStored", hashes: []uint64{8}, tokens: tokens(0, 4), block: 4, spec: "sliding_window"})
	if v.state.Orphans != 1 || v.state.Blocks != 2 {
		t.Errorf("%+v", v.state)
	}
	for seq, want := range map[uint64]gap{4: inOrder, 6: lost, 3: again, 0: restart} {
		if got := v.order(seq); got != want {
			t.Errorf("order(%d) = %d, want %d", seq, got, want)
		}
	}
}

// kvEngine publishes events over a real socket, with a replay socket.
type kvEngine struct {
	pub    zmq4.Socket
	at     string
	replay string
	mu     sync.Mutex
	sent   map[uint64][]byte
}

func freeEndpoint(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("tcp://127.0.0.1:%d", testinput.Port(t))
}

func newKVEngine(t *testing.T, replay bool) *kvEngine {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e := &kvEngine{at: freeEndpoint(t), sent: map[uint64][]byte{}}
	e.pub = zmq4.NewPub(ctx)
	if err := e.pub.Listen(e.at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); e.pub.Close() })
	if !replay {
		return e
	}
	e.replay = freeEndpoint(t)
	router := zmq4.NewRouter(ctx)
	if err := router.Listen(e.replay); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { router.Close() })
	go func() {
		for {
			m, err := router.Recv()
			if err != nil {
				return
			}
			from := binary.BigEndian.Uint64(m.Frames[2])
			e.mu.Lock()
			for n := from; e.sent[n] != nil; n++ {
				_ = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, binary.BigEndian.AppendUint64(nil, n), e.sent[n]))
			}
			e.mu.Unlock()
			_ = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil))
		}
	}()
	return e
}

// send publishes message seq, which stores block h; lost ones only the replay has.
func (e *kvEngine) send(t *testing.T, seq, h uint64, lost bool) {
	b := pack(t, []any{1.0, []any{[]any{"BlockStored", []uint64{h}, nil, tokens(int(h)*100, 4), 4}}})
	e.mu.Lock()
	e.sent[seq] = b
	e.mu.Unlock()
	if !lost {
		if err := e.pub.SendMulti(zmq4.NewMsgFrom([]byte("kv@x@m"), binary.BigEndian.AppendUint64(nil, seq), b)); err != nil {
			t.Fatal(err)
		}
	}
}

// kvWorld reads one engine.
func kvWorld(t *testing.T, e *kvEngine) (r *KVReader, changes func() string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		src := map[string]any{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": strings.Replace(e.at, "127.0.0.1", "*", 1)}
		if e.replay != "" {
			src["replay_endpoint"] = strings.Replace(e.replay, "127.0.0.1", "*", 1)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"0": src})
	}))
	t.Cleanup(srv.Close)
	var mu sync.Mutex
	var got strings.Builder
	names := map[CacheKind]string{CacheStored: "stored", CacheRemoved: "removed", CacheCleared: "cleared", CacheUnsure: "unsure", CacheSure: "sure"}
	r = NewKVReader(KVOptions{Mode: "auto", Key: 7, Apply: func(id string, rank int, cs []CacheChange) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range cs {
			if c.Kind != CacheUsed {
				fmt.Fprintf(&got, "%s ", names[c.Kind])
			}
		}
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	snap := &fleet.Snapshot{Endpoints: []fleet.EndpointState{{Endpoint: fleet.Endpoint{ID: "r", URL: srv.URL, Phase: fleet.PhaseReady, Models: []string{"m"}}}}}
	until(t, "it runs", func() bool { r.Observe(snap); return len(r.States()) > 0 })
	return r, func() string { mu.Lock(); defer mu.Unlock(); return strings.TrimSpace(got.String()) }
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 12000 { // a minute
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("it never came to pass that %s", what)
}

// connect publishes until the subscription has arrived; it returns the next number.
func connect(t *testing.T, r *KVReader, e *kvEngine) uint64 {
	n := uint64(0)
	until(t, "a first event is heard", func() bool {
		e.send(t, n, n, false)
		n++
		time.Sleep(10 * time.Millisecond)
		return r.States()["r"].Batches > 0
	})
	until(t, "all of them are", func() bool { return r.States()["r"].Blocks > 0 })
	return n
}

// TestKVGap: what was lost is asked for again; without a replay the cache is unsure.
func TestKVGap(t *testing.T) {
	for _, replay := range []bool{true, false} {
		t.Run(strconv.FormatBool(replay), func(t *testing.T) {
			e := newKVEngine(t, replay)
			r, changes := kvWorld(t, e)
			n := connect(t, r, e)
			if replay {
				until(t, "the first ones were asked for", func() bool { return r.States()["r"].Blocks == int(n) })
			}
			before := r.States()["r"].Blocks
			e.send(t, n, n, true)
			e.send(t, n+1, n+1, false)
			// One from before the gap may be on its way still.
			until(t, "the event behind the gap is heard", func() bool { s := r.States()["r"]; return s.Blocks > before && s.Gaps > 0 })
			s := r.States()["r"]
			if s.Gaps != 1 {
				t.Fatalf("%+v", s)
			}
			if s.Unsure != strings.Contains(changes(), "unsure") {
				t.Errorf("%+v after %s", s, changes())
			}
			if !replay && !s.Unsure {
				t.Errorf("a gap without a replay leaves it sure: %+v", s)
			}
		})
	}
}

// TestKVRestart: numbers that begin anew say that the engine did, with an empty cache.
func TestKVRestart(t *testing.T) {
	e := newKVEngine(t, false)
	r, changes := kvWorld(t, e)
	n := connect(t, r, e)
	for i := range uint64(3) {
		e.send(t, n+i, n+i, false)
	}
	until(t, "they are heard", func() bool { return r.States()["r"].Blocks >= 4 })
	e.send(t, 0, 1000, false)
	until(t, "the restart is noticed", func() bool { return r.States()["r"].Restarts == 1 })
	if s := r.States()["r"]; s.Blocks != 1 || !strings.Contains(changes(), "cleared stored") {
		t.Errorf("%+v after %s", s, changes())
	}
}

func TestKVSources(t *testing.T) {
	for _, c := range []struct {
		in, want string
		bind     bool
	}{
		{"tcp://*:5557", "tcp://10.0.0.7:5557", false},
		{"tcp://0.0.0.0:5557", "tcp://10.0.0.7:5557", false},
		{"tcp://{host}:5557", "tcp://10.0.0.7:5557", false},
		{"tcp://127.77.0.1:5557", "tcp://127.77.0.1:5557", true},
	} {
		if s := sourceOf(0, c.in, "", "10.0.0.7"); s.endpoint != c.want || s.bind != c.bind {
			t.Errorf("%s: %+v", c.in, s)
		}
	}
}

// TestRestartCase follows the events of a collected incident: replica a restarts in
// place, replica b is joined late and then says that it cleared its cache.
func TestRestartCase(t *testing.T) {
	type line struct {
		T      float64
		Pod    string
		Ev     string
		Seq    uint64
		Blocks []string
		Expect map[string]int
	}
	b, err := os.ReadFile(testinput.Shared(t, "cases/29-restart-index-still-warm/events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var events, queries []line
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var l line
		if d.Decode(&l) != nil {
			break
		}
		events = append(events, l)
	}
	if b, err = os.ReadFile(testinput.Shared(t, "cases/29-restart-index-still-warm/queries.json")); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &queries); err != nil || len(events) < 5 {
		t.Fatal(err)
	}
	hash := func(name string) uint64 { return xxh3.HashString(name) }
	ids := func(name string) []uint32 { return tokens(int(hash(name)%1e6), 4) }
	views, held := map[string]*kvView{}, map[string]map[uint64]bool{}
	feed := func(l line) {
		v := views[l.Pod]
		if v == nil {
			v = newKVView(7, "m")
			views[l.Pod], held[l.Pod] = v, map[uint64]bool{}
		}
		e := kvEvent{kind: l.Ev, block: 4}
		for i, name := range l.Blocks {
			if n, err := strconv.Atoi(name[1:]); i == 0 && err == nil && n > 1 {
				e.child, e.parent = true, hash(name[:1]+strconv.Itoa(n-1))
			}
			e.hashes, e.tokens = append(e.hashes, hash(name)), append(e.tokens, ids(name)...)
		}
		var out []CacheChange
		if v.order(l.Seq) == restart {
			out = v.clear(out)
		}
		for _, c := range v.take(l.Seq, &kvBatch{events: []kvEvent{e}}, time.Time{}, out) {
			switch c.Kind {
			case CacheCleared:
				clear(held[l.Pod])
			case CacheStored:
				for _, k := range c.Keys {
					held[l.Pod][k] = true
				}
			}
		}
	}
	for _, q := range queries {
		for len(events) > 0 && events[0].T <= q.T {
			feed(events[0])
			events = events[1:]
		}
		var all []uint32
		for _, name := range q.Blocks {
			all = append(all, ids(name)...)
		}
		keys := TokenKeys(nil, prefix.Seed(7, "m", "", ""), all, 4)
		for pod, want := range q.Expect {
			got := 0
			for got < len(keys) && held[pod][keys[got]] {
				got++
			}
			if got != want {
				t.Errorf("at %v pod %s holds %d of %v, want %d", q.T, pod, got, q.Blocks, want)
			}
		}
	}
}

// TestKVStates sums over ranks: one that cannot be read shows, whichever it is.
func TestKVStates(t *testing.T) {
	r := NewKVReader(KVOptions{Mode: "auto"})
	r.readers["r"] = &kvReader{states: map[int]KVState{
		0: {Source: "tcp://a:1", Batches: 1}, 1: {Source: "tcp://a:2", Fault: "refused"}, 2: {Source: "tcp://a:3", Batches: 2},
	}}
	want := map[string]KVState{"r": {Source: "tcp://a:1", Fault: "refused", Batches: 3}}
	for range 10 {
		if d := cmp.Diff(want, r.States()); d != "" {
			t.Fatal(d)
		}
	}
}
