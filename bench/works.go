// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/bench/proctree"
)

// work is one kind of traffic.
type work struct {
	name string
	unit string // what cpu_us counts
	once bool   // not repeated
	skip map[string]bool
	run  func(ctx context.Context, addr string, d time.Duration) (sample, error)
	// warm runs the work so long before it is measured, length while it is.
	warm, length time.Duration
	during       func(l *lab) // runs beside the work
	streams      int          // that are open at a time, where memory for each is told; 0: it is not
}

// sample is what the clients saw.
type sample struct {
	n      int // requests or chunks
	failed int
	delays []float64 // milliseconds
}

// measured is a sample with what it cost the contender.
type measured struct {
	sample
	cpu      float64 // microseconds per unit; negative: nothing to measure
	rss      float64 // MiB after the work
	grown    float64 // MiB during it
	rate     float64 // units a second
	p50, p99 float64
	slow     int     // requests that took more than half a second
	each     float64 // KiB a stream, at most while they ran; 0: not asked for
}

func works(s settings) []work {
	long, warm, stream := 3*time.Second, 500*time.Millisecond, 3*time.Second
	if s.quick { // all in a minute; streams need longer, as opening them counts as well
		long, warm, stream = 400*time.Millisecond, 100*time.Millisecond, 700*time.Millisecond
	}
	all := []work{
		// First, so that the memory that it takes is seen from a fresh process.
		{name: "index-16k", unit: "request", run: fixed(16, 20000, uniqueRequests()), once: true,
			skip: map[string]bool{"direct": true, "rawfloor": true, "penstock-portable": true, "penstock-boundary": true, "litellm": true}},
		{name: "chat-2k", unit: "request", run: closed(8, chatRequests()), warm: warm, length: long},
		{name: "chat-2k-open", unit: "request", run: open(500, chatRequests()), warm: warm, length: long},
		{name: "sse-chunk", unit: "chunk", run: streams(50, 10*time.Millisecond), length: stream},
		{name: "sse-chunk-500", unit: "chunk", run: streams(500, 50*time.Millisecond), length: stream, skip: map[string]bool{"litellm": true}},
		{name: "prompt-400k", unit: "request", run: closed(4, longRequests()), warm: warm, length: long},
	}
	all = append(all, scaleWorks()...)
	return slices.DeleteFunc(all, func(w work) bool { return !wanted(s.works, w.name) })
}

// measure runs w through c.
func (l *lab) measure(ctx context.Context, c *contender, w work) (measured, error) {
	if w.warm > 0 {
		if _, err := w.run(ctx, c.addr, w.warm); err != nil {
			return measured{}, err
		}
	}
	m := measured{cpu: -1}
	var cpu, rss float64
	if c.pid > 0 {
		cpu, rss = proctree.CPUSeconds(c.pid), proctree.ResidentMB(c.pid)
	}
	begin := time.Now()
	var err error
	if w.during != nil {
		go w.during(l)
	}
	peak := watchPeak(c.pid, w.streams > 0)
	m.sample, err = w.run(ctx, c.addr, w.length)
	most := peak()
	if err != nil {
		return m, err
	}
	if w.streams > 0 && c.pid > 0 {
		m.each = (most - rss) * 1024 / float64(w.streams)
	}
	if m.n == 0 {
		return m, fmt.Errorf("no %s succeeded%s", w.unit, l.log(c.name))
	}
	m.rate = float64(m.n) / time.Since(begin).Seconds()
	if c.pid > 0 {
		m.cpu = (proctree.CPUSeconds(c.pid) - cpu) / float64(m.n) * 1e6
		m.rss = proctree.ResidentMB(c.pid)
		m.grown = m.rss - rss
	}
	slices.Sort(m.delays)
	for i := len(m.delays) - 1; i >= 0 && m.delays[i] > 500; i-- {
		m.slow++
	}
	m.p50, m.p99 = quantile(m.delays, 0.5), quantile(m.delays, 0.99)
	return m, nil
}

