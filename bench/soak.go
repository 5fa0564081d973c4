// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/bench/proctree"
)

// soak keeps one penstock under streams and requests and watches what it holds.
type soak struct {
	lab     *lab
	c       *contender
	streams int
	length  time.Duration
	out     string

	requests, chunks, failed atomic.Int64
	first                    atomic.Value // of the failures
	samples                  []held
}

// held is what the process holds at a moment.
type held struct {
	at                            time.Duration
	rss                           float64 // MiB
	goroutines, descriptors, open float64
	inFlight                      float64
}

func runSoak(args []string) error {
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	s := &soak{}
	penstock := fs.String("penstock", "bin/penstock", "path of penstock")
	way := fs.String("relay", "epoll", "how streams are carried: epoll or portable")
	fs.IntVar(&s.streams, "streams", 2000, "streams at a time")
	fs.DurationVar(&s.length, "for", 3*time.Minute, "how long")
	fs.StringVar(&s.out, "out", "build/soak", "directory of the report")
	if err := fs.Parse(args); err != nil {
		return err
	}
	name := "penstock"
	if *way == "epoll" {
		name = "penstock-epoll"
	}
	dir, err := os.MkdirTemp("", "penstock-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	if s.lab, err = newLab(ctx, settings{only: name, penstock: *penstock, dir: dir}); err != nil {
		return err
	}
	defer s.lab.stop()
	if len(s.lab.contenders) == 0 {
		return errAbsent
	}
	s.c = s.lab.contenders[0]
	return s.run(ctx)
}

// run loads, samples and judges.
func (s *soak) run(ctx context.Context) error {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	if _, err := closed(4, chatRequests())(ctx, s.c.addr, time.Second); err != nil {
		return err
	}
	begin := time.Now()
	s.sample(begin)
	load, stop := context.WithTimeout(ctx, s.length)
	defer stop()
	var wg sync.WaitGroup
	for range s.streams {
		wg.Go(func() { s.stream(load) })
	}
	for range 8 {
		wg.Go(func() { s.ask(load) })
	}
	for every := max(s.length/60, time.Second); load.Err() == nil; {
		time.Sleep(every)
		s.sample(begin)
	}
	wg.Wait()
	time.Sleep(time.Second)
	s.sample(begin)
	return s.report()
}

// stream opens one event stream after the other.
func (s *soak) stream(ctx context.Context) {
	time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
	for ctx.Err() == nil {
		left := int(s.length / (500 * time.Millisecond))
		n := 10 + rand.IntN(max(left/3, 10))
		body := fmt.Appendf(nil, `{"model":"bench","stream":true,"max_tokens":%d,"gap_ms":500,"messages":[{"role":"user","content":"%s"}]}`,
			n, prose(nil, sequence.Add(1), 200))
		p, err := dial(s.c.addr)
		if err == nil {
			p.SetDeadline(time.Time{})
			err = s.follow(ctx, p, body)
			p.Close()
		}
		if err != nil && ctx.Err() == nil {
			s.fail(err)
		}
	}
}

// follow reads two streams over one connection, or leaves in the middle of one.
func (s *soak) follow(ctx context.Context, p *peer, body []byte) error {
	leave := context.AfterFunc(ctx, func() { p.SetDeadline(time.Unix(1, 0)) })
	defer leave()
	for range 2 {
		if _, err := p.Write(post(nil, body)); err != nil {
			return err
		}
		m, err := p.head()
		if err != nil {
			return unexpected(err)
		}
		p.skip(len(m.raw))
		if err := p.body(m, func([]byte) { s.chunks.Add(1) }); err != nil {
			return err
		}
		if rand.IntN(4) == 0 {
			return nil // some connections end here, some in silence between streams
		}
	}
	return nil
}

