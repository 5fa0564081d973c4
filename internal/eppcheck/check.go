// SPDX-License-Identifier: Apache-2.0

// Package eppcheck is a black-box suite for endpoint pickers: it plays the proxy
// against any server of the ext-proc endpoint picker protocol and says, check by
// check, what holds.
//
// The checks come from the protocol text of the Gateway API Inference Extension
// and from what a real Envoy does with the answers. A check never depends on how a
// picker decides, only on what it owes the proxy.
package eppcheck

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Verdict of one check.
type Verdict string

// Verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
	Skip Verdict = "skip"
)

// Result of one check.
type Result struct {
	Name   string  `json:"name"`
	Result Verdict `json:"result"`
	Detail string  `json:"detail"`
}

// Report is what `penstock check epp -o json` prints.
type Report struct {
	Schema    string   `json:"schema"` // penstock/check/v1
	Address   string   `json:"address"`
	TLS       bool     `json:"tls"`
	Endpoints []string `json:"endpoints"`
	Checks    []Result `json:"checks"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
}

// Options of a run.
type Options struct {
	Address string // host:port of the picker
	Model   string // a model that the pool serves; "" only for pickers that do not look at it
	// Endpoints are members of the pool, ip:port. Empty: learned from picks, which
	// may miss some.
	Endpoints []string
	// Timeout of one exchange; default 3 s. A picker that hangs costs this much.
	Timeout time.Duration
	// Progress is called after each check.
	Progress func(Result)
}

// probe is the connection and what was learned of the pool.
type probe struct {
	o    Options
	conn *grpc.ClientConn
	api  extprocv3.ExternalProcessorClient
	tls  bool
}

// check is one named check. It returns a detail for the table, or an error that
// says what was owed and what came instead. errSkip skips.
type check struct {
	name string
	run  func(ctx context.Context, p *probe) (string, error)
}

// ModelError says that the picker refuses the plainest request there is because of
// the model it names. No check would say anything after that.
type ModelError struct {
	Model  string
	Status int    // 400 or 404
	Detail string // what the picker said
}

// Error names the model and the answer.
func (e *ModelError) Error() string {
	if e.Model == "" {
		return "the picker wants to know the model: " + e.Detail
	}
	return fmt.Sprintf("the picker knows no model %q: %s", e.Model, e.Detail)
}

// knowsModel asks for one pick and returns a *ModelError if it is refused for the
// model's sake. Every other fault is left to the checks.
func (p *probe) knowsModel(ctx context.Context) error {
	k, err := p.post(ctx, p.chat("x"), nil, subset{})
	if err != nil || k.immediate == nil {
		return nil
	}
	code := int(k.immediate.GetStatus().GetCode())
	if code != 404 && (code != 400 || p.o.Model != "") {
		return nil
	}
	return &ModelError{Model: p.o.Model, Status: code, Detail: k.valid().Error()}
}

type skipError struct{ why string }

func (e skipError) Error() string { return e.why }

// dial tries TLS first and plaintext second, as pickers ship both.
func dial(ctx context.Context, o Options) (*grpc.ClientConn, bool, error) {
	var errs []error
	for _, useTLS := range []bool{true, false} {
		creds := insecure.NewCredentials()
		if useTLS {
			creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // a probe, not a client
		}
		conn, err := grpc.NewClient("passthrough:///"+o.Address, grpc.WithTransportCredentials(creds),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			return nil, false, err
		}
		c, cancel := context.WithTimeout(ctx, o.Timeout)
		s, err := extprocv3.NewExternalProcessorClient(conn).Process(c)
		if err == nil {
			err = s.Send(headersFrame("GET", "/v1/models", nil, true, subset{}))
		}
		if err == nil {
			_, err = s.Recv()
		}
		cancel()
		if err == nil || answered(err) {
			return conn, useTLS, nil
		}
		if len(errs) == 0 || errs[0].Error() != err.Error() { // nobody listens: once is enough
			errs = append(errs, err)
		}
		_ = conn.Close()
	}
	return nil, false, fmt.Errorf("no picker answers at %s: %w", o.Address, errors.Join(errs...))
}

// Run runs the whole suite. It returns a *ModelError if the picker asks for another
// model than o.Model, and any other error if no picker answers.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Timeout <= 0 {
		o.Timeout = 3 * time.Second
	}
	conn, useTLS, err := dial(ctx, o)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	p := &probe{o: o, conn: conn, api: extprocv3.NewExternalProcessorClient(conn), tls: useTLS}
	if err := p.knowsModel(ctx); err != nil {
		return nil, err
	}
	if len(p.o.Endpoints) == 0 {
		p.o.Endpoints = p.learn(ctx)
	}
	rep := &Report{Schema: "penstock/check/v1", Address: o.Address, TLS: useTLS, Endpoints: p.o.Endpoints}
	for _, c := range checks() {
		cctx, cancel := context.WithTimeout(ctx, 4*o.Timeout)
		detail, err := c.run(cctx, p)
		cancel()
		r := Result{Name: c.name, Result: Pass, Detail: detail}
		var skip skipError
		switch {
		case errors.As(err, &skip):
			r.Result, r.Detail = Skip, skip.why
			rep.Skipped++
		case err != nil:
			r.Result, r.Detail = Fail, err.Error()
			rep.Failed++
		default:
			rep.Passed++
		}
		rep.Checks = append(rep.Checks, r)
		if o.Progress != nil {
			o.Progress(r)
		}
		if ctx.Err() != nil {
			return rep, ctx.Err()
		}
	}
	return rep, nil
}

// Names returns the names of all checks in order.
func Names() []string {
	var out []string
	for _, c := range checks() {
		out = append(out, c.name)
	}
	return out
}

func checks() []check {
	all := []check{}
	all = append(all, protocolChecks()...)
	all = append(all, bodyChecks()...)
	all = append(all, responseChecks()...)
	all = append(all, subsetChecks()...)
	all = append(all, errorChecks()...)
	all = append(all, lifeChecks()...)
	return all
}
