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
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/penstock-project/penstock/internal/fleet"
)

// TestKVHostileSizes: sizes whose product overflows are no event.
func TestKVHostileSizes(t *testing.T) {
	for _, block := range []int{1 << 60, 1 << 62, 1<<63 - 1, -4, 0} {
		for _, hashes := range []int{1, 4, 16} {
			e := kvEvent{kind: "BlockStored", hashes: make([]uint64, hashes), tokens: tokens(0, 8), block: block}
			v := newKVView(1, "m")
			if out := v.take(0, &kvBatch{events: []kvEvent{e}}, time.Time{}, nil); len(out) != 1 || len(v.keys) != 0 {
				t.Errorf("block %d, %d hashes: %v", block, hashes, out)
			}
		}
	}
}

// hostileBatches are messages of a publisher that means harm.
func hostileBatches(t testing.TB) map[string][]byte {
	deep := bytes.Repeat([]byte{0x91}, 1<<20)
	wide := bytes.Repeat([]byte{0xdd, 0x7f, 0xff, 0xff, 0xff}, 5000) // arrays in arrays that claim 2^31 members
	batch := func(event []byte) []byte {
		return append([]byte{0x92, 0x01, 0x91}, event...)
	}
	stored := func(fields ...[]byte) []byte {
		var b bytes.Buffer
		b.WriteByte(0x99)
		if err := msgpack.NewEncoder(&b).EncodeString("BlockStored"); err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			b.Write(f)
		}
		return b.Bytes()
	}
	null, none := []byte{0xc0}, []byte{0x90}
	return map[string][]byte{
		"a deep hash":        batch(stored(append([]byte{0x91}, deep...))),
		"a wide hash":        batch(stored(append([]byte{0x91}, wide...))),
		"a deep parent":      batch(stored(none, deep)),
		"a deep extra key":   batch(stored(none, null, none, []byte{4}, null, null, null, append([]byte{0x91}, deep...))),
		"a wide extra key":   batch(stored(none, null, none, []byte{4}, null, null, null, append([]byte{0x91}, wide...))),
		"a deep unknown":     batch(append([]byte{0x81, 0xa1, 'x'}, deep...)),
		"a deep rank":        append([]byte{0x93, 0x01, 0x90}, deep...),
		"a wide rank":        append([]byte{0x93, 0x01, 0x90}, wide...),
		"only deep":          deep,
		"only wide":          wide,
		"a map without end":  batch([]byte{0xdf, 0xff, 0xff, 0xff, 0xff}),
		"a name without end": batch([]byte{0x81, 0xdb, 0xff, 0xff, 0xff, 0xff}),
	}
}

// TestKVHostileBatches: what nests without end or claims more than it has is refused
// at little cost.
func TestKVHostileBatches(t *testing.T) {
	for name, b := range hostileBatches(t) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = decodeKV(b)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
			t.Errorf("%s: %d MiB for a message of %d KiB", name, n>>20, len(b)>>10)
		}
	}
}

// TestKVSourcesAreOwn: a replica does not choose whom we dial and where we listen.
func TestKVSourcesAreOwn(t *testing.T) {
	for told, want := range map[string]bool{
		"tcp://*:5557": true, "tcp://0.0.0.0:5557": true, "tcp://127.0.0.1:5557": true,
		"tcp://:5557": false, "tcp://[::]:5557": false, "tcp://169.254.169.254:80": false, "ipc:///var/run/x.sock": false,
		"inproc://x": false, "tcp://*:0": false, "tcp://*:x": false, "udp://*:5557": false, "tcp://127.0.0.1@10.0.0.1:5": false,
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(map[string]any{"0": map[string]any{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": told, "replay_endpoint": "tcp://10.0.0.9:1"}})
		}))
		r := NewKVReader(KVOptions{Mode: "auto"})
		got, err := r.sources(context.Background(), &kvReader{base: srv.URL})
		srv.Close()
		if err != nil || len(got) > 0 != want || want && got[0].replay != "" {
			t.Errorf("%s: %+v %v", told, got, err)
		}
	}
}

