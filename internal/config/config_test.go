// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write golden files")

var testOptions = Options{
	Policies: []string{"penstock", "power-of-two", "random", "round-robin"},
	Profiles: []string{"llama-3.1-8b-a100"},
}

func TestEveryErrorAtOnce(t *testing.T) {
	ar, err := txtar.ParseFile("testdata/bad.txtar")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*txtar.File{}
	for i := range ar.Files {
		want[ar.Files[i].Name] = &ar.Files[i]
	}
	for _, f := range ar.Files {
		base, ok := strings.CutSuffix(f.Name, ".yaml")
		if !ok {
			continue
		}
		t.Run(base, func(t *testing.T) {
			c, err := Parse(f.Name, f.Data, testOptions)
			var errs Errors
			if !errors.As(err, &errs) || c != nil {
				t.Fatalf("got config %v, error %v; want Errors and no config", c, err)
			}
			var b bytes.Buffer
			errs.Render(&b)
			w := want[base+".want"]
			if *update {
				w.Data = b.Bytes()
				return
			}
			if d := cmp.Diff(string(w.Data), b.String()); d != "" {
				t.Error(d)
			}
		})
	}
	if *update {
		if err := os.WriteFile("testdata/bad.txtar", txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func load(t *testing.T, name string) *Config {
	t.Helper()
	c, err := Load(filepath.Join("testdata", name), testOptions)
	if err != nil {
		var b bytes.Buffer
		var errs Errors
		if errors.As(err, &errs) {
			errs.Render(&b)
		}
		t.Fatal(err, "\n", b.String())
	}
	return c
}

func TestFullFile(t *testing.T) {
	c := load(t, "full.yaml")
	p := c.Pools[0]
	if p.SLO.TTFT != 1500*time.Millisecond || p.Scale.Attainment != 0.985 || p.Models[0].Adapters[1] != "org/sql" {
		t.Errorf("pool = %+v", p)
	}
	if c.Pools[1].SLO.ITL != 100*time.Millisecond || c.Pools[1].Route.Policy != "penstock" || c.Pools[1].Scale.Max != 8 {
		t.Errorf("defaults are missing in %+v", c.Pools[1])
	}
	if c.Journal.MaxAge != 48*time.Hour || c.Journal.MaxBytes != 512<<20 {
		t.Errorf("journal = %+v", c.Journal)
	}
	if !c.IsSet("pools[0].slo.itl") || c.IsSet("pools[1].slo.itl") {
		t.Error("IsSet does not tell what the file names")
	}
	if got := c.Inert(); len(got) != 0 {
		t.Errorf("Inert = %q", got)
	}
	c.Tenants[0].Logging = "full"
	if got := c.Inert(); len(got) != 1 || !strings.Contains(got[0], "logging.rules") {
		t.Errorf("Inert = %q", got)
	}
}

func TestMissingFiles(t *testing.T) {
	src := "tls: {cert: /no/a, key: /no/b}\nauth: {keysFile: /no/c, jwt: [{issuer: https://id.example, audience: a, loginSecretFile: /no/i}]}\nlogging: {hashKeyFile: /no/d}\n" +
		"share: {secretFile: /no/e, redisPasswordFile: /no/f, redisCA: /no/g}\ntelemetry: {authorizationFile: /no/h}\n"
	c, err := Parse("penstock.yaml", []byte(src), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.MissingFiles(); len(got) != 9 {
		t.Errorf("MissingFiles = %q", got)
	}
}

func TestEmptyFileIsTheDefault(t *testing.T) {
	for _, src := range []string{"", "\n# nothing\n", "---\n", "{}", "listen:\njournal: ~\n"} {
		c, err := Parse("x", []byte(src), testOptions)
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		if d := Diff(Default(), c); len(d) != 0 {
			t.Errorf("%q differs from the default: %v", src, d)
		}
	}
	if c := Default(); c.Listen.HTTP != "127.0.0.1:8080" || c.Journal.MaxBytes != 1<<30 {
		t.Errorf("default = %+v", c)
	}
}

func TestViewMeansTheSame(t *testing.T) {
	for _, c := range []*Config{load(t, "full.yaml"), Default()} {
		var b bytes.Buffer
		if err := c.WriteYAML(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Parse("view", b.Bytes(), testOptions)
		if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
		if d := Diff(c, again); len(d) != 0 {
			t.Errorf("the view differs: %v\n%s", d, b.String())
		}
		if c.Digest() != again.Digest() {
			t.Error("digests differ")
		}
		if again, err = Parse("json", treeOf(c), testOptions); err != nil || len(Diff(c, again)) != 0 {
			t.Errorf("the JSON view differs: %v\n%s", err, treeOf(c))
		}
	}
}

func treeOf(c *Config) []byte { return tree(rootObject, c) }

func TestDiffSaysWhatIsLive(t *testing.T) {
	a := load(t, "full.yaml")
	src, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("policy: penstock", "policy: random", "127.0.0.1:9900", "127.0.0.1:9901",
		", http://127.0.0.1:8001", "", "name: spare", "name: other", "[spare]", "[other]", "itl: 80ms", "itl: 0.08s").Replace(string(src))
	b, err := Parse("b", []byte(text), testOptions)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{"listen.admin", "127.0.0.1:9900", "127.0.0.1:9901", false},
		{"pools[chat].replicas.static", "http://127.0.0.1:8000, http://127.0.0.1:8001", "http://127.0.0.1:8000", true},
		{"pools[chat].route.policy", "penstock", "random", true},
		{"pools[chat].fallback", "spare", "other", true},
		{"pools[spare]", "present", "", false},
		{"pools[other]", "", "present", false},
	}
	if d := cmp.Diff(want, Diff(a, b)); d != "" {
		t.Error(d)
	}
}

func TestValues(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
	}{{"500ms", 5e8}, {"2s", 2e9}, {"7d", 7 * 24 * time.Hour}, {"0", 0}, {"1h30m", 90 * time.Minute}} {
		got, err := parseDuration(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("%s = %v, %v", tt.in, got, err)
		}
		if back, err := parseDuration(formatDuration(got)); err != nil || back != got {
			t.Errorf("%s written as %s reads as %v, %v", tt.in, formatDuration(got), back, err)
		}
	}
	for in, want := range map[string]Bytes{"1GiB": 1 << 30, "500MB": 5e8, "1.5KiB": 1536, "0B": 0, "7B": 7} {
		got, err := parseBytes(in)
		if err != nil || got != want {
			t.Errorf("%s = %v, %v", in, got, err)
		}
		if back, err := parseBytes(got.String()); err != nil || back != got {
			t.Errorf("%s written as %s reads as %v, %v", in, got, back, err)
		}
	}
	if got := Ratio(0.985).String(); got != "98.5%" {
		t.Error(got)
	}
}

func TestSecretsArePrintedNowhere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	const canary = "canary-7f3a"
	if err := os.WriteFile(file, []byte("  "+canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSecret(file)
	if err != nil || s.Reveal() != canary {
		t.Fatal(s.Reveal(), err)
	}
	j, _ := json.Marshal(map[string]any{"k": s, "p": &s})
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "in", struct{ S Secret }{s})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s, "in", struct{ S Secret }{s})
	out := fmt.Sprintf("%v %s %q %#v %+v %v", s, s, s, s, struct{ S Secret }{s}, &s) + string(j) + log.String()
	if strings.Contains(out, canary) {
		t.Errorf("the secret shows in %s", out)
	}
	for name, content := range map[string]string{"empty": " \n", "two": "a\nb\n"} {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSecret(f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestBombs(t *testing.T) {
	var b strings.Builder
	b.WriteString("share: &a0 {peers: off}\npools:\n")
	b.WriteString("- &p0 {name: x, models: &m0 [")
	for i := range 200 {
		fmt.Fprintf(&b, "{name: m%d},", i)
	}
	b.WriteString("]}\n")
	for range 300 {
		b.WriteString("- {name: x, models: *m0}\n")
	}
	_, err := Parse("bomb", []byte(b.String()), testOptions)
	if err == nil || !strings.Contains(errText(err), "expands to more than") {
		t.Errorf("error %v", err)
	}
	if _, err := Parse("big", bytes.Repeat([]byte("# x\n"), 1<<19), testOptions); err == nil {
		t.Error("a huge file is accepted")
	}
	if _, err := Parse("loop", []byte("pools: &a [*a]\n"), testOptions); err == nil {
		t.Error("an alias of itself is accepted")
	}
}

func errText(err error) string {
	var errs Errors
	if !errors.As(err, &errs) {
		return err.Error()
	}
	var b strings.Builder
	errs.Render(&b)
	return b.String()
}

func TestIsLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.8.0.1:1": true, "localhost:1": true, "[::1]:1": true,
		":1": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "[::]:1": false, "example.org:1": false,
	} {
		if got := IsLoopback(addr); got != want {
			t.Errorf("IsLoopback(%s) = %v", addr, got)
		}
	}
}

func TestWatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "penstock.yaml")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		go Watch(ctx, file, time.Second, func() { n++ })
		step := func(want int, why string) {
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if n != want {
				t.Errorf("%s: %d calls, want %d", why, n, want)
			}
		}
		step(0, "nothing changed")
		write("b")
		step(1, "content changed")
		write("b")
		step(1, "the same content was written")
		os.Remove(file)
		step(1, "the file is gone")
		write("c")
		step(2, "the file is back")
		cancel()
	})
}

// FuzzParse holds the decoder to: it never panics, never returns a configuration
// with errors, and what it accepts survives a round trip through the view.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	ar, err := txtar.ParseFile("testdata/bad.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range ar.Files {
		f.Add(file.Data)
	}
	f.Add([]byte("pools: [{name: a, replicas: &r {static: [http://h:1]}}, {name: b, replicas: *r}]"))
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := Parse("f", src, testOptions)
		if err != nil {
			if c != nil {
				t.Fatal("a configuration and an error")
			}
			_ = errText(err)
			return
		}
		var b bytes.Buffer
		if err := c.WriteYAML(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Parse("view", b.Bytes(), testOptions)
		if err != nil {
			t.Fatalf("view is refused: %s\n%s", errText(err), b.String())
		}
		if !reflect.DeepEqual(Diff(c, again), []Change(nil)) {
			t.Fatalf("view differs: %v\n%s", Diff(c, again), b.String())
		}
	})
}
