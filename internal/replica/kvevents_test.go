// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/penstock-project/penstock/internal/testinput"
)

// TestKVEvents reads the event stream as a router does: it binds, the replica
// connects; frames are topic, sequence and a batch of maps.
func TestKVEvents(t *testing.T) {
	endpoint := fmt.Sprintf("tcp://127.0.0.1:%d", testinput.Port(t))
	sub := zmq4.NewSub(context.Background())
	defer sub.Close()
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
		t.Fatal(err)
	}
	if err := sub.Listen(endpoint); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{KVEvents: endpoint, KVTokens: 1600, LoRA: []string{"ad1"}})
	if _, b := get(t, s, "/kv_event_sources"); !strings.Contains(b, endpoint) {
		t.Errorf("sources %s", b)
	}
	msgs := make(chan zmq4.Msg, 100)
	go func() {
		for {
			m, err := sub.Recv()
			if err != nil {
				close(msgs)
				return
			}
			msgs <- m
		}
	}()
	// Until the subscription has arrived at the publisher, events are lost; ask until
	// one is seen.
	var first zmq4.Msg
	n := 0
	eventually(t, "an event arrives", func() bool {
		ask(t, s, fmt.Sprintf(`{"model":"ad1","max_tokens":40,"ignore_eos":true,"cache_salt":"s","messages":[{"role":"user","content":"%d %s"}]}`, n, strings.Repeat("word ", 60)))
		n++
		select {
		case first = <-msgs:
			return true
		default:
			return false
		}
	})
	seq := binary.BigEndian.Uint64(first.Frames[1])
	stored, removed := 0, 0
	check := func(m zmq4.Msg) {
		if len(m.Frames) != 3 || !strings.HasPrefix(string(m.Frames[0]), "kv@127.0.0.1:") || !strings.HasSuffix(string(m.Frames[0]), "@tiny") {
			t.Fatalf("frames %q", m.Frames)
		}
		if got := binary.BigEndian.Uint64(m.Frames[1]); got != seq {
			t.Fatalf("sequence %d, want %d", got, seq)
		}
		seq++
		var batch []any
		if err := msgpack.Unmarshal(m.Frames[2], &batch); err != nil || len(batch) != 3 {
			t.Fatalf("batch %v %v", batch, err)
		}
		for _, e := range batch[1].([]any) {
			ev := e.(map[string]any)
			hashes := ev["block_hashes"].([]any)
			switch ev["type"] {
			case "BlockStored":
				stored++
				if tokens := ev["token_ids"].([]any); len(tokens) != 16*len(hashes) {
					t.Errorf("%d tokens for %d blocks", len(tokens), len(hashes))
				}
				if ev["lora_name"] != "ad1" || ev["medium"] != "GPU" {
					t.Errorf("event %v", ev)
				}
				keys := ev["extra_keys"].([]any)
				if first := fmt.Sprint(keys[0]); ev["parent_block_hash"] == nil && first != "[ad1 s]" || ev["parent_block_hash"] != nil && first != "[ad1]" {
					t.Errorf("keys %v after parent %v", keys, ev["parent_block_hash"])
				}
			case "BlockRemoved":
				removed++
			}
		}
	}
	check(first)
	for removed == 0 || stored < 3 { // the cache is small: the next prompts push older ones out
		ask(t, s, fmt.Sprintf(`{"model":"ad1","max_tokens":40,"ignore_eos":true,"cache_salt":"s","messages":[{"role":"user","content":"%d %s"}]}`, n, strings.Repeat("word ", 60)))
		n++
		check(<-msgs)
	}
	s.mu.Lock()
	known, cached := len(s.ranks[0].events.known), s.stats(s.now()).KVCachedTokens/16
	s.mu.Unlock()
	if known != cached {
		t.Errorf("remembers %d blocks, %d are cached", known, cached)
	}
}
