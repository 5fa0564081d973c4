// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/bench/proctree"
)

// The chunk reader finds the end of a body wherever the reads cut it.
func TestChunksAtEveryCut(t *testing.T) {
	const text = "5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n"
	for cut := range len(text) {
		var c chunks
		var got strings.Builder
		data := func(b []byte) { got.Write(b) }
		n, done := c.feed([]byte(text[:cut]), data)
		if n != cut || done {
			t.Fatalf("cut %d: took %d, done %v", cut, n, done)
		}
		n, done = c.feed([]byte(text[cut:]+"HTTP/1.1"), data)
		if n != len(text)-cut || !done || got.String() != "hello0123456789" {
			t.Fatalf("cut %d: took %d of %d, done %v, %q", cut, n, len(text)-cut, done, got.String())
		}
	}
}

// Every proxy of this program passes answers, streams and long prompts.
func TestPlainProxies(t *testing.T) {
	engine, floorAddr, proxyAddr := listenAddr(t), listenAddr(t), listenAddr(t)
	go serveEngines([]string{engine}, time.Millisecond)
	go serveRawFloor(floorAddr, []string{engine})
	go serveReverseProxy(proxyAddr, []string{engine})
	for _, addr := range []string{engine, floorAddr, proxyAddr} {
		waitFor(t, addr)
		for _, w := range []work{
			{name: "fixed", run: fixed(2, 6, chatRequests())},
			{name: "long", run: fixed(2, 6, longRequests())},
			{name: "open", run: open(200, uniqueRequests())},
			{name: "streams", run: streams(3, 10*time.Millisecond)},
			{name: "many", run: many(20, 10*time.Millisecond, http1)},
		} {
			s, err := w.run(t.Context(), addr, 50*time.Millisecond)
			if err != nil || s.n == 0 || s.n != len(s.delays) {
				t.Errorf("%s through %s: %d units, %d delays, %v", w.name, addr, s.n, len(s.delays), err)
			}
		}
	}
}

func TestStampsAtEveryCut(t *testing.T) {
	text := []byte(chunkHead + "1234567890123456789" + chunkTail + chunkHead + "1234567890123456789" + chunkTail)
	for cut := range text {
		var s sample
		f := stamps{s: &s}
		f.feed(text[:cut])
		f.feed(text[cut:])
		if s.n != 2 {
			t.Fatalf("cut %d: %d stamps", cut, s.n)
		}
	}
}

func listenAddr(t *testing.T) string {
	t.Helper()
	a, err := freeAddrs(1)
	if err != nil {
		t.Fatal(err)
	}
	return a[0]
}

func waitFor(t *testing.T, addr string) {
	t.Helper()
	for range 6000 { // a minute
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not listen", addr)
}

func TestRatiosAreTakenWithinARepeat(t *testing.T) {
	r := &results{}
	m := func(cpu float64) measured { return measured{cpu: cpu, p50: 1, p99: 2, rate: 3} }
	r.add(0, "chat-2k", "direct", m(-1))
	for i, v := range [][2]float64{{10, 20}, {20, 40}, {10, 50}} {
		r.add(i, "chat-2k", "nginx", m(v[0]))
		r.add(i, "chat-2k", "penstock", m(v[1]))
	}
	rows := r.rows()
	if len(rows) != 3 || rows[0].CPU != nil || rows[0].Ratio != nil {
		t.Fatalf("%+v", rows)
	}
	if p := rows[2]; *p.CPU != 40 || *p.Ratio != 2 || *p.CPUMin != 20 || *p.CPUMax != 50 {
		t.Errorf("%v %v %v %v", *p.CPU, *p.Ratio, *p.CPUMin, *p.CPUMax)
	}
	var b strings.Builder
	if err := r.writeJSON(&b); err != nil {
		t.Fatal(err)
	}
	var v struct {
		Schema string
		Rows   []map[string]any
	}
	if err := json.Unmarshal([]byte(b.String()), &v); err != nil || v.Schema != "penstock/bench/v1" {
		t.Fatalf("%v %s", err, b.String())
	}
	for _, k := range []string{"work", "contender", "cpu_us", "ratio_to_nginx", "p50_ms", "p99_ms", "rss_mb"} {
		if _, ok := v.Rows[0][k]; !ok {
			t.Errorf("%s is missing", k)
		}
	}
}

func TestOwnProcessIsMeasured(t *testing.T) {
	before := proctree.CPUSeconds(os.Getpid())
	x := 0
	for i := range 50_000_000 {
		x += i
	}
	if used := proctree.CPUSeconds(os.Getpid()) - before; x == 0 || used <= 0 {
		t.Errorf("a busy loop took %v s", used)
	}
	if proctree.ResidentMB(os.Getpid()) < 1 {
		t.Error("this process seems to have no memory")
	}
}
