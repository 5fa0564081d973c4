// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/dispatch"
)

// Who is kept from replicas for being over its share is named in status, with what it is
// left, and in the log when it begins, when it becomes another one and when it ends.
func TestOverShareIsTold(t *testing.T) {
	var out bytes.Buffer
	printQueue(&out, &console.QueueState{On: true, Bound: console.QueueBound{Times: 8, PlusS: 1}, OverShare: &console.OverShare{
		Tenant: "batch", Since: time.Now(), Replicas: 2, FairShare: 0.25, Held: 1118}})
	for _, want := range []string{"tenant batch is over its share since ", "keeps to 2 replicas", "gets 25% of work and memory", "1,118 of its requests wait"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("status does not say %q:\n%s", want, out.String())
		}
	}

	var log bytes.Buffer
	s := &server{log: slog.New(slog.NewTextHandler(&log, nil))}
	a, b := &dispatch.OverShare{Tenant: "a", Places: 2, Part: 0.25}, &dispatch.OverShare{Tenant: "b"}
	for _, step := range []struct {
		was, is     *dispatch.OverShare
		begins, end int
	}{{nil, nil, 0, 0}, {nil, a, 1, 0}, {a, a, 0, 0}, {a, b, 1, 1}, {b, nil, 0, 1}} {
		log.Reset()
		s.sayOver("chat", step.was, step.is)
		if begins, end := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "level=INFO"); begins != step.begins || end != step.end {
			t.Errorf("%v to %v logs %q", step.was, step.is, log.String())
		}
	}
}
