// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fleetBench is an index of 1,000 replicas and 4 million (block, replica) pairs:
// 40 applications with a system prompt of 50 to 500 blocks each on dozens of
// replicas, long sessions that grow turn by turn to 1,563 blocks (200,000 tokens
// of text), and as many short ones.
type fleetBench struct {
	x       *Index
	rng     *rand.Rand
	systems [][]uint64
	longs   []benchSession
	hits    []int32
}

type benchSession struct {
	slot   int32
	blocks []uint64
}

const (
	benchReplicas = 1000
	benchBlocks   = 4_000_000
	benchPrompt   = 1563
)

func newFleetBench(events bool, timed func(do func())) *fleetBench {
	f := &fleetBench{
		x: NewIndex(Options{Events: events}), rng: rand.New(rand.NewPCG(1, 2)),
		hits: make([]int32, benchReplicas),
	}
	for s := range int32(benchReplicas) {
		f.x.Add(s, benchBlocks/benchReplicas*10/9)
	}
	for i := range 40 {
		f.systems = append(f.systems, long(50+f.rng.IntN(450), uint64(i+1)))
	}
	for f.x.Stats().Entries < benchBlocks*99/100 {
		f.session(timed)
	}
	return f
}

// session plays one session on one replica, with one turn in eight elsewhere.
func (f *fleetBench) session(timed func(do func())) {
	s := benchSession{slot: int32(f.rng.IntN(benchReplicas))}
	s.blocks = slices.Clone(f.systems[f.rng.IntN(len(f.systems))])
	end := len(s.blocks) + 8 + f.rng.IntN(60)
	if f.rng.IntN(2) == 0 {
		end = benchPrompt
	}
	for c := f.rng.Uint64(); len(s.blocks) < end; {
		for range min(end-len(s.blocks), 5+f.rng.IntN(120)) {
			c = Chain(c, 1)
			s.blocks = append(s.blocks, c)
		}
		slot := s.slot
		if f.rng.IntN(8) == 0 {
			slot = int32(f.rng.IntN(benchReplicas))
		}
		timed(func() { f.x.Unpin(0, f.x.Pin(0, slot, s.blocks)) })
	}
	if end == benchPrompt && len(f.longs) < 2000 {
		f.longs = append(f.longs, s)
	} else if end == benchPrompt {
		f.longs[f.rng.IntN(len(f.longs))] = s
	}
}

// cpuNow is the CPU time of this thread. On a shared machine the clock on the wall
// measures the neighbours.
func cpuNow(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// pushedOff counts how often the machine took the processor away from this thread.
// What it comes back to is a cache full of other processes' data, and hundreds of
// microseconds of misses count as its own time: those calls say nothing of the index.
func pushedOff(b *testing.B) int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		b.Fatal(err)
	}
	return r.Nivcsw
}

// calls are the CPU times of single calls.
type calls struct {
	b         *testing.B
	took      []time.Duration
	disturbed []time.Duration // those in which the processor was taken away
	sum       time.Duration
}

func newCalls(b *testing.B) *calls {
	return &calls{b: b, took: make([]time.Duration, 0, 1<<20)}
}

func (c *calls) time(do func()) {
	off, start := pushedOff(c.b), cpuNow(c.b)
	do()
	d := cpuNow(c.b) - start
	c.sum += d
	if pushedOff(c.b) != off {
		c.disturbed = append(c.disturbed, d)
		return
	}
	c.took = append(c.took, d)
}

// report prints quantiles, and the maximum of the disturbed calls apart.
func (c *calls) report() {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	if slices.Sort(c.took); len(c.took) > 0 {
		c.b.ReportMetric(us(c.took[len(c.took)*99/100]), "p99-us")
		c.b.ReportMetric(us(c.took[len(c.took)-1]), "max-us")
	}
	if len(c.disturbed) > 0 {
		c.b.ReportMetric(us(slices.Max(c.disturbed)), "max-disturbed-us")
	}
}

