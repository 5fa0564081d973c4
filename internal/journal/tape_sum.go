// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/route"
)

// sumOf hashes all that was decided, every candidate with every input and term, so
// that two decisions with equal sums are equal in every byte. buf is reused.
func sumOf(buf []byte, n dispatch.Ticket, v *dispatch.Verdict, sends []dispatch.Send) ([]byte, uint64) {
	b := summer{buf[:0]}
	b.number(uint64(n))
	b.number(uint64(v.Kind))
	b.text(v.Reason)
	b.number(uint64(v.Cause))
	b.number(uint64(v.Late))
	if v.Decision != nil {
		b.decision(v.Decision)
	}
	for i := range sends {
		s := &sends[i]
		b.number(uint64(s.Ticket))
		b.number(uint64(s.Slot))
		b.text(s.Endpoint)
		b.text(s.URL)
		b.number(uint64(s.Held))
		b.number(uint64(s.Cause))
		b.text(s.Reason)
		if s.Decision != nil {
			b.decision(s.Decision)
		}
	}
	return b.b, xxh3.Hash(b.b)
}

type summer struct{ b []byte }

func (s *summer) number(v uint64) { s.b = binary.LittleEndian.AppendUint64(s.b, v) }

func (s *summer) float(vs ...float64) {
	for _, v := range vs {
		s.number(math.Float64bits(v))
	}
}

func (s *summer) small(vs ...float32) {
	for _, v := range vs {
		s.b = binary.LittleEndian.AppendUint32(s.b, math.Float32bits(v))
	}
}

func (s *summer) text(v string) {
	s.number(uint64(len(v)))
	s.b = append(s.b, v...)
}

func (s *summer) yes(vs ...bool) {
	for _, v := range vs {
		if v {
			s.b = append(s.b, 1)
		} else {
			s.b = append(s.b, 0)
		}
	}
}

func (s *summer) decision(d *route.Decision) {
	s.text(d.Policy)
	s.text(d.Why)
	s.number(uint64(d.At))
	s.number(uint64(uint32(d.Chosen)))
	s.number(uint64(uint32(d.Index)))
	s.yes(d.Wait, d.DemotedByLoad, d.Priced)
	s.float(d.MarginMS, d.PromptTokens, d.BlockTokens, d.PredictedTTFTMS)
	s.number(d.TieKey)
	s.number(uint64(d.Tied))
	s.number(d.SnapshotVersion)
	s.number(uint64(d.SnapshotAt))
	s.number(uint64(d.PredictedCached))
	e, x := &d.Engine, &d.Context
	s.float(e.Base, e.PTok, e.PAttn, e.DSeq, e.DCtx, e.Chunk)
	s.float(x.Pressure, x.MeanOutput, x.OwnOutput, x.Exchange, x.HitShare, x.AdapterMS)
	for i := range d.Candidates {
		s.candidate(&d.Candidates[i])
	}
}

func (s *summer) candidate(c *route.Candidate) {
	s.number(uint64(uint32(c.Slot)))
	s.b = append(s.b, byte(c.Drop))
	s.text(c.Endpoint)
	s.float(c.CostMS)
	if c.Drop != route.DropNone {
		return // what else is in it was left by an earlier pick
	}
	s.yes(c.Full, c.Joins)
	s.number(uint64(uint32(c.Hit)))
	s.float(c.OwnMS)
	s.small(c.Terms[:]...)
	s.number(uint64(uint32(c.InFlight)))
	s.number(uint64(uint32(c.Unstarted)))
	s.number(uint64(uint32(c.Queued)))
	s.small(c.Cached, c.Uncached, c.Streams, c.CtxTokens, c.PendingMS, c.AheadMS, c.Behind, c.QueuedKV,
		c.UsedKV, c.NewKV, c.LimitKV, c.SeatsFree, c.AdapterMS, c.Speed, c.Running, c.Waiting, c.KVUsage, c.ScrapeAgeMS)
}
