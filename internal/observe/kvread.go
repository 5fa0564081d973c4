// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/penstock-project/penstock/internal/fleet"
)

// KVOptions of a KVReader.
type KVOptions struct {
	// Mode is auto: ask each replica where its events are; or an endpoint: with {host}
	// for the replica's host, or with * for one that replicas dial.
	Mode string
	Key  uint64 // that prompts are hashed with
	// Apply takes changes of a replica's cache in; rank is the data-parallel rank whose
	// cache it is, 0 where there is one. It must not block for long.
	Apply  func(endpoint string, rank int, changes []CacheChange)
	Client *http.Client // nil: one with a time-out
	Auth   string       // Authorization for the replicas
	Log    *slog.Logger // nil: discard
}

// KVReader reads the KV events of the replicas of a pool.
type KVReader struct {
	o KVOptions

	mu      sync.Mutex
	readers map[string]*kvReader // by endpoint ID
	ctx     context.Context      // of Run; nil before
	wg      sync.WaitGroup
}

// kvReader reads one replica.
type kvReader struct {
	id, base, model string
	start           float64
	ranks           []int // behind its address, ascending; nil unknown
	stop            context.CancelFunc
	states          map[int]KVState // by rank; guarded by KVReader.mu
}

const (
	kvAskAgain   = time.Minute // between two looks at a replica that tells of no events
	kvRetry      = time.Second
	kvReplayWait = 3 * time.Second
	kvCooldown   = 10 * time.Second // between two replays of one source
	kvMostRanks  = 256              // sources that a replica may tell of
	// Bounds of a replay: engines keep 10,000 messages.
	kvMostReplay   = 64 << 20 // bytes
	kvMostReplayed = 1 << 16  // messages
)

// NewKVReader returns a reader that does nothing before Run.
func NewKVReader(o KVOptions) *KVReader {
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 5 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &KVReader{o: o, readers: map[string]*kvReader{}}
}

// Run reads until ctx ends.
func (r *KVReader) Run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	<-ctx.Done()
	// An Observe that found the context alive holds the lock and still adds readers;
	// the next one finds it done.
	r.mu.Lock()
	//lint:ignore SA2001 waiting for whoever holds it is the purpose
	r.mu.Unlock()
	r.wg.Wait()
}

// Observe follows the replicas of a snapshot: new ones are read, those that left or
// whose process is another one are read no more.
func (r *KVReader) Observe(s *fleet.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil || r.ctx.Err() != nil {
		return
	}
	seen := map[string]bool{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Phase != fleet.PhaseReady && e.Phase != fleet.PhaseDraining {
			continue
		}
		seen[e.ID] = true
		start, ranks := e.StartTime.Or(0), ranksOf(e)
		old := r.readers[e.ID]
		if old != nil && old.base == e.URL && (r.o.Mode == "auto" || ranks == nil || slices.Equal(ranks, old.toRead())) && (start == 0 || old.start == 0 || start <= old.start+1) {
			if old.start == 0 {
				old.start = start
			}
			continue
		}
		if old != nil {
			old.stop()
		}
		ctx, stop := context.WithCancel(r.ctx)
		k := &kvReader{id: e.ID, base: e.URL, model: baseModel(&e.Endpoint), start: start, ranks: ranks, stop: stop, states: map[int]KVState{}}
		r.readers[e.ID] = k
		r.wg.Go(func() { r.read(ctx, k) })
	}
	for id, k := range r.readers {
		if !seen[id] {
			k.stop()
			delete(r.readers, id)
		}
	}
}