// watchPeak looks at the memory of a process until the function that it returns is
// called, which tells the most in MiB.
func watchPeak(pid int, on bool) func() float64 {
	if !on || pid == 0 {
		return func() float64 { return 0 }
	}
	stop, most := make(chan struct{}), make(chan float64)
	go func() {
		p := 0.0
		for {
			select {
			case <-stop:
				most <- p
				return
			case <-time.After(time.Second):
				p = max(p, proctree.ResidentMB(pid))
			}
		}
	}()
	return func() float64 { close(stop); return <-most }
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// request makes the n-th request of a work.
type request func(dst []byte, n uint64) []byte

// authorization is the line of the head that shows a key, the same to every contender;
// "" before there is one.
var authorization string

func post(dst, body []byte) []byte {
	dst = append(dst, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: application/json\r\n"...)
	dst = append(dst, authorization...)
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

// prose appends n bytes of words that depend on seed only.
func prose(dst []byte, seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	for end := len(dst) + n; len(dst) < end; {
		v := r.Uint64()
		for i := 0; i < 8 && len(dst) < end; i++ {
			if v&7 == 0 {
				dst = append(dst, ' ')
			} else {
				dst = append(dst, 'a'+byte(v>>3&31)%26)
			}
			v >>= 8
		}
	}
	return dst
}

// chat appends a chat request with a shared system prompt and a user's own text.
func chat(body, system []byte, user uint64, userBytes int) []byte {
	body = append(body, `{"model":"bench","max_tokens":12,"messages":[{"role":"system","content":"`...)
	body = append(body, system...)
	body = append(body, `"},{"role":"user","content":"`...)
	body = prose(body, user, userBytes)
	return append(body, `"}]}`...)
}

func chatRequests() request {
	system := prose(nil, 1, 1024)
	return func(dst []byte, n uint64) []byte { return post(dst, chat(nil, system, n+1000, 900)) }
}

// longRequests have 350 of their 400 KB in common with one of eight prefixes.
func longRequests() request {
	var prefixes [8][]byte
	for i := range prefixes {
		prefixes[i] = prose(nil, uint64(i)+1, 350_000)
	}
	tail := prose(nil, 99, 50_000)
	return func(dst []byte, n uint64) []byte {
		body := append([]byte(nil), `{"model":"bench","max_tokens":12,"messages":[{"role":"system","content":"`...)
		body = append(body, prefixes[n%8]...)
		body = append(body, `"},{"role":"user","content":"`...)
		body = strconv.AppendUint(body, n, 10)
		body = append(body, tail...)
		return post(dst, append(body, `"}]}`...))
	}
}

func uniqueRequests() request {
	return func(dst []byte, n uint64) []byte { return post(dst, chat(nil, nil, n+1<<32, 16<<10)) }
}

// openStream sends a request for a stream and reads the head of its answer.
func openStream(p *peer, body []byte) (message, error) {
	if _, err := p.Write(post(nil, body)); err != nil {
		return message{}, err
	}
	m, err := p.head()
	if err != nil {
		return m, unexpected(err)
	}
	if !bytes.HasPrefix(m.raw, []byte("HTTP/1.1 200")) {
		return m, fmt.Errorf("a stream was answered with %.20q", m.raw)
	}
	p.skip(len(m.raw))
	return m, nil
}

// exchangeOne sends one request and reads its answer.
func exchangeOne(p *peer, req []byte) error {
	if _, err := p.Write(req); err != nil {
		return err
	}
	m, err := p.head()
	if err != nil {
		return unexpected(err)
	}
	ok := bytes.HasPrefix(m.raw, []byte("HTTP/1.1 200"))
	p.skip(len(m.raw))
	if err := p.body(m, nil); err != nil {
		return err
	}
	if !ok {
		return errors.New("status is not 200")
	}
	return nil
}

func dial(addr string) (*peer, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return newPeer(c), nil
}

// users lets n clients run, each on a connection of its own, and gathers what they
// saw. A client ends by returning.
func users(n int, client func(s *sample) error) (sample, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all sample
	var first error
	for range n {
		wg.Go(func() {
			var s sample
			err := client(&s)
			mu.Lock()
			defer mu.Unlock()
			all.n += s.n
			all.failed += s.failed
			all.delays = append(all.delays, s.delays...)
			if err != nil && first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return all, first
}

// sequence numbers all requests of a run of the program, so that none repeats.
var sequence atomic.Uint64

// closed lets c clients send one request after the other.
func closed(c int, make request) func(context.Context, string, time.Duration) (sample, error) {
	return func(ctx context.Context, addr string, d time.Duration) (sample, error) {
		end := time.Now().Add(d)
		return users(c, func(s *sample) error {
			return loop(addr, s, make, func() bool { return ctx.Err() == nil && time.Now().Before(end) })
		})
	}
}

// fixed lets c clients send n requests in all.
func fixed(c, n int, make request) func(context.Context, string, time.Duration) (sample, error) {
	return func(ctx context.Context, addr string, _ time.Duration) (sample, error) {
		var sent atomic.Int64
		return users(c, func(s *sample) error {
			return loop(addr, s, make, func() bool { return ctx.Err() == nil && sent.Add(1) <= int64(n) })
		})
	}
}

func loop(addr string, s *sample, make request, more func() bool) error {
	p, err := dial(addr)
	if err != nil {
		return err
	}
	defer p.Close()
	var req []byte
	for more() {
		req = make(req[:0], sequence.Add(1))
		begin := time.Now()
		if err := exchangeOne(p, req); err != nil {
			return err
		}
		s.n++
		s.delays = append(s.delays, float64(time.Since(begin))/1e6)
	}
	return nil
}

// open sends rate requests a second at random moments; a delay counts from the
// moment at which a request was due.
func open(rate float64, make request) func(context.Context, string, time.Duration) (sample, error) {
	return func(ctx context.Context, addr string, d time.Duration) (sample, error) {
		var mu sync.Mutex
		var idle []*peer
		var all sample
		var first error
		var wg sync.WaitGroup
		r := rand.New(rand.NewPCG(7, 7))
		begin := time.Now()
		due := begin
		for ctx.Err() == nil {
			due = due.Add(time.Duration(r.ExpFloat64() / rate * 1e9))
			if due.Sub(begin) > d {
				break
			}
			time.Sleep(time.Until(due))
			at := due
			wg.Go(func() {
				p, err := borrow(&mu, &idle, addr)
				if err == nil {
					err = exchangeOne(p, make(nil, sequence.Add(1)))
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					if first == nil {
						first = err
					}
					return
				}
				all.n++
				all.delays = append(all.delays, float64(time.Since(at))/1e6)
				idle = append(idle, p)
			})
		}
		wg.Wait()
		for _, p := range idle {
			p.Close()
		}
		return all, first
	}
}

func borrow(mu *sync.Mutex, idle *[]*peer, addr string) (*peer, error) {
	mu.Lock()
	if l := *idle; len(l) > 0 {
		p := l[len(l)-1]
		*idle = l[:len(l)-1]
		mu.Unlock()
		return p, nil
	}
	mu.Unlock()
	return dial(addr)
}

// streams holds n event streams open, each with a chunk every gap for the whole
// time; a delay is that of a chunk from the engine's write to the client's read.
func streams(n int, gap time.Duration) func(context.Context, string, time.Duration) (sample, error) {
	return func(ctx context.Context, addr string, d time.Duration) (sample, error) {
		tokens := max(int(d/gap), 1)
		return users(n, func(s *sample) error {
			p, err := dial(addr)
			if err != nil {
				return err
			}
			defer p.Close()
			// Streams begin spread over one gap, as they would by themselves.
			time.Sleep(time.Duration(rand.Int64N(int64(gap))))
			body := fmt.Appendf(nil, `{"model":"bench","stream":true,"max_tokens":%d,"seed":%d,"messages":[{"role":"user","content":"%s"}]}`,
				tokens, gap.Milliseconds(), prose(nil, sequence.Add(1), 60))
			m, err := openStream(p, body)
			if err != nil {
				return err
			}
			found := stamps{s: s}
			if err := p.body(m, found.feed); err != nil {
				return err
			}
			if s.n != tokens {
				return fmt.Errorf("a stream brought %d of %d chunks", s.n, tokens)
			}
			return nil
		})
	}
}

// stamps finds the moments at which chunks were written, wherever reads cut them.
type stamps struct {
	s    *sample
	rest []byte // the end of what came before, shorter than a marker with its stamp
}

const stampMark = `" @`

func (t *stamps) feed(b []byte) {
	now := time.Now().UnixNano()
	if len(t.rest) > 0 {
		b = append(t.rest, b...)
	}
	for {
		i := bytes.Index(b, []byte(stampMark))
		if i < 0 || len(b) < i+len(stampMark)+stampLen {
			if i < 0 {
				i = max(0, len(b)-len(stampMark)+1)
			}
			t.rest = append(t.rest[:0:0], b[i:]...)
			return
		}
		b = b[i+len(stampMark):]
		if at, err := strconv.ParseInt(string(b[:stampLen]), 10, 64); err == nil {
			t.s.n++
			t.s.delays = append(t.s.delays, float64(now-at)/1e6)
		}
		b = b[stampLen:]
	}
}
