// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/kube"
)

// testKubeconfig writes a kubeconfig of an API server that nobody runs.
func testKubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	text := `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}],
contexts: [{name: c, context: {cluster: c, user: u, namespace: models}}], current-context: c}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPoolsThroughKubernetes: the flags and the file make the same sources, and an
// API server that is away keeps nothing from starting.
func TestPoolsThroughKubernetes(t *testing.T) {
	for _, c := range []struct {
		args, source string
	}{
		{"--selector app=vllm,tier=gold --namespace ns --port 8001", "pods app=vllm,tier=gold in ns, ports [8001]"},
		{"--selector app=vllm", "pods app=vllm in models, ports [8000]"},
		{"--inference-pool ns/chat", "InferencePool ns/chat"},
	} {
		cfg, err := configFromFlags(t, c.args)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		cfg.Listen.HTTP, cfg.Listen.Admin = "127.0.0.1:0", "127.0.0.1:0"
		s, err := buildServer(serverOptions{Config: cfg, Kubeconfig: testKubeconfig(t)})
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if got := s.pools[0].source; got != c.source {
			t.Errorf("%s: source %q, want %q", c.args, got, c.source)
		}
		if st := s.consolePools()[0].Control(); st.AgeMS != nil {
			t.Errorf("%s: the API server looks as if it had answered: %+v", c.args, st)
		}
		s.Close()
	}
	if _, err := configFromFlags(t, "--inference-pool chat"); err == nil {
		t.Error("a name without a namespace is taken")
	}
	if _, err := configFromFlags(t, "--selector app --namespace n"); err == nil {
		t.Error("a label without a value is taken")
	}
}

func TestFailureModeIsNamed(t *testing.T) {
	for want, k := range map[string]kube.Pool{
		"FailOpen":            {Picker: "epp", FailureMode: "FailOpen"},
		"FailClose":           {Picker: "epp", FailureMode: "FailClose"},
		"FailClose (not set)": {Picker: "epp"},
		"":                    {},
	} {
		if got := failureMode(&k); got != want {
			t.Errorf("%+v: %q, want %q", k, got, want)
		}
	}
}

// configFromFlags makes the configuration that `serve` would run with.
func configFromFlags(t *testing.T, args string) (*config.Config, error) {
	t.Helper()
	f := &serveFlags{}
	c := serveCmd(&Env{Stderr: &bytes.Buffer{}})
	c.ResetFlags()
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8080", "")
	fl.StringVar(&f.epp, "epp", "", "")
	f.register(fl)
	if err := fl.Parse(strings.Fields(args)); err != nil {
		return nil, err
	}
	return f.load(&Env{Stderr: &bytes.Buffer{}}, c)
}
