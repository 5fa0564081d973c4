// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/workload"
)

// Options describe a run. Target, Model and Feed are required.
type Options struct {
	Target *Target
	Model  string // requests of a session with an adapter name that instead
	Feed   *workload.Feed

	Completions bool          // call /v1/completions instead of /v1/chat/completions
	NoStream    bool          // ask for whole answers
	StopEarly   bool          // leave the length of the answer to the model: no ignore_eos
	Timeout     time.Duration // of one request; 0: none

	// Duration ends the sending; 0: at the end of the feed.
	Duration time.Duration
	// Grace is how long requests may still run after that; 0: for ever.
	Grace time.Duration
	// Workload names the traffic in the report.
	Workload string
	// Each is called with every result, one at a time; nil: nobody asks.
	Each func(*Result)
	// Dial opens connections; nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Progress is the state of a run at a moment.
type Progress struct {
	Elapsed      time.Duration
	Sent         int
	Done         int // ended, errors included
	Failed       int
	Running      int
	OutputTokens int64
	TTFT         time.Duration // median so far
	HitRatio     float64       // so far; negative: unknown
}

// Runner drives one run. Progress may be called at any time from any goroutine.
type Runner struct {
	opt    Options
	client *client

	mu      sync.Mutex
	tally   tally
	start   time.Time
	lastEnd time.Time
	running int
	sent    int
	wake    chan struct{} // a session got further: look at the feed again
}

// New returns a Runner for o.
func New(o Options) *Runner {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	return &Runner{opt: o, client: &client{target: o.Target, dial: dial}, wake: make(chan struct{}, 1)}
}

// Run sends the requests of the feed until it is exhausted, the duration is over or
// ctx ends, waits for the answers and returns what was measured. Requests that
// still run when ctx ends or the grace is over are cut and count as unfinished.
func (r *Runner) Run(ctx context.Context) *Report {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer r.client.close()
	r.mu.Lock()
	r.start = time.Now()
	r.mu.Unlock()
	var wg sync.WaitGroup
	r.send(ctx, &wg)

	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var grace <-chan time.Time
	if r.opt.Grace > 0 {
		t := time.NewTimer(r.opt.Grace)
		defer t.Stop()
		grace = t.C
	}
	select {
	case <-done:
	case <-grace:
		cancel()
		<-done
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	wall := r.lastEnd.Sub(r.start)
	if r.lastEnd.IsZero() {
		wall = time.Since(r.start)
	}
	rep := r.tally.report(wall)
	rep.Target, rep.Model, rep.Workload = r.opt.Target.URL, r.opt.Model, r.opt.Workload
	return rep
}

// send starts every request when it is due.
func (r *Runner) send(ctx context.Context, wg *sync.WaitGroup) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Since(r.start)
		if r.opt.Duration > 0 && now >= r.opt.Duration {
			return
		}
		r.mu.Lock()
		it, ok := r.opt.Feed.Pop(now)
		if ok {
			r.running++
			r.sent++
		}
		next, over := r.opt.Feed.NextAt(), r.opt.Feed.Exhausted()
		r.mu.Unlock()
		if ok {
			wg.Add(1)
			go r.one(ctx, wg, it, now-it.At)
			continue
		}
		if over {
			return
		}
		wait := time.Hour
		if next != workload.NeverDue {
			wait = next - now
		}
		if r.opt.Duration > 0 {
			wait = min(wait, r.opt.Duration-now)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// one runs one request and tells the feed.
func (r *Runner) one(ctx context.Context, wg *sync.WaitGroup, it workload.Item, late time.Duration) {
	defer wg.Done()
	res := Result{Item: it, Late: late}
	x := exchanges.Get().(*exchange)
	r.do(ctx, x, &res)
	end := time.Now()
	r.mu.Lock()
	r.running--
	r.tally.add(&res)
	if !res.Cut {
		r.lastEnd = end
	}
	if r.opt.Each != nil {
		r.opt.Each(&res)
	}
	bad := res.Error != "" || res.Cut
	if !bad {
		r.opt.Feed.Done(it, end.Sub(r.start))
	}
	r.mu.Unlock()
	exchanges.Put(x)
	if bad {
		r.abandon(ctx, it)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// failurePause keeps a closed loop from spinning on an endpoint that refuses at
// once.
const failurePause = 100 * time.Millisecond

// abandon gives up a session after a failed request.
func (r *Runner) abandon(ctx context.Context, it workload.Item) {
	t := time.NewTimer(failurePause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opt.Feed.Abandon(it, time.Since(r.start))
}

// Progress returns how far the run is.
func (r *Runner) Progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.tally
	p := Progress{
		Sent: r.sent, Done: t.requests, Running: r.running,
		OutputTokens: t.out, TTFT: t.ttft.Quantile(0.5), HitRatio: -1,
	}
	if !r.start.IsZero() {
		p.Elapsed = time.Since(r.start)
	}
	for _, n := range t.errors {
		p.Failed += n
	}
	if t.hitPrompt > 0 {
		p.HitRatio = float64(t.hitHits) / float64(t.hitPrompt)
	}
	return p
}
