// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"encoding/binary"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/penstock-project/penstock/internal/engine"
)

// eventStream publishes what enters and leaves the KV cache, as the real engine does:
// three frames (topic, sequence, msgpack batch) on a ZMQ PUB socket that binds where
// the endpoint has a star and connects otherwise. Its maps are guarded by Server.mu.
type eventStream struct {
	endpoint, topic string
	block, rank     int
	sock            zmq4.Socket
	cancel          context.CancelFunc
	queue           chan []byte
	replay          string // endpoint of the replay socket; "": off
	router          zmq4.Socket
	sent            struct { // what a reader may ask for again
		sync.Mutex
		first   uint64 // number of the first of batches
		batches [][]byte
	}
	done    sync.WaitGroup
	changes []engine.BlockChange
	known   map[uint64]*blockMeta
}

// blockMeta is what an event tells of a block beside its hash.
type blockMeta struct {
	tokens  []uint32
	adapter string
	salt    string // only on the first block of a chain
	refs    int    // jobs that may store it
	stored  bool
}

// eventQueue is how many batches may wait for the socket; later ones are dropped,
// which readers see as a gap in the sequence.
const eventQueue = 10000

func newEventStream(endpoint, replay, model string, block, rank int) (*eventStream, error) {
	ctx, cancel := context.WithCancel(context.Background())
	e := &eventStream{endpoint: endpoint, topic: "kv@" + strings.TrimPrefix(endpoint, "tcp://") + "@" + model, block: block, rank: rank,
		cancel: cancel, queue: make(chan []byte, eventQueue), known: map[uint64]*blockMeta{}}
	bind := strings.Contains(endpoint, "*")
	// Only a socket that dials may dial again: one that listens would dial itself.
	e.sock = zmq4.NewPub(ctx, zmq4.WithAutomaticReconnect(!bind), zmq4.WithDialerRetry(200*time.Millisecond), zmq4.WithDialerMaxRetries(-1))
	if bind {
		if err := e.sock.Listen(strings.Replace(endpoint, "*", "0.0.0.0", 1)); err != nil {
			cancel()
			return nil, err
		}
	}
	if replay != "" {
		e.replay, e.router = replay, zmq4.NewRouter(ctx)
		if err := e.router.Listen(strings.Replace(replay, "*", "0.0.0.0", 1)); err != nil {
			cancel()
			_ = e.sock.Close()
			return nil, err
		}
		e.done.Add(1)
		go e.answer()
	}
	e.done.Add(1)
	go e.run(ctx, !bind)
	return e, nil
}

// run sends what is queued. A socket that connects waits for its reader first.
func (e *eventStream) run(ctx context.Context, dial bool) {
	defer e.done.Done()
	if dial && e.sock.Dial(e.endpoint) != nil {
		return
	}
	var seq uint64
	for {
		select {
		case <-ctx.Done():
			return
		case batch := <-e.queue:
			head := binary.BigEndian.AppendUint64(nil, seq)
			seq++
			e.keep(batch)
			// A reader that is away misses events, as with the real engine.
			_ = e.sock.SendMulti(zmq4.NewMsgFrom([]byte(e.topic), head, batch))
		}
	}
}

// replayMost is how many batches can be asked for again, as in the real engine.
const replayMost = 10000

// keep remembers a batch for a replay.
func (e *eventStream) keep(batch []byte) {
	if e.router == nil {
		return
	}
	s := &e.sent
	s.Lock()
	defer s.Unlock()
	s.batches = append(s.batches, batch)
	if len(s.batches) > replayMost {
		s.batches, s.first = s.batches[1:], s.first+1
	}
}

// answer replays batches: a request is an empty frame and the number to start from;
// the answers are an empty frame, a number and a batch each, the last with number -1.
func (e *eventStream) answer() {
	defer e.done.Done()
	for {
		m, err := e.router.Recv()
		if err != nil {
			return
		}
		if len(m.Frames) != 3 || len(m.Frames[2]) != 8 {
			continue
		}
		id, from := m.Frames[0], binary.BigEndian.Uint64(m.Frames[2])
		s := &e.sent
		s.Lock()
		first, batches := s.first, slices.Clone(s.batches)
		s.Unlock()
		for i, b := range batches {
			if n := first + uint64(i); n >= from {
				_ = e.router.SendMulti(zmq4.NewMsgFrom(id, nil, binary.BigEndian.AppendUint64(nil, n), b))
			}
		}
		_ = e.router.SendMulti(zmq4.NewMsgFrom(id, nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil))
	}
}

