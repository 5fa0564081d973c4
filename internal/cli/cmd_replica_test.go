// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestReplicaFlags(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"replica", ExitUsage, "--model is missing"},
		{"replica --model m --speed 0", ExitUsage, "--speed 0 must be in"},
		{"replica --model m --kv-tokens -1", ExitUsage, "--kv-tokens -1 must not be negative"},
		{"replica --model m --startup -1s", ExitUsage, "--startup -1s must not be negative"},
		{"replica --model m --profile none", ExitUsage, "hint: built-in profiles: llama-3.1-8b-a100"},
		{"replica --model m --profile " + file("typo.yaml", "bsae: 1\n"), ExitUsage, "field bsae not found"},
		{"replica --model m --profile " + file("fast.yaml", "model: x/Llama-3.1-8B\naccelerator: H100 SXM\nbase: 0.001\np_tok: 0.00001\nkv_tokens: 1000\nmax_model_len: 1000\n"), ExitUsage, "memory bandwidth, 3350 GB/s"},
		{"replica --model m extra", ExitUsage, "takes no arguments"},
		{"replica --model m --listen " + busy.Addr().String(), ExitFailed, "is in use by another process"},
		{"replica --model m --listen 127.0.0.1:0 --control " + busy.Addr().String(), ExitFailed, "--control " + busy.Addr().String() + " is in use"},
	} {
		var out, errs bytes.Buffer
		e := &Env{Args: strings.Fields(tc.args), Stdout: &out, Stderr: &errs, Getenv: os.Getenv, Now: time.Now, Context: t.Context(), Terminal: func() (bool, int) { return false, 80 }}
		if code := Main(e); code != tc.code || !strings.Contains(errs.String(), tc.want) {
			t.Errorf("%s: exit %d, %s; want %d and %q", tc.args, code, errs.String(), tc.code, tc.want)
		}
		if out.Len() > 0 {
			t.Errorf("%s: standard output %q", tc.args, out.String())
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestReplicaServesUntilItIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var errs syncBuffer
	e := &Env{Args: strings.Fields("replica --model tiny --listen 127.0.0.1:0 --control 127.0.0.1:0 --speed 100"), Stdout: io.Discard, Stderr: &errs, Getenv: os.Getenv, Now: time.Now, Context: ctx, Terminal: func() (bool, int) { return false, 80 }}
	done := make(chan int, 1)
	go func() { done <- Main(e) }()
	serving := regexp.MustCompile(`Serving on (http://\S+)`)
	var url string
	for url == "" {
		select {
		case code := <-done:
			t.Fatalf("exit %d: %s", code, errs.String())
		case <-time.After(5 * time.Millisecond):
		}
		if m := serving.FindStringSubmatch(errs.String()); m != nil {
			url = m[1]
		}
	}
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"a","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	cancel()
	if code := <-done; code != ExitOK {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("the port is open after the end")
	}
}
