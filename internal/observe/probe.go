// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

const (
	maxModelsBody  = 4 << 20
	maxMetricsBody = 32 << 20
	answerTimeout  = 2 * time.Second // health and models
	scrapeTimeout  = 5 * time.Second
)

// errNoMetrics says that the engine exports none.
var errNoMetrics = errors.New("no metrics: the engine answers 404")

// prober asks one endpoint. It sends GETs only; loader is the one that changes
// anything there.
type prober struct {
	base   string
	auth   string // value of the Authorization header, "" none
	client *http.Client
	plain  *plain // nil: client does it all
	parser Parser
	path   int // index into metricPaths
}

func (p *prober) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "penstock")
	if p.auth != "" {
		req.Header.Set("Authorization", p.auth)
	}
	return p.client.Do(req)
}

// ask is get within wait, the reading of the body included, by the plain client where it
// can. ctx ends the connection, not only the request. The body must be closed.
func (p *prober) ask(ctx context.Context, path string, wait time.Duration) (*http.Response, error) {
	if p.plain != nil {
		res, err := p.plain.get(ctx, path, time.Now().Add(wait))
		if err != errUnusual {
			return res, err
		}
		p.plain = nil // it is not likely to answer otherwise next time
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	res, err := p.get(ctx, path)
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = boundBody{res.Body, cancel}
	return res, nil
}

// boundBody is a body with the context that bounds it.
type boundBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b boundBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// health asks /health. An engine without it (404) is judged by its models alone.
func (p *prober) health(ctx context.Context) (verdict, string) {
	res, err := p.ask(ctx, "/health", answerTimeout)
	if err != nil {
		return judgeError(err, "/health")
	}
	defer drop(res)
	switch s := res.StatusCode; {
	case s < 300 || s == http.StatusNotFound || s == http.StatusMethodNotAllowed:
		return lookReady, ""
	case s == http.StatusServiceUnavailable:
		// While it loads a replica answers 503, and so does one whose engine died:
		// the gate tells them apart by what it was before.
		return lookDead, "/health answers 503"
	case s >= 500:
		return lookDead, fmt.Sprintf("/health answers %d", s)
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		return lookReady, "" // something that is alive asks for a key; /v1/models will tell
	default:
		return lookLoading, fmt.Sprintf("/health answers %d", s)
	}
}

// modelList is /v1/models as all engines answer it.
type modelList struct {
	Data []struct {
		ID      string `json:"id"`
		OwnedBy string `json:"owned_by"`
		Parent  string `json:"parent"` // of an adapter
		MaxLen  int    `json:"max_model_len"`
	} `json:"data"`
}

// served is what an engine lists.
type served struct {
	names    []string // sorted, adapters included
	adapters []string // those that are adapters
	engine   Engine
	maxLen   int // tokens of prompt and answer; 0 unknown
}

// models asks /v1/models.
func (p *prober) models(ctx context.Context) (list served, v verdict, reason string) {
	res, err := p.ask(ctx, "/v1/models", answerTimeout)
	if err != nil {
		v, reason = judgeError(err, "/v1/models")
		return list, v, reason
	}
	defer drop(res)
	switch s := res.StatusCode; {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		return list, lookLoading, fmt.Sprintf("/v1/models answers %d: the replica asks for a key; set engine.apiKeyFile", s)
	case s != http.StatusOK:
		return list, lookLoading, fmt.Sprintf("/v1/models answers %d", s)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxModelsBody))
	if err != nil {
		v, reason = judgeError(err, "/v1/models")
		return list, v, reason
	}
	list, err = parseModels(body)
	if err != nil {
		return list, lookLoading, "/v1/models: " + err.Error()
	}
	return list, lookReady, ""
}

