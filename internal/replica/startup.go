// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"fmt"
	"time"
)

// logf writes one line of the log, in the shape of the engine's.
func (s *Server) logf(format string, a ...any) {
	fmt.Fprintf(s.opt.Log, "INFO %s [replica] %s\n", time.Now().Format("01-02 15:04:05.000"), fmt.Sprintf(format, a...))
}

// startup logs the stages of a start while it lets Options.Startup pass, divided as
// the profile's stages are. Without it the stages are logged at once.
func (s *Server) startup(ctx context.Context) error {
	p := &s.profile
	began := time.Now()
	total := p.StartupSeconds()
	share := func(name string) time.Duration {
		for _, st := range p.Startup {
			if st.Name == name && total > 0 {
				return time.Duration(float64(s.opt.Startup) * st.Seconds / total)
			}
		}
		return 0
	}
	wait := func(d time.Duration) error {
		if d <= 0 {
			return ctx.Err()
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("replica: start-up interrupted: %w", ctx.Err())
		}
	}
	steps := []struct {
		stage string
		line  string
	}{
		{"schedule", fmt.Sprintf("Simulated engine, wire format of vLLM %s, profile %s", Version, p.Name)},
		{"", fmt.Sprintf("Architecture of %s resolved; maximum model length %d", p.Model, p.MaxModelLen)},
		{"pull", "Engine core initialising"},
		{"weights", "Loading model weights"},
		{"", fmt.Sprintf("Model weights loaded in %.2f s", share("weights").Seconds())},
		{"compile", "Compiling kernels"},
		{"", fmt.Sprintf("GPU KV cache size: %d tokens in %d blocks of %d", p.Blocks()*p.BlockTokens, p.Blocks(), p.BlockTokens)},
		{"capture", "Capturing graphs"},
		{"warm-up", "Warming up"},
	}
	for _, st := range steps {
		s.logf("%s", st.line)
		if err := wait(share(st.stage)); err != nil {
			return err
		}
	}
	if err := wait(s.opt.Startup - time.Since(began)); err != nil {
		return err
	}
	s.logf("Engine initialised in %.2f s (profile, KV cache, warm-up)", time.Since(began).Seconds())
	s.logf("Supported tasks: generate, embed")
	return nil
}
