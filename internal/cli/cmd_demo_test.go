// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"
)

// A short demo is complete: both policies, no error, the better hit ratio where it
// belongs, and nothing left behind.
func TestDemoEndToEnd(t *testing.T) {
	var out, errs bytes.Buffer
	e := &Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Context: t.Context()}
	f := &demoFlags{listen: "127.0.0.1:0", admin: "127.0.0.1:0", phase: 3 * time.Second, seed: 1}
	if err := runDemo(t.Context(), e, f, true); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var r demoReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if r.Schema != "penstock/demo/v1" || r.Replicas != 8 || len(r.Phases) != 2 ||
		r.Formula.Random != 0.0875 || r.Formula.Aware < 0.559 || r.Formula.Aware > 0.561 {
		t.Fatalf("%s", out.String())
	}
	for i, p := range r.Phases {
		if p.Policy != demoPolicies[i] || p.Errors != 0 || p.Requests == 0 || p.TTFT.P50 <= 0 || p.TTFT.P99 < p.TTFT.P50 {
			t.Errorf("phase %+v", p)
		}
	}
	if a, b := r.Phases[0].HitRatio, r.Phases[1].HitRatio; a >= b {
		t.Errorf("hit ratio %.2f under random and %.2f under penstock", a, b)
	}
}

func TestDemoEndsCleanly(t *testing.T) {
	var errs bytes.Buffer
	e := &Env{Stderr: &errs, Getenv: func(string) string { return "" }, Context: t.Context()}
	d, err := startDemo(t.Context(), e, "127.0.0.1:0", "127.0.0.1:0", demoPolicies[1])
	if err != nil {
		d.close()
		t.Fatal(err)
	}
	addrs := []string{strings.TrimPrefix(d.server.GatewayURL(), "http://"), strings.TrimPrefix(d.server.AdminURL(), "http://")}
	for _, r := range d.replicas {
		addrs = append(addrs, r.Addr())
	}
	d.close()
	for _, a := range addrs {
		if c, err := net.Dial("tcp", a); err == nil {
			c.Close()
			t.Errorf("%s still listens", a)
		}
	}
}

func TestDemoNamesAPortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var errs bytes.Buffer
	e := &Env{
		Args: []string{"demo", "--listen", ln.Addr().String(), "--admin", "127.0.0.1:0", "--duration", "20s"}, Stderr: &errs,
		Stdout: &errs, Getenv: func(string) string { return "" }, Context: t.Context(),
	}
	if code := Main(e); code != ExitFailed || !strings.Contains(errs.String(), ln.Addr().String()+": the port is in use by ") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func TestDemoRefusesBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--duration 3s": "--duration must be at least 20s",
		"--phase 1s":    "--phase must be at least 2s",
		"-o json":       "-o json needs --duration",
		"now":           "takes no arguments",
	} {
		var out, errs bytes.Buffer
		e := &Env{Args: append([]string{"demo"}, strings.Fields(args)...), Stdout: &out, Stderr: &errs,
			Getenv: func(string) string { return "" }, Context: t.Context()}
		if code := Main(e); code != ExitUsage || !strings.Contains(errs.String(), want) || out.Len() > 0 {
			t.Errorf("%s: exit %d, %s%s", args, code, out.String(), errs.String())
		}
	}
}

func TestWeatherLine(t *testing.T) {
	var b bytes.Buffer
	ms := 340.0
	printWeather(&b, &weatherEvent{
		AtS: 12, ForS: 5, Replica: "r2", Event: "dies", Seen: "failed: /health: connection refused", SeenMS: &ms,
		Sent: 3, Retried: 2, Requests: 60, Lost: map[string]int{"truncated": 1}, TTFT: &demoTTFT{P50: 150, P99: 600},
	})
	want := `   12 s  r2 dies for 5 s
         router saw  after 340 ms: failed: /health: connection refused
         requests    60 in all, 3 ended there, 2 retried elsewhere, lost: 1 truncated
         TTFT        p50 150 ms, p99 600 ms

`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}