func parseModels(body []byte) (served, error) {
	var list modelList
	var out served
	if err := json.Unmarshal(body, &list); err != nil {
		return out, errors.New("the answer is not a list of models")
	}
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		out.names = append(out.names, m.ID)
		// Ollama answers to a name without a tag as well, and lists it with one.
		if short, ok := strings.CutSuffix(m.ID, ":latest"); ok && short != "" && ownerEngine(m.OwnedBy) == EngineOllama {
			out.names = append(out.names, short)
		}
		if m.MaxLen > 0 && (out.maxLen == 0 || m.MaxLen < out.maxLen) {
			out.maxLen = m.MaxLen
		}
		if m.Parent != "" && m.Parent != m.ID {
			out.adapters = append(out.adapters, m.ID)
		}
		if out.engine == EngineUnknown {
			out.engine = ownerEngine(m.OwnedBy)
		}
	}
	slices.Sort(out.names)
	slices.Sort(out.adapters)
	out.names, out.adapters = slices.Compact(out.names), slices.Compact(out.adapters)
	return out, nil
}

// scrape reads the metrics into sig, each path within wait. On error sig is not touched.
func (p *prober) scrape(ctx context.Context, e Engine, wait time.Duration, clock func() fleet.Time, sig *fleet.Signals) (Parsed, error) {
	var err error
	for try := range metricPaths {
		at := (p.path + try) % len(metricPaths)
		var out Parsed
		var next bool
		out, next, err = p.scrapePath(ctx, metricPaths[at], e, wait, clock, sig)
		if err == nil {
			p.path = at
			return out, nil
		}
		if !next {
			break
		}
	}
	return Parsed{}, err
}

// scrapePath reads one path; next says that another path is worth a try.
func (p *prober) scrapePath(ctx context.Context, path string, e Engine, wait time.Duration, clock func() fleet.Time, sig *fleet.Signals) (out Parsed, next bool, err error) {
	res, err := p.ask(ctx, path, wait)
	if err != nil {
		return Parsed{}, false, scrapeError(err, path)
	}
	defer drop(res)
	switch {
	case res.StatusCode == http.StatusNotFound:
		return Parsed{}, true, errNoMetrics
	case res.StatusCode != http.StatusOK:
		return Parsed{}, false, fmt.Errorf("%s answers %d", path, res.StatusCode)
	case strings.HasPrefix(res.Header.Get("Content-Type"), "application/json"):
		return Parsed{}, true, fmt.Errorf("%s answers JSON, not metrics", path)
	}
	p.parser.Reset(e)
	mem := readMemories.Get().(*readMemory)
	defer readMemories.Put(mem)
	total := 0
	for {
		n, err := res.Body.Read(mem.buf[:])
		total += n
		if total > maxMetricsBody {
			return Parsed{}, false, fmt.Errorf("%s is larger than 32 MiB", path)
		}
		if _, werr := p.parser.Write(mem.buf[:n]); werr != nil {
			return Parsed{}, false, fmt.Errorf("%s: %w", path, werr)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Parsed{}, false, scrapeError(err, path)
		}
	}
	out, err = p.parser.Finish(clock(), sig)
	return out, false, err
}

// errNoAnswer says that a scrape was not answered in time.
var errNoAnswer = errors.New("gave no answer in time")

// scrapeError is an error of a scrape in words.
func scrapeError(err error, path string) error {
	v, reason := judgeError(err, path)
	if v == lookSlow && strings.HasSuffix(reason, errNoAnswer.Error()) {
		return fmt.Errorf("%s %w", path, errNoAnswer)
	}
	return errors.New(reason)
}

// drop reads a little of what is left, so that the connection can be used again,
// and closes the body.
func drop(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	res.Body.Close()
}

// judgeError tells dead from slow: a refused connection is a fact, a missing
// answer is not.
func judgeError(err error, path string) (verdict, string) {
	var dns *net.DNSError
	var netErr net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return lookDead, "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return lookDead, "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return lookDead, "connection closed without an answer"
	case errors.As(err, &dns) && dns.IsNotFound:
		return lookDead, "no such host " + dns.Name
	case errors.As(err, &dns):
		return lookSlow, "host cannot be looked up"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return lookDead, "no route to host"
	case errors.As(err, &netErr) && netErr.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return lookSlow, path + " " + errNoAnswer.Error()
	}
	msg := err.Error()
	if i := strings.LastIndex(msg, `": `); i >= 0 {
		msg = msg[i+3:] // without the method and URL that net/http puts in front
	}
	return lookDead, msg
}
