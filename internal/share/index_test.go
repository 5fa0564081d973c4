// SPDX-License-Identifier: Apache-2.0

package share

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/dispatch"
)

type nobody struct{}

func (nobody) Hear(int32, []dispatch.Note)     {}
func (nobody) PeerGone(int32)                  {}
func (nobody) Tell(func([]dispatch.Note))      {}
func (nobody) SetRank(int, int)                {}
func (nobody) SaveIndex([]byte, uint64) []byte { return nil }

// An index is taken from the router that was asked, in order and whole, and from no
// other one; one that is of no use makes room for the next.
func TestGather(t *testing.T) {
	const pool = "chat"
	hash := xxh3.HashString(pool)
	whole := bytes.Repeat([]byte("block"), 100)
	for _, c := range []struct {
		name  string
		feed  func(x *Exchange, in, other *inbound)
		taken bool
		next  bool // another router may be asked now
	}{
		{"whole", func(x *Exchange, in, _ *inbound) {
			x.gather(in, hash, 500, 0, whole[:300])
			x.gather(in, hash, 500, 300, whole[300:])
		}, true, false},
		{"not asked", func(x *Exchange, _, other *inbound) { x.gather(other, hash, 500, 0, whole) }, false, false},
		{"out of order", func(x *Exchange, in, _ *inbound) { x.gather(in, hash, 500, 300, whole[300:]) }, false, false},
		{"another total", func(x *Exchange, in, _ *inbound) {
			x.gather(in, hash, 500, 0, whole[:300])
			x.gather(in, hash, 400, 300, whole[300:])
		}, false, false},
		{"another key", func(x *Exchange, in, _ *inbound) {
			in.foreign = true
			x.gather(in, hash, 500, 0, whole)
		}, false, false},
		{"none", func(x *Exchange, in, _ *inbound) { x.gather(in, hash, 0, 0, nil) }, false, true},
		{"of no use", func(x *Exchange, in, _ *inbound) { x.gather(in, hash, 5, 0, whole[:5]) }, false, true},
	} {
		x := NewExchange(ExchangeOptions{Router: "me"})
		x.Add(pool, nobody{})
		var got []byte
		x.Want(pool, func(data []byte) error {
			if len(data) < 100 {
				return errors.New("too short")
			}
			got = data
			return nil
		})
		in, other := &inbound{router: "asked", live: true}, &inbound{router: "other", live: true}
		x.heard["asked"], x.heard["other"] = in, other
		if out := x.ask("asked", nil); len(out) == 0 {
			t.Fatalf("%s: nothing is asked", c.name)
		}
		if out := x.ask("other", nil); len(out) != 0 {
			t.Fatalf("%s: two routers are asked at a time", c.name)
		}
		c.feed(x, in, other)
		if c.taken != bytes.Equal(got, whole) {
			t.Errorf("%s: taken %d bytes", c.name, len(got))
		}
		if next := len(x.ask("other", nil)) > 0; next != c.next {
			t.Errorf("%s: the next one is asked: %v", c.name, next)
		}
	}
}

// A router is asked twice at most, never before it is heard, and not after a minute.
func TestAsksEnd(t *testing.T) {
	x := NewExchange(ExchangeOptions{Router: "me"})
	x.Add("chat", nobody{})
	x.Want("chat", func([]byte) error { return nil })
	w := x.wants[xxh3.HashString("chat")]
	if len(x.ask("a", nil)) > 0 {
		t.Error("a router that is not heard is asked")
	}
	x.heard["a"] = &inbound{router: "a", live: true}
	for k := range 4 {
		w.since = time.Now().Add(-2 * askAgain)
		if asked := len(x.ask("a", nil)) > 0; asked != (k < asksMost) {
			t.Errorf("time %d: asked %v", k, asked)
		}
	}
	w.until = time.Now().Add(-time.Second)
	x.ask("a", nil)
	if len(x.wants) > 0 {
		t.Error("it is still wanted after its time")
	}
}

// What a part of an index says of itself is bounded before anything is kept.
func TestHostilePart(t *testing.T) {
	for _, v := range [][3]uint32{
		{indexMost + 1, 0, 1}, {10, 11, 0}, {indexMost, 0, indexPart + 1}, {10, 5, 6}, {1 << 31, 1 << 31, 0}, {100, 0, 100},
	} {
		var b []byte
		for _, n := range v {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
		r := noteReader{b: append(b, 1, 2, 3)}
		if r.part(); !r.bad {
			t.Errorf("%v is taken", v)
		}
	}
}