// TestKVRanksAreTold: only the ports of ranks that a replica tells of are read. One rank
// of a high number does not open all below it, which belong to others.
func TestKVRanksAreTold(t *testing.T) {
	r := NewKVReader(KVOptions{Mode: "tcp://127.0.0.1:5000"})
	for _, c := range []struct {
		notes fleet.Note
		loads []fleet.Load
		want  []int
	}{
		{0, nil, []int{0}},
		{fleet.NoteRanks, []fleet.Load{{Rank: 0}, {Rank: 1}, {Rank: 2}}, []int{0, 1, 2}},
		{fleet.NoteRanks, []fleet.Load{{Rank: 4}, {Rank: 5}}, []int{4, 5}}, // the second node of several
		{fleet.NoteRanks, []fleet.Load{{Model: "a", Rank: 0}, {Model: "a", Rank: 200}, {Model: "b", Rank: 0}}, []int{0, 200}},
		{fleet.NoteRanks, []fleet.Load{{Rank: 0}, {Rank: 70000}, {Rank: -1}}, []int{0}},
		{0, []fleet.Load{{Model: "a", Rank: 3}, {Model: "b", Rank: 3}}, []int{0}},
	} {
		e := fleet.EndpointState{}
		e.ScrapedAt, e.Notes, e.Loads = testNow, c.notes, c.loads
		got, err := r.sources(t.Context(), &kvReader{base: "http://127.0.0.1:1", ranks: ranksOf(&e)})
		var ranks []int
		for _, s := range got {
			ranks = append(ranks, s.rank)
			if want := fmt.Sprintf("tcp://127.0.0.1:%d", 5000+s.rank); s.endpoint != want {
				t.Errorf("rank %d at %s, want %s", s.rank, s.endpoint, want)
			}
		}
		if err != nil || !slices.Equal(ranks, c.want) {
			t.Errorf("%+v: ranks %v, %v, want %v", c.loads, ranks, err, c.want)
		}
	}
}

// TestKVRedirect: a replica does not send us elsewhere with a redirect either.
func TestKVRedirect(t *testing.T) {
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer srv.Close()
	if _, err := NewKVReader(KVOptions{Mode: "auto"}).sources(context.Background(), &kvReader{base: srv.URL}); err == nil || asked {
		t.Errorf("%v, asked elsewhere: %v", err, asked)
	}
}

// TestKVHostileFrames: lengths that a peer claims are not believed, whatever the pieces
// in which they come.
func TestKVHostileFrames(t *testing.T) {
	greeting := make([]byte, kvGreeting)
	long := func(flags byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{flags | 2}, n) }
	more := bytes.Repeat([]byte{1, 1, 'x'}, kvMostParts+1)
	for name, c := range map[string]struct {
		sent []byte
		ok   bool
	}{
		"a message":      {append(long(1, 3), 'a', 'b', 'c', 0, 1, 'd'), true},
		"a huge frame":   {long(0, 1<<62), false},
		"above int64":    {long(0, 1<<63+1), false},
		"a huge command": {long(4, 1<<40), false},
		"many parts":     {more, false},
		"just too long":  {append(long(1, 1), append([]byte{'x'}, long(0, kvMostMessage)...)...), false},
	} {
		for _, step := range []int{1, 2, 7, 4096} {
			k := &kvConn{skip: kvGreeting}
			ok := true
			for b := append(greeting[:kvGreeting:kvGreeting], c.sent...); len(b) > 0; {
				n := min(step, len(b))
				ok = ok && k.follow(b[:n])
				b = b[n:]
			}
			if ok != c.ok {
				t.Errorf("%s by %d bytes: passed %v", name, step, ok)
			}
		}
	}
}