// ranksOf lists the data-parallel ranks that an endpoint tells of, ascending; nil: it
// does not tell. Only those: a number must not make us dial, or listen on, all ports
// below it.
func ranksOf(e *fleet.EndpointState) []int {
	if e.ScrapedAt == 0 {
		return nil
	}
	if e.Notes&fleet.NoteRanks == 0 {
		return []int{0}
	}
	var out []int
	for i := range e.Loads {
		if r := e.Loads[i].Rank; r >= 0 && r < kvMostRanks {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// toRead lists the ranks whose events are read: the first one's until more is known.
func (k *kvReader) toRead() []int {
	if len(k.ranks) == 0 {
		return []int{0}
	}
	return k.ranks
}

// baseModel is the first model that is no adapter.
func baseModel(e *fleet.Endpoint) string {
	for _, m := range e.Models {
		if !slices.Contains(e.AdapterNames, m) {
			return m
		}
	}
	return ""
}

// States tells how well each replica's events are heard, by endpoint ID. A replica
// that tells of none is not in it. Of several ranks the counts are summed; source and
// fault are the first one's that has one.
func (r *KVReader) States() map[string]KVState {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]KVState{}
	for id, k := range r.readers {
		var sum KVState
		for _, rank := range slices.Sorted(maps.Keys(k.states)) {
			s := k.states[rank]
			sum.Source, sum.Fault = cmp.Or(sum.Source, s.Source), cmp.Or(sum.Fault, s.Fault)
			sum.Batches, sum.Gaps, sum.Healed, sum.Restarts = sum.Batches+s.Batches, sum.Gaps+s.Gaps, sum.Healed+s.Healed, sum.Restarts+s.Restarts
			sum.Orphans, sum.Bad, sum.Blocks, sum.Tokens = sum.Orphans+s.Orphans, sum.Bad+s.Bad, sum.Blocks+s.Blocks, sum.Tokens+s.Tokens
			sum.Unsure = sum.Unsure || s.Unsure
			if s.Last.After(sum.Last) {
				sum.Last = s.Last
			}
		}
		if len(k.states) > 0 {
			out[id] = sum
		}
	}
	return out
}

func (r *KVReader) note(k *kvReader, rank int, s KVState) {
	r.mu.Lock()
	k.states[rank] = s
	r.mu.Unlock()
}

// kvSource is where one rank publishes.
type kvSource struct {
	rank             int
	endpoint, replay string
	bind             bool // the engine dials: we listen
}

// read follows the sources of one replica until ctx ends.
func (r *KVReader) read(ctx context.Context, k *kvReader) {
	for ctx.Err() == nil {
		sources, err := r.sources(ctx, k)
		if err == nil && len(sources) > 0 {
			var wg sync.WaitGroup
			for _, s := range sources {
				wg.Go(func() { r.follow(ctx, k, s) })
			}
			wg.Wait()
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(kvAskAgain):
		}
	}
}

// sources asks a replica where its events are, or takes what is configured.
func (r *KVReader) sources(ctx context.Context, k *kvReader) ([]kvSource, error) {
	u, err := url.Parse(k.base)
	if err != nil {
		return nil, err
	}
	if r.o.Mode != "auto" {
		var out []kvSource
		for _, rank := range k.toRead() {
			out = append(out, sourceOf(rank, rankPort(r.o.Mode, rank), "", u.Hostname()))
		}
		return out, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.base+"/kv_event_sources", nil)
	if err != nil {
		return nil, err
	}
	if r.o.Auth != "" {
		req.Header.Set("Authorization", r.o.Auth)
	}
	res, err := r.o.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %v", res.Status, err)
	}
	var told map[string]struct {
		Enable    bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal(b, &told); err != nil {
		return nil, err
	}
	var out []kvSource
	for rank, s := range told {
		n, err := strconv.Atoi(rank)
		if err != nil || !s.Enable || s.Publisher != "zmq" || s.Endpoint == "" {
			continue
		}
		src := sourceOf(n, s.Endpoint, s.Replay, u.Hostname())
		if !ownEndpoint(src.endpoint, u.Hostname()) {
			r.o.Log.Warn("a replica names a source of KV events that is not its own; name it in engine.kvEvents", "replica", k.id)
			continue
		}
		if !ownEndpoint(src.replay, u.Hostname()) {
			src.replay = ""
		}
		out = append(out, src)
	}
	if len(out) > kvMostRanks {
		return nil, fmt.Errorf("%d sources of KV events", len(out))
	}
	slices.SortFunc(out, func(a, b kvSource) int { return a.rank - b.rank })
	return out, nil
}

// rankPort is the endpoint of a rank: engines add its number to the port of the first.
func rankPort(endpoint string, rank int) string {
	i := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[i+1:])
	if rank == 0 || err != nil {
		return endpoint
	}
	return endpoint[:i+1] + strconv.Itoa(port+rank)
}

// ownEndpoint reports whether an endpoint that a replica told of is at its own host. A
// replica must not choose whom we dial, which files of this machine we open, or where
// we listen.
func ownEndpoint(endpoint, host string) bool {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	at, port, err := net.SplitHostPort(rest)
	n, bad := strconv.Atoi(port)
	return ok && err == nil && bad == nil && n > 0 && n < 1<<16 && at == host && host != ""
}

// sourceOf says what to do about an endpoint: one with a star is bound by the engine,
// and dialled at its host; any other is dialled by the engine, so we listen there.
// {host} in a configured one stands for the engine's host.
func sourceOf(rank int, endpoint, replay, host string) kvSource {
	s := kvSource{rank: rank, bind: true}
	if strings.Contains(host, ":") {
		host = "[" + host + "]" // an address of IPv6
	}
	at := strings.NewReplacer("{host}", host, "//*", "//"+host, "//0.0.0.0", "//"+host)
	if strings.ContainsAny(endpoint, "*{") || strings.Contains(endpoint, "//0.0.0.0") {
		s.bind = false
	}
	s.endpoint, s.replay = at.Replace(endpoint), at.Replace(replay)
	return s
}

// follow reads one source until ctx ends.
func (r *KVReader) follow(ctx context.Context, k *kvReader, s kvSource) {
	v := newKVView(r.o.Key, k.model)
	v.state.Source = s.endpoint
	if s.bind {
		v.state.Source += " (listening)"
	}
	for ctx.Err() == nil {
		err := r.session(ctx, k, s, v)
		if ctx.Err() != nil {
			return
		}
		v.state.Fault = err.Error()
		r.note(k, s.rank, v.state)
		select {
		case <-ctx.Done():
		case <-time.After(kvRetry):
		}
	}
}

// session reads from one socket until it fails.
func (r *KVReader) session(ctx context.Context, k *kvReader, s kvSource, v *kvView) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sub := zmq4.NewSub(ctx, zmq4.WithAutomaticReconnect(!s.bind), zmq4.WithDialerRetry(250*time.Millisecond), zmq4.WithDialerMaxRetries(-1))
	defer sub.Close()
	if err := sub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		return err
	}
	open := sub.Dial
	if s.bind {
		open = sub.Listen
	}
	at, err := bounded(s.endpoint)
	if err == nil {
		err = open(at)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.endpoint, err)
	}
	v.state.Fault = ""
	r.note(k, s.rank, v.state)
	r.o.Log.Info("reading KV events", "replica", k.id, "source", s.endpoint, "listening", s.bind)
	var asked time.Time
	for {
		m, err := sub.Recv()
		if err != nil {
			return err
		}
		if len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
			v.state.Bad++
			continue
		}
		seq := binary.BigEndian.Uint64(m.Frames[1])
		var out []CacheChange
		if v.order(seq) == restart {
			v.state.Restarts++
			v.known, v.next = false, 0
			out = v.clear(out)
		}
		switch v.order(seq) {
		case again:
			continue
		case lost:
			out = r.fill(ctx, s, v, seq, &asked, out)
		}
		b, err := decodeKV(m.Frames[2])
		if err != nil {
			v.state.Bad++
			v.known, v.next = true, seq+1
			out = append(v.doubt(out), CacheChange{Kind: CacheUsed, Tokens: float64(v.state.Tokens)})
		} else {
			out = v.take(seq, &b, time.Now(), out)
			if b.bad > 0 {
				v.state.Bad += uint64(b.bad)
				out = v.doubt(out)
			}
		}
		r.note(k, s.rank, v.state)
		rank := s.rank
		if rank == 0 { // one source may tell for all
			rank = max(0, b.rank)
		}
		r.o.Apply(k.id, rank, out)
	}
}