func (e *eventStream) close() {
	e.cancel()
	_ = e.sock.Close()
	if e.router != nil {
		_ = e.router.Close()
	}
	e.done.Wait()
}

// learn remembers the tokens of the blocks that a job may store; forget is its
// inverse.
func (e *eventStream) learn(j *job) {
	for i, h := range j.seq.Blocks {
		m := e.known[h]
		if m == nil {
			m = &blockMeta{tokens: j.tokens[i*e.block : (i+1)*e.block], adapter: j.seq.Adapter}
			if i == 0 {
				m.salt = j.salt
			}
			e.known[h] = m
		}
		m.refs++
	}
}

func (e *eventStream) forget(j *job) {
	for _, h := range j.seq.Blocks {
		if m := e.known[h]; m != nil {
			m.refs--
			e.drop(h, m)
		}
	}
}

func (e *eventStream) drop(h uint64, m *blockMeta) {
	if m.refs <= 0 && !m.stored {
		delete(e.known, h)
	}
}

// send queues a batch with what has changed since the last call.
func (e *eventStream) send(c *engine.Core) {
	e.changes = c.TakeBlockChanges(e.changes[:0])
	if len(e.changes) == 0 {
		return
	}
	var list []any
	for _, ch := range e.changes {
		list = append(list, e.event(&ch))
	}
	now := time.Now()
	batch, err := msgpack.Marshal([]any{float64(now.UnixMicro()) / 1e6, list, e.rank})
	if err != nil {
		return
	}
	select {
	case e.queue <- batch:
	default:
	}
}

func (e *eventStream) event(ch *engine.BlockChange) map[string]any {
	switch ch.Kind {
	case engine.BlocksRemoved:
		for _, h := range ch.Blocks {
			if m := e.known[h]; m != nil {
				m.stored = false
				e.drop(h, m)
			}
		}
		return map[string]any{"type": "BlockRemoved", "block_hashes": ch.Blocks, "medium": "GPU", "group_idx": 0}
	case engine.BlocksCleared:
		for h, m := range e.known {
			m.stored = false
			e.drop(h, m)
		}
		return map[string]any{"type": "AllBlocksCleared"}
	}
	var tokens []uint32
	var keys []any
	var name, parent, id any
	if ch.HasParent {
		parent = ch.Parent
	}
	for _, h := range ch.Blocks {
		var key any
		if m := e.known[h]; m != nil {
			m.stored = true
			tokens = append(tokens, m.tokens...)
			var extra []string
			if m.adapter != "" {
				name, id = m.adapter, 1
				extra = append(extra, m.adapter)
			}
			if m.salt != "" {
				extra = append(extra, m.salt)
			}
			if extra != nil {
				key = extra
			}
		}
		keys = append(keys, key)
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": ch.Blocks, "parent_block_hash": parent, "token_ids": tokens,
		"block_size": e.block, "lora_id": id, "medium": "GPU", "lora_name": name, "extra_keys": keys,
		"group_idx": 0, "kv_cache_spec_kind": "full_attention",
	}
}

func (s *Server) kvEventSources(w http.ResponseWriter, _ *http.Request) {
	all := map[string]any{}
	for _, r := range s.ranks {
		src := map[string]any{"enable_kv_cache_events": false, "publisher": "null", "endpoint": nil, "replay_endpoint": nil, "buffer_steps": 10000, "hwm": 100000, "max_queue_size": eventQueue, "topic": ""}
		if r.events != nil {
			src["enable_kv_cache_events"], src["publisher"], src["endpoint"], src["topic"] = true, "zmq", r.events.endpoint, r.events.topic
			if r.events.replay != "" {
				src["replay_endpoint"] = r.events.replay
			}
		}
		all[strconv.Itoa(r.n)] = src
	}
	writeValue(w, all)
}