// BenchmarkIndex prints the figures of an index at full scale, in CPU time: the 99th
// percentile and the maximum of a call while it fills, of a look-up over all replicas and of a whole request,
// block operations (blocks looked up or recorded) a second, bytes a (block, replica)
// pair, and the longest step of a removal.
func BenchmarkIndex(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, events := range []bool{false, true} {
		name := map[bool]string{false: "approximate", true: "events"}[events]
		var grow calls
		f := newFleetBench(events, func(do func()) {
			grow.b = b
			grow.time(do)
		})
		st := f.x.Stats()
		b.Run(name+"/growth", func(b *testing.B) {
			for b.Loop() { // it was measured while the index was filled
			}
			grow.b = b
			grow.report()
		})
		b.Run(name+"/lookup", func(b *testing.B) {
			f.lookups(b)
			b.ReportMetric(float64(st.Bytes)/float64(st.Entries), "bytes/pair")
			b.ReportMetric(float64(st.Reserved)/float64(st.Entries), "reserved-bytes/pair")
			b.ReportMetric(float64(st.Entries)/1e6, "Mpairs")
		})
		b.Run(name+"/requests", f.requests)
		b.Run(name+"/removal", f.removals)
	}
}

func (f *fleetBench) lookups(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCalls(b)
	for b.Loop() {
		s := &f.longs[f.rng.IntN(len(f.longs))]
		c.time(func() { f.x.Match(s.blocks, f.hits) })
	}
	c.report()
}

// requests looks up, pins and unpins; every tenth goes to a replica that does not
// have the prompt and pushes others out.
func (f *fleetBench) requests(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	blocks, c := 0, newCalls(b)
	for b.Loop() {
		s := &f.longs[f.rng.IntN(len(f.longs))]
		slot := s.slot
		if f.rng.IntN(10) == 0 {
			slot = int32(f.rng.IntN(benchReplicas))
		}
		c.time(func() {
			f.x.Match(s.blocks, f.hits)
			f.x.Unpin(0, f.x.Pin(0, slot, s.blocks))
		})
		blocks += 3 * len(s.blocks)
	}
	b.ReportMetric(float64(blocks)/c.sum.Seconds()/1e6, "Mblocks/cpu-s")
	c.report()
}

func (f *fleetBench) removals(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCalls(b)
	for b.Loop() {
		slot := int32(f.rng.IntN(benchReplicas))
		c.time(func() { f.x.Clear(slot) })
		for more := true; more; {
			c.time(func() { more = f.x.Sweep(sweepStep) })
		}
		f.x.Insert(0, slot, f.longs[f.rng.IntN(len(f.longs))].blocks)
	}
	c.report()
}

// BenchmarkIndexUnshared prints the bytes a pair where nothing is shared and
// prompts are short: the dearest case of real traffic.
func BenchmarkIndexUnshared(b *testing.B) {
	for _, events := range []bool{false, true} {
		b.Run(map[bool]string{false: "approximate", true: "events"}[events], func(b *testing.B) {
			rng := rand.New(rand.NewPCG(3, 4))
			x := NewIndex(Options{Events: events})
			for s := range int32(100) {
				x.Add(s, 1<<20)
			}
			for x.Stats().Entries < 1_000_000 {
				x.Insert(0, int32(rng.IntN(100)), long(4+rng.IntN(36), rng.Uint64()))
			}
			for b.Loop() {
			}
			st := x.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Entries), "bytes/pair")
			b.ReportMetric(float64(st.Reserved)/float64(st.Entries), "reserved-bytes/pair")
		})
	}
}

// BenchmarkIndexEvents measures stored and removed events in batches of 16 blocks:
// chains of 1,024 blocks grow at 8 replicas and are taken down from their ends.
func BenchmarkIndexEvents(b *testing.B) {
	x := NewIndex(Options{Events: true})
	var chains [8][]uint64
	for s := range int32(8) {
		x.Add(s, 1<<20)
		chains[s] = append(long(256, 3), long(768, uint64(s)+4)...)
	}
	const batch, batches = 16, 1024 / 16
	gone := make([]uint64, batch)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	blocks, begin := 0, cpuNow(b)
	for i := 0; b.Loop(); i++ {
		slot, k := i%8, i/8%(2*batches)
		c := chains[slot]
		if k < batches {
			parent := uint64(0)
			if k > 0 {
				parent = c[k*batch-1]
			}
			x.StoreBlocks(int32(slot), parent, c[k*batch:(k+1)*batch])
		} else {
			at := (2*batches - 1 - k) * batch
			copy(gone, c[at:at+batch])
			slices.Reverse(gone)
			x.RemoveBlocks(int32(slot), gone)
		}
		blocks += batch
	}
	b.ReportMetric(float64(blocks)/(cpuNow(b)-begin).Seconds()/1e6, "Mblocks/cpu-s")
}