// doubt marks what is known as unsure.
func (v *kvView) doubt(out []CacheChange) []CacheChange {
	v.state.Unsure = true
	return append(out, CacheChange{Kind: CacheUnsure})
}

// fill makes a gap before message seq good by a replay where the engine offers one;
// else what is known is unsure from now on. Coming late is no gap: what was cached
// before is unknown, but nothing that is believed may be wrong.
func (r *KVReader) fill(ctx context.Context, s kvSource, v *kvView, seq uint64, asked *time.Time, out []CacheChange) []CacheChange {
	late := !v.known
	if !late {
		v.state.Gaps++
	}
	whole := false
	if s.replay != "" && time.Since(*asked) > kvCooldown {
		*asked = time.Now()
		if msgs, err := replayKV(ctx, s.replay, v.next, seq); err == nil {
			for _, m := range msgs {
				if late && !v.known {
					v.next = m.seq
				}
				if m.seq != v.next {
					break
				}
				b, err := decodeKV(m.payload)
				if err != nil || b.bad > 0 {
					break
				}
				out = v.take(m.seq, &b, time.Now(), out)
			}
			whole = v.known && v.next == seq
		}
	}
	switch {
	case whole && !late:
		v.state.Healed++
	case !late:
		return v.doubt(out)
	}
	return out
}

type kvMessage struct {
	seq     uint64
	payload []byte
}

// replayKV asks an engine for the messages from one number up to another, without it.
func replayKV(ctx context.Context, endpoint string, from, to uint64) ([]kvMessage, error) {
	ctx, stop := context.WithTimeout(ctx, kvReplayWait)
	defer stop()
	d := zmq4.NewDealer(ctx, zmq4.WithDialerRetry(100*time.Millisecond), zmq4.WithDialerMaxRetries(3))
	defer d.Close()
	at, err := bounded(endpoint)
	if err == nil {
		err = d.Dial(at)
	}
	if err != nil {
		return nil, err
	}
	if err := d.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, from))); err != nil {
		return nil, err
	}
	type answer struct {
		m   zmq4.Msg
		err error
	}
	answers := make(chan answer)
	go func() {
		for {
			m, err := d.Recv()
			select {
			case answers <- answer{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	var out []kvMessage
	size := 0
	for {
		select {
		case <-ctx.Done():
			return out, ctx.Err()
		case a := <-answers:
			if a.err != nil {
				return out, a.err
			}
			f := a.m.Frames
			if len(f) == 3 && len(f[0]) == 0 {
				f = f[1:]
			}
			if len(f) != 2 || len(f[0]) != 8 {
				return out, errors.New("malformed replay")
			}
			seq := binary.BigEndian.Uint64(f[0])
			if seq == ^uint64(0) || seq >= to {
				return out, nil
			}
			if size += len(f[1]); size > kvMostReplay || len(out) >= kvMostReplayed {
				return out, errors.New("a replay that is too long")
			}
			out = append(out, kvMessage{seq, slices.Clone(f[1])})
		}
	}
}
