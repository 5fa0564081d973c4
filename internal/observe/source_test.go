// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/fleet"
)

type fakeDNS struct {
	mu    sync.Mutex
	addrs []netip.Addr
	err   error
}

func (d *fakeDNS) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addrs, d.err
}

func (d *fakeDNS) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", []*net.SRV{{Target: "n2.example.", Port: 81}, {Target: "n1.example.", Port: 80}}, nil
}

func collect(t *testing.T, s Source) func() []string {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var mu sync.Mutex
	var last []string
	go func() {
		_ = s.Run(ctx, func(list []Target) {
			mu.Lock()
			defer mu.Unlock()
			last = nil
			for _, e := range list {
				last = append(last, e.URL)
			}
		})
	}()
	return func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(last)
	}
}

func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")}}
		got := collect(t, DNS{URL: "https://vllm.example:8000", Resolver: d})
		w := []string{"https://10.0.0.1:8000", "https://10.0.0.2:8000", "https://[fd00::1]:8000"}
		if g := got(); !slices.Equal(g, w) {
			t.Errorf("got %v", g)
		}
		d.mu.Lock()
		d.addrs, d.err = nil, errors.New("server failure")
		d.mu.Unlock()
		time.Sleep(time.Minute)
		if g := got(); !slices.Equal(g, w) {
			t.Errorf("a failed lookup changed the list: %v", g)
		}
		d.mu.Lock()
		d.addrs, d.err = []netip.Addr{netip.MustParseAddr("10.0.0.9")}, nil
		d.mu.Unlock()
		time.Sleep(6 * time.Second)
		if g := got(); !slices.Equal(g, []string{"https://10.0.0.9:8000"}) {
			t.Errorf("got %v", g)
		}
		srv := collect(t, DNS{URL: "http://_vllm._tcp.example", Resolver: d})
		if g := srv(); !slices.Equal(g, []string{"http://n1.example:80", "http://n2.example:81"}) {
			t.Errorf("SRV: %v", g)
		}
	})
}

func TestFileSource(t *testing.T) {
	file := filepath.Join(t.TempDir(), "replicas")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		got := collect(t, File{Path: file})
		if g := got(); g != nil {
			t.Errorf("without a file: %v", g)
		}
		write("# two\nhttp://a:1\nhttp://b:2/  # the second\n")
		time.Sleep(3 * time.Second)
		w := []string{"http://a:1", "http://b:2"}
		if g := got(); !slices.Equal(g, w) {
			t.Errorf("got %v", g)
		}
		write("http://a:1\nnonsense\n")
		time.Sleep(3 * time.Second)
		if g := got(); !slices.Equal(g, w) {
			t.Errorf("a broken file changed the list: %v", g)
		}
		write("- http://c:3\n- {url: http://d:4, id: d, rank: 1, role: prefill}\n")
		time.Sleep(3 * time.Second)
		if g := got(); !slices.Equal(g, []string{"http://c:3", "http://d:4"}) {
			t.Errorf("got %v", g)
		}
	})
}

func TestParseTargets(t *testing.T) {
	list, err := ParseTargets("f", []byte(`[{"url": "http://d:4/x/", "id": "d", "rank": 1, "role": "prefill"}, "https://e"]`))
	if err != nil {
		t.Fatal(err)
	}
	w := []Target{{ID: "d", URL: "http://d:4/x", Role: fleet.RolePrefill, Rank: 1}, {ID: "e:443", URL: "https://e", Rank: -1}}
	if d := cmp.Diff(w, list); d != "" {
		t.Error(d)
	}
	for text, msg := range map[string]string{
		"http://a:1\n\nnonsense":             "f:3: not a base URL",
		"http://a:1\nhttp://a:1/":            "f:2: replica \"a:1\" is there twice",
		"- {url: http://a:1, port: 3}":       `f:1: unknown field "port"`,
		"- {url: http://a:1, role: both2}":   "unknown role",
		"- [http://a:1]":                     "want a URL or",
		"- http://user:pw@a:1":               "credentials",
		"[1, 2":                              "f: yaml",
		"http://a:1/?x=1":                    "drop what follows",
		"http://a:1\nHTTP://A:1":             "f:2: replica \"a:1\" is there twice",
		"http://\xff:1":                      "ASCII",
		"http://café:1":                      "ASCII",
		"- {url: http://a:1, rank: first}\n": "cannot unmarshal",
	} {
		if _, err := ParseTargets("f", []byte(text)); err == nil || !strings.Contains(err.Error(), msg) {
			t.Errorf("%q: error %v, want %q", text, err, msg)
		}
	}
}

func FuzzTargets(f *testing.F) {
	f.Add([]byte("http://a:1\n# c\nhttps://b\n"))
	f.Add([]byte(`[{"url": "http://d:4/x/", "id": "d", "rank": 1, "role": "prefill"}]`))
	f.Add([]byte("- &a http://x\n- *a\n"))
	f.Add([]byte("htTp://\xb8\xb8I000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := ParseTargets("f", b)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, e := range list {
			if e.ID == "" || seen[e.ID] || !utf8.ValidString(e.ID) || !strings.HasPrefix(e.URL, "http://") && !strings.HasPrefix(e.URL, "https://") {
				t.Fatalf("target %+v", e)
			}
			seen[e.ID] = true
		}
	})
}

func FuzzModels(f *testing.F) {
	f.Add([]byte(`{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseModels(b)
		if err == nil && (slices.Contains(list.names, "") || !slices.IsSorted(list.names)) {
			t.Fatalf("%q", list.names)
		}
	})
}