// ask sends short requests.
func (s *soak) ask(ctx context.Context) {
	p, err := dial(s.c.addr)
	if err != nil {
		s.fail(err)
		return
	}
	defer p.Close()
	p.SetDeadline(time.Time{})
	make := chatRequests()
	for ctx.Err() == nil {
		if err := exchangeOne(p, make(nil, sequence.Add(1))); err != nil {
			s.fail(err)
			return
		}
		s.requests.Add(1)
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *soak) fail(err error) {
	s.failed.Add(1)
	s.first.CompareAndSwap(nil, err.Error())
}

// sample notes what the process holds.
func (s *soak) sample(begin time.Time) {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.c.pid))
	h := held{at: time.Since(begin), rss: proctree.ResidentMB(s.c.pid), descriptors: float64(len(fds))}
	if res, err := http.Get("http://" + s.c.admin + "/metrics"); err == nil {
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			v, _ := strconv.ParseFloat(value, 64)
			switch {
			case name == "go_goroutines":
				h.goroutines = v
			case name == "penstock_gateway_in_flight":
				h.inFlight = v
			case strings.HasPrefix(name, "penstock_gateway_upstream_connections{"):
				h.open += v
			}
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	s.samples = append(s.samples, h)
}

// report writes the samples and says whether they are flat.
func (s *soak) report() error {
	var tsv strings.Builder
	tsv.WriteString("seconds\trss_mb\tgoroutines\tdescriptors\tupstream\tin_flight\n")
	for _, h := range s.samples {
		fmt.Fprintf(&tsv, "%.0f\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\n", h.at.Seconds(), h.rss, h.goroutines, h.descriptors, h.open, h.inFlight)
	}
	if err := os.WriteFile(filepath.Join(s.out, "samples.tsv"), []byte(tsv.String()), 0o644); err != nil {
		return err
	}
	before, end := s.samples[0], s.samples[len(s.samples)-1]
	run := s.samples[1 : len(s.samples)-1]
	third := max(len(run)/3, 1)
	early, late := peak(run[third/2:third/2+third]), peak(run[len(run)-third:])
	text := fmt.Sprintf("%d streams for %v: %d chunks, %d requests, %d failed\n", s.streams, s.length, s.chunks.Load(), s.requests.Load(), s.failed.Load()) +
		fmt.Sprintf("memory %.0f MiB before, %.0f early, %.0f late: %.1f KiB a stream\n", before.rss, early.rss, late.rss, (late.rss-before.rss)*1024/float64(s.streams)) +
		fmt.Sprintf("goroutines %.0f before, %.0f early, %.0f late, %.0f after\n", before.goroutines, early.goroutines, late.goroutines, end.goroutines) +
		fmt.Sprintf("descriptors %.0f before, %.0f early, %.0f late, %.0f after\n", before.descriptors, early.descriptors, late.descriptors, end.descriptors) +
		fmt.Sprintf("in flight after: %.0f\n", end.inFlight)
	var faults []string
	for _, f := range []struct {
		name        string
		early, late float64
	}{{"memory", early.rss, late.rss}, {"goroutines", early.goroutines, late.goroutines}, {"descriptors", early.descriptors, late.descriptors}} {
		if f.late > f.early*1.15+20 {
			faults = append(faults, f.name+" grew")
		}
	}
	if end.inFlight > 0 {
		faults = append(faults, "requests are left in flight")
	}
	if n := s.failed.Load(); n > 0 {
		faults = append(faults, fmt.Sprintf("%d requests failed, the first: %v", n, s.first.Load()))
	}
	if faults != nil {
		text += "NOT FLAT: " + strings.Join(faults, "; ") + "\n"
	} else {
		text += "flat\n"
	}
	fmt.Print(text)
	if err := os.WriteFile(filepath.Join(s.out, "report.txt"), []byte(text), 0o644); err != nil {
		return err
	}
	if faults != nil {
		return fmt.Errorf("soak: %s", strings.Join(faults, "; "))
	}
	return nil
}

// peak is the most of each figure.
func peak(all []held) held {
	var p held
	for _, h := range all {
		p.rss, p.goroutines, p.descriptors = max(p.rss, h.rss), max(p.goroutines, h.goroutines), max(p.descriptors, h.descriptors)
	}
	return p
}
