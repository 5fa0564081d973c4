// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/replica"
)

func replicaCmd(e *Env) *cobra.Command {
	var o replica.Options
	var profile, control string
	c := grouped(groupRun, &cobra.Command{
		Use:   "replica --model NAME",
		Short: "Run one simulated vLLM-compatible server",
		Long: `Run one simulated vLLM-compatible server: the HTTP API, metrics and start-up of
vLLM 0.32 on a model of an accelerator and a wall clock. Answers are filler text.
Every answer says so in its Server header, and so does /version.`,
		Example: `  penstock replica --model llama-3.1-8b --listen 127.0.0.1:8000
  penstock replica --model m --profile qwen3-32b-2xh100 --speed 10
  penstock replica --model m --startup 40s --control 127.0.0.1:8100`,
		Args: noArgs,
	})
	f := c.Flags()
	f.StringArrayVar(&o.Models, "model", nil, "model name to serve; repeat for aliases (required)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8000", "address to listen on")
	f.StringVar(&profile, "profile", engine.DefaultProfile, "engine profile: "+strings.Join(profileNames(), ", ")+", or a YAML file")
	f.Float64Var(&o.Speed, "speed", 1, "how many times faster than the modelled accelerator")
	f.DurationVar(&o.Startup, "startup", 0, "time from start until the port answers")
	f.IntVar(&o.MaxSeqs, "max-num-seqs", 0, "cap on running requests (default: the profile's)")
	f.IntVar(&o.MaxQueued, "max-num-queued-reqs", 0, "refuse with 503 when so many requests are in flight (default: no limit)")
	f.IntVar(&o.KVTokens, "kv-tokens", 0, "size of the KV cache in tokens (default: the profile's)")
	f.IntVar(&o.MaxModelLen, "max-model-len", 0, "longest prompt plus answer in tokens (default: the profile's)")
	f.IntVar(&o.Ranks, "ranks", 1, "data-parallel ranks behind the address, each with a cache and seats of its own; a request names one in X-data-parallel-rank")
	f.BoolVar(&o.IgnoreRank, "ignore-rank-header", false, "take the idlest rank whatever a request names")
	f.StringArrayVar(&o.LoRA, "lora", nil, "LoRA adapter to serve from the start, NAME or NAME=PATH; repeatable")
	f.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", 0, "how long running answers may go on after SIGTERM")
	f.DurationVar(&o.KeepAlive, "keep-alive", 5*time.Second, "close idle connections after it")
	f.BoolVar(&o.SleepMode, "enable-sleep-mode", false, "answer /sleep and /wake_up")
	f.IntVar(&o.StreamInterval, "stream-interval", 1, "tokens a streamed chunk, at least")
	f.Float64Var(&o.OutputMean, "output-mean", 180, "mean length of answers that nothing cuts short, in tokens")
	f.StringVar(&o.KVReplay, "kv-replay", "", "ZMQ endpoint where readers of KV events ask again for what they lost, e.g. tcp://*:5558")
	f.StringVar(&o.KVEvents, "kv-events", "", "ZMQ endpoint of the KV event stream, e.g. tcp://127.0.0.1:5557 (connects) or tcp://*:5557 (binds)")
	f.StringVar(&control, "control", "", "address of the test-only control API: faults, restart, kill")
	c.RunE = func(c *cobra.Command, _ []string) error {
		p, err := loadProfile(profile)
		if err != nil {
			return err
		}
		o.Profile, o.Log = p, e.Stderr
		if err := checkReplicaFlags(&o); err != nil {
			return err
		}
		return runReplica(c.Context(), e, o, control)
	}
	return c
}

func profileNames() []string {
	var names []string
	for _, p := range engine.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

// loadProfile finds a built-in profile or reads a YAML file with the fields of
// engine.Profile.
func loadProfile(name string) (engine.Profile, error) {
	if p, ok := engine.Lookup(name); ok {
		return p, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return engine.Profile{}, usagef("built-in profiles: "+strings.Join(profileNames(), ", "), "profile %q is neither built in nor a readable file: %v", name, err)
	}
	p, _ := engine.Lookup(engine.DefaultProfile)
	p = engine.Profile{Name: name, TensorParallel: 1, BlockTokens: p.BlockTokens, ChunkTokens: p.ChunkTokens, MaxSeqs: p.MaxSeqs, MaxModelLen: p.MaxModelLen}
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	dec.KnownFields(true)
	if err := dec.Decode(&p); err != nil {
		return engine.Profile{}, usagef("", "profile %s: %v", name, err)
	}
	if err := p.Validate(); err != nil {
		return engine.Profile{}, usagef("times are in seconds", "%v", err)
	}
	return p, nil
}

func checkReplicaFlags(o *replica.Options) error {
	if len(o.Models) == 0 {
		return usagef("for example: penstock replica --model llama-3.1-8b", "--model is missing")
	}
	if !(o.Speed > 0) || o.Speed > 1e6 {
		return usagef("", "--speed %v must be in (0; 1e6]", o.Speed)
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"startup", o.Startup}, {"shutdown-timeout", o.ShutdownTimeout}, {"keep-alive", o.KeepAlive}} {
		if d.v < 0 {
			return usagef("", "--%s %v must not be negative", d.name, d.v)
		}
	}
	for _, n := range []struct {
		name string
		v    int
	}{{"max-num-seqs", o.MaxSeqs}, {"max-num-queued-reqs", o.MaxQueued}, {"kv-tokens", o.KVTokens}, {"max-model-len", o.MaxModelLen}, {"stream-interval", o.StreamInterval}} {
		if n.v < 0 {
			return usagef("", "--%s %d must not be negative", n.name, n.v)
		}
	}
	if o.Ranks < 1 || o.Ranks > 128 {
		return usagef("", "--ranks %d must be in [1; 128]", o.Ranks)
	}
	if !(o.OutputMean >= 1) || o.OutputMean > 1e6 {
		return usagef("", "--output-mean %v must be in [1; 1e6]", o.OutputMean)
	}
	return nil
}

// runReplica serves until the context ends, then drains.
func runReplica(ctx context.Context, e *Env, o replica.Options, control string) error {
	s, err := replica.New(o)
	if err != nil {
		return usagef("", "%v", err)
	}
	defer s.Close()
	if control != "" {
		ln, err := net.Listen("tcp", control)
		if err != nil {
			return listenFault("--control", control, err)
		}
		srv := &http.Server{Handler: s.Control(), ReadHeaderTimeout: time.Minute}
		defer srv.Close()
		go srv.Serve(ln) //nolint:errcheck // ends with the command
		fmt.Fprintf(e.Stderr, "penstock: control API on http://%s (test only)\n", ln.Addr())
	}
	if err := s.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return errSilent(ExitFailed)
		}
		return listenFault("--listen", o.Listen, err)
	}
	<-ctx.Done()
	// A second signal cuts the wait for running answers short.
	again, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s.Shutdown(again)
	return nil
}

// listenFault names a port that is in use.
func listenFault(flag, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return &Fault{Code: ExitFailed, Err: fmt.Errorf("%s %s is in use by another process", flag, addr), Hint: "choose another port with " + flag + ", or port 0 for any"}
	}
	return &Fault{Code: ExitFailed, Err: fmt.Errorf("%s %s: %w", flag, addr, err)}
}
