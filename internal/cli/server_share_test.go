// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/share"
)

// Routers that share on loopback and were given no secret draw one that stays: the key
// of the hashes of prompts is none that a stranger could know.
func TestSharingWithoutASecretDrawsOne(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	engine := newEngine(t)
	addr := []string{unusedAddr(t), unusedAddr(t)}
	var keys []uint64
	for i := range 2 {
		s, stop := runServer(t, func(c *config.Config) { c.Share.Peers, c.Share.Listen = strings.Join(addr, ","), addr[i] }, engine.URL)
		keys = append(keys, s.hashKey)
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	if keys[0] != keys[1] || keys[0] == share.Derive(nil, "prompts") {
		t.Errorf("the keys are %x", keys)
	}
}

func TestDrawnSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "penstock", "share.secret")
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			b, err := drawnSecret(path)
			mu.Lock()
			defer mu.Unlock()
			if seen[string(b)] = true; err != nil || len(b) < 40 {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("%d secrets were read", len(seen))
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := drawnSecret(path); err == nil {
		t.Error("a file that others can read was taken")
	}
}

// The external scaler tells how busy pools are: beyond loopback only with TLS, or where
// somebody said that the network is its own.
func TestExternalScalerNeedsTLS(t *testing.T) {
	for _, c := range []struct {
		addr  string
		plain bool
		ok    bool
	}{{"127.0.0.1:0", false, true}, {"0.0.0.0:0", false, false}, {":0", false, false}, {"0.0.0.0:0", true, true}} {
		cfg := &config.Config{Listen: config.Listen{KEDA: c.addr, KEDAPlaintext: c.plain}}
		cs := &clusterScaling{s: &server{o: serverOptions{Config: cfg}}}
		if err := cs.openKEDA(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		cs.close()
	}
}
