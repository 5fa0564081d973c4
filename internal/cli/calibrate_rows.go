// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// measuredRows are the requests of the files of calibrate by the replica that
// answered them.
type measuredRows struct {
	byReplica map[string][]engine.Row
	read      int
	skipped   map[string]int // reason to count
	noCached  int            // rows whose cached tokens are unknown and count as 0
}

func (m *measuredRows) add(replica string, r engine.Row) {
	if r.Cached < 0 {
		m.noCached++
		r.Cached = 0
	}
	m.byReplica[replica] = append(m.byReplica[replica], r)
}

// readMeasured reads all files: a journal or a directory of it, a log with a header,
// or the requests of a benchmark of vLLM as JSON lines.
func readMeasured(e *Env, files []string) (*measuredRows, error) {
	m := &measuredRows{byReplica: map[string][]engine.Row{}, skipped: map[string]int{}}
	for i, name := range files {
		if err := m.readFile(e, name, fmt.Sprintf("file %d", i+1)); err != nil {
			return nil, &Fault{Code: ExitUsage, Err: err, Hint: "docs/how-to/calibrate.md describes the files that can be read"}
		}
	}
	return m, nil
}

func (m *measuredRows) readFile(e *Env, name, alone string) error {
	if info, err := os.Stat(name); name != "-" && err == nil && info.IsDir() {
		return m.journal(journal.Open(name))
	}
	in, shown := e.Stdin, "stdin"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in, shown = f, filepath.Base(name)
	}
	r := bufio.NewReaderSize(in, 64<<10)
	head, _ := r.Peek(64 << 10)
	line, _, _ := bytes.Cut(head, []byte("\n"))
	switch {
	case bytes.Contains(line, []byte(`"penstock/`)):
		return m.journal(journal.Read(shown, r))
	case bytes.Contains(line, []byte(`"queued_ts"`)):
		return m.benchmark(shown, alone, r)
	}
	if name != "-" { // it may be packed: let the reader of traces open it
		r = nil
	}
	return m.log(name, alone, r)
}

// log reads an access log of one replica.
func (m *measuredRows) log(name, replica string, stdin io.Reader) error {
	t, err := load.ReadTraceFile(name, stdin, "", workload.ReadOptions{Format: workload.FormatLog, NoJitter: true})
	if err != nil {
		return err
	}
	for _, s := range t.Sessions {
		for i := range s.Turns {
			u := &s.Turns[i]
			m.read++
			if u.Logged.TTFT < 0 || u.Logged.E2E < 0 {
				m.skipped["no ttft or e2e"]++
				continue
			}
			m.add(replica, engine.Row{
				Arrival: u.At.Seconds(), TTFT: u.Logged.TTFT.Seconds(), E2E: u.Logged.E2E.Seconds(),
				Prompt: u.PromptTokens, Cached: u.Logged.CachedTokens, Output: u.OutputTokens,
			})
		}
	}
	return nil
}

// journal reads decision records. What the router held a request back is no time of
// the replica; neither is a failed attempt before.
func (m *measuredRows) journal(records iter.Seq2[*route.Record, error]) error {
	for r, err := range records {
		if err != nil {
			return err
		}
		m.read++
		o := r.Outcome
		switch {
		case o == nil || o.Kind != "ok":
			m.skipped["not answered in full"]++
		case len(o.Attempts) > 0:
			m.skipped["more than one attempt"]++
		case o.TTFTMS == nil || o.E2EMS == nil || !r.Request.Stream:
			m.skipped["not streamed: no time to first token"]++
		case o.PromptTokens == nil || o.OutputTokens == nil:
			m.skipped["no usage from the engine"]++
		default:
			row := engine.Row{
				Arrival: float64(r.Time.UnixNano()) / 1e9, TTFT: (*o.TTFTMS - o.QueueMS) / 1e3, E2E: (*o.E2EMS - o.QueueMS) / 1e3,
				Prompt: *o.PromptTokens, Cached: -1, Output: *o.OutputTokens,
			}
			if o.CachedTokens != nil {
				row.Cached = *o.CachedTokens
			}
			m.add(r.Chosen, row)
		}
	}
	return nil
}

// benchmark reads the time stamps that a benchmark took inside vLLM, one request a
// line. They say nothing of the cache.
func (m *measuredRows) benchmark(name, replica string, in io.Reader) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		var v struct {
			Prompt *int     `json:"input_toks"`
			Output *int     `json:"output_toks"`
			Queued *float64 `json:"queued_ts"`
			First  *float64 `json:"first_token_ts"`
			Last   *float64 `json:"last_token_ts"`
		}
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if v.Prompt == nil || v.Output == nil || v.Queued == nil || v.First == nil || v.Last == nil {
			return fmt.Errorf("%s:%d: want input_toks, output_toks, queued_ts, first_token_ts and last_token_ts", name, n)
		}
		m.read++
		m.add(replica, engine.Row{
			Arrival: *v.Queued, TTFT: *v.First - *v.Queued, E2E: *v.Last - *v.Queued,
			Prompt: *v.Prompt, Cached: -1, Output: *v.Output,
		})
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// replicas lists the replicas, the one with the most rows first.
func (m *measuredRows) replicas() []string {
	return slices.SortedFunc(maps.Keys(m.byReplica), func(a, b string) int {
		return cmp.Or(len(m.byReplica[b])-len(m.byReplica[a]), cmp.Compare(a, b))
	})
}

// endToEnd lays the rows of several replicas one after the other on one clock, with
// a second in which the replica is idle between them: a fit knows one replica.
func (m *measuredRows) endToEnd(replicas []string) ([]engine.Row, error) {
	var out []engine.Row
	free := 0.0
	for _, name := range replicas {
		rows := slices.Clone(m.byReplica[name])
		slices.SortStableFunc(rows, func(a, b engine.Row) int { return cmp.Compare(a.Arrival, b.Arrival) })
		first, end := 0.0, free
		for i, r := range rows {
			if i == 0 {
				first = r.Arrival
			}
			r.Arrival += free - first
			end = max(end, r.Arrival+r.E2E)
			out = append(out, r)
		}
		free = end + 1
	}
	if len(out) == 0 {
		return nil, errors.New("no request can be used")
	}
	return out, nil
}
