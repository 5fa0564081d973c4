// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A server that is told SIGUSR2 hands its sockets to the binary at its path. Streams
// that run end with the old process; requests that come meanwhile never see a refused
// or a reset connection.
func TestHandover(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the binary")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "penstock")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	release := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
			w.(http.Flusher).Flush()
			<-release
			fmt.Fprint(w, "data: [DONE]\n\n")
			return
		}
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m"}],"choices":[{"message":{"content":"a"}}]}`)
	}))
	defer engine.Close()
	var freed sync.Once
	free := func() { freed.Do(func() { close(release) }) }
	defer free()

	gateway, admin := unusedAddr(t), unusedAddr(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	logName := filepath.Join(dir, "log")
	logFile, err := os.Create(logName)
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	cmd := exec.Command(bin, "serve", "--replica", engine.URL, "--listen", gateway, "--admin", admin)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	var next int
	defer func() {
		_ = cmd.Process.Kill()
		if next > 0 {
			_ = syscall.Kill(next, syscall.SIGKILL)
		}
		if t.Failed() {
			b, _ := os.ReadFile(logName)
			t.Logf("%s", b)
		}
	}()
	waitReady(t, ctx, admin)

	var streams []*http.Response
	for range 20 {
		streams = append(streams, postTo(t, http.DefaultClient, gateway, `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true}`))
	}
	var asked, bad atomic.Int64
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked.Add(1)
				resp, err := c.Post("http://"+gateway+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"a"}]}`))
				if err != nil || resp.StatusCode != 200 {
					bad.Add(1)
					t.Logf("a request meanwhile: %v %v", resp, err)
				}
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
	if err := cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	next = successor(t, ctx, logName)
	time.Sleep(200 * time.Millisecond) // let clients meet the old process as it drains
	close(stop)
	clients.Wait()
	free()
	for i, s := range streams {
		last := ""
		for sc := bufio.NewScanner(s.Body); sc.Scan(); {
			if sc.Text() != "" {
				last = sc.Text()
			}
		}
		s.Body.Close()
		if last != "data: [DONE]" {
			t.Errorf("stream %d ended with %q", i, last)
		}
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the old process did not end")
	}
	// Over a connection of its own: those of the streams were the old process's.
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp := postTo(t, fresh, gateway, `{"model":"m","messages":[{"role":"user","content":"a"}]}`)
	resp.Body.Close()
	if asked.Load() < 4 || bad.Load() > 0 {
		t.Errorf("%d of %d requests failed", bad.Load(), asked.Load())
	}
}

func waitReady(t *testing.T, ctx context.Context, admin string) {
	t.Helper()
	for ctx.Err() == nil {
		if resp, err := http.Get("http://" + admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("not ready")
}

func postTo(t *testing.T, c *http.Client, addr, body string) *http.Response {
	t.Helper()
	resp, err := c.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	return resp
}

// successor waits for the line that tells of the handover and returns the new pid.
func successor(t *testing.T, ctx context.Context, logName string) int {
	t.Helper()
	for ctx.Err() == nil {
		b, _ := os.ReadFile(logName)
		if _, rest, ok := strings.Cut(string(b), "to_pid="); ok {
			var pid int
			if _, err := fmt.Sscanf(rest, "%d", &pid); err == nil {
				return pid
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("no handover")
	return 0
}
