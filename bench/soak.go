// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// errFindings ends a run that took place and found something, with exit code 3.
var errFindings = errors.New("not flat")

// soak keeps penstock under mixed traffic and watches what it holds.
type soak struct {
	stack   *soakStack
	streams int
	pause   time.Duration // between two short requests of a client
	length  time.Duration
	out     string
	begin   time.Time
}

// subject is one process under watch, with the traffic that goes through it.
type subject struct {
	name    string // the way that streams are carried
	c       *contender
	samples []held
	before  held // idle, before the traffic
	after   held // idle again, after it

	requests, streams, chunks, left atomic.Int64
	cut                             atomic.Int64 // streams that ended with an error frame, since their replica was killed
	failed                          atomic.Int64 // everything that a client may not see
	mu                              sync.Mutex
	kinds                           map[string]int // of failures, without addresses
}

func runSoak(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	s := &soak{}
	penstock := fs.String("penstock", "bin/penstock", "path of penstock")
	ways := fs.String("relay", "portable,epoll", "how streams are carried: portable, epoll or both; each has a process of its own")
	churn := fs.Duration("churn", 15*time.Second, "time between two changes of the replicas")
	fs.IntVar(&s.streams, "streams", 1000, "streams at a time, shared by the processes")
	fs.DurationVar(&s.pause, "pause", 20*time.Millisecond, "pause of each of the 8 clients between two short requests")
	fs.DurationVar(&s.length, "for", time.Hour, "how long")
	fs.StringVar(&s.out, "out", "build/soak", "directory of the report")
	if err := fs.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "penstock-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	if s.stack, err = newSoakStack(ctx, *penstock, dir, *ways, *churn); err != nil {
		return err
	}
	defer s.stack.lab.stop()
	return s.run(ctx)
}

// run loads, samples and judges.
func (s *soak) run(ctx context.Context) error {
	subjects := s.stack.subjects
	for _, u := range subjects {
		if _, err := closed(4, chatRequests())(ctx, u.c.addr, time.Second); err != nil {
			return err
		}
		u.before = u.look(0)
	}
	s.begin = time.Now()
	load, stop := context.WithTimeout(ctx, s.length)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { s.stack.change(load) })
	for _, u := range subjects {
		for range s.streams / len(subjects) {
			wg.Go(func() { s.follow(load, u) })
		}
		for range 8 / len(subjects) {
			wg.Go(func() { s.ask(load, u) })
		}
		wg.Go(func() { s.hangUp(load, u) })
	}
	for every := max(s.length/240, time.Second); load.Err() == nil; {
		select {
		case <-load.Done():
		case <-time.After(every):
			for _, u := range subjects {
				u.samples = append(u.samples, u.look(time.Since(s.begin)))
			}
		}
	}
	took := time.Since(s.begin)
	wg.Wait()
	s.stack.settle()
	for _, u := range subjects {
		for range 100 { // a ledger has 10 s to come down
			if u.after = u.look(time.Since(s.begin)); u.after.inFlight == 0 && u.after.ledger == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return s.report(took)
}

// follow opens one event stream after the other, two over each connection.
func (s *soak) follow(ctx context.Context, u *subject) {
	wait(ctx, time.Duration(rand.Int64N(int64(2*time.Second))))
	for ctx.Err() == nil {
		p, err := dial(u.c.addr)
		if err == nil {
			p.SetDeadline(time.Time{})
			err = s.twoStreams(ctx, u, p)
			p.Close()
		}
		if err != nil && ctx.Err() == nil {
			u.fail(err)
		}
	}
}

// twoStreams reads two streams of 10 s on average over one connection. Every fifth
// stream is left in its middle.
func (s *soak) twoStreams(ctx context.Context, u *subject, p *peer) error {
	leave := context.AfterFunc(ctx, func() { p.SetDeadline(time.Unix(1, 0)) })
	defer leave()
	for range 2 {
		n := 4 + rand.IntN(33)
		stay := n
		if rand.IntN(5) == 0 {
			stay = rand.IntN(n)
		}
		body := fmt.Appendf(nil, `{"model":"bench","stream":true,"max_tokens":%d,"seed":500,"messages":[{"role":"user","content":"%s"}]}`,
			n, prose(nil, sequence.Add(1), 200))
		m, err := openStream(p, body)
		if err != nil {
			return err
		}
		var seen sample
		found, broken := stamps{s: &seen}, false
		err = p.body(m, func(b []byte) {
			found.feed(b)
			broken = broken || bytes.Contains(b, []byte(`"error"`))
			if seen.n >= stay && stay < n {
				p.SetDeadline(time.Unix(1, 0)) // the next read fails: the client leaves
			}
		})
		u.chunks.Add(int64(seen.n))
		switch {
		case seen.n >= stay && stay < n:
			// Also where all that was left had come by then: the deadline is set.
			u.left.Add(1)
			return nil
		case err != nil:
			return err
		case broken:
			u.cut.Add(1)
		case seen.n != n:
			return fmt.Errorf("a stream ended whole with %d of %d chunks", seen.n, n)
		default:
			u.streams.Add(1)
		}
	}
	return nil
}

// ask sends short requests.
func (s *soak) ask(ctx context.Context, u *subject) {
	make := chatRequests()
	for ctx.Err() == nil {
		p, err := dial(u.c.addr)
		for err == nil && ctx.Err() == nil {
			p.SetDeadline(time.Now().Add(time.Minute))
			if err = exchangeOne(p, make(nil, sequence.Add(1))); err == nil {
				u.requests.Add(1)
				wait(ctx, s.pause)
			}
		}
		if p != nil {
			p.Close()
		}
		if err != nil {
			u.fail(err)
			wait(ctx, s.pause)
		}
	}
}

// hangUp leaves before the first byte: 500 ms pass before the engine's first chunk.
func (s *soak) hangUp(ctx context.Context, u *subject) {
	for ctx.Err() == nil {
		if p, err := dial(u.c.addr); err != nil {
			u.fail(err)
		} else {
			p.Write(post(nil, []byte(`{"model":"bench","stream":true,"max_tokens":9,"seed":500,"messages":[{"role":"user","content":"hello"}]}`)))
			wait(ctx, time.Duration(rand.Int64N(int64(300*time.Millisecond))))
			p.Close()
			u.left.Add(1)
		}
		wait(ctx, 200*time.Millisecond)
	}
}

func (u *subject) fail(err error) {
	u.failed.Add(1)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.kinds == nil {
		u.kinds = map[string]int{}
	}
	if kind := addresses.ReplaceAllString(err.Error(), "ADDR"); len(u.kinds) < 50 || u.kinds[kind] > 0 {
		u.kinds[kind]++
	}
}

// failures lists what failed, and how often.
func (u *subject) failures() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(u.kinds)) {
		out = append(out, fmt.Sprintf("%d x %s", u.kinds[k], k))
	}
	return strings.Join(out, ", ")
}

var addresses = regexp.MustCompile(`[0-9]+(\.[0-9]+){3}:[0-9]+`)

// wait sleeps, or returns earlier when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
