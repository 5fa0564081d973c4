// SPDX-License-Identifier: Apache-2.0

// Package load drives an OpenAI-compatible endpoint with a workload and measures
// what its clients see: time to the first token, gaps between tokens, the whole
// answer, errors by kind, tokens per second and the hit ratio of the prefix cache.
//
// The HTTP client is its own: HTTP/1.1 over plain sockets or TLS, one buffer a
// connection, a time stamp for every read. A generator that burns the processor
// that it shares with what it measures would measure itself.
//
// An answer counts as good only if it came to its own end with content: an error
// inside a 200 stream, a stream that breaks off and an empty success are errors,
// and no error has a time to first token.
package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Target is the endpoint under load.
type Target struct {
	URL  string // base URL without /v1 and without a slash at the end
	host string // for the Host header
	addr string // host:port to dial
	path string // prefix of every path
	tls  bool
	Key  string // sent as a bearer token; "" for none
}

// ParseTarget reads a base URL such as http://127.0.0.1:8080. A /v1 at its end is
// dropped.
func ParseTarget(s string) (*Target, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("target %q is no base URL such as http://127.0.0.1:8080", s)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("target %q must be scheme, host and path only", s)
	}
	t := &Target{host: u.Host, addr: u.Host, tls: u.Scheme == "https"}
	t.path = strings.TrimSuffix(strings.TrimRight(u.EscapedPath(), "/"), "/v1")
	if u.Port() == "" {
		port := "80"
		if t.tls {
			port = "443"
		}
		t.addr = net.JoinHostPort(u.Hostname(), port)
	}
	t.URL = u.Scheme + "://" + u.Host + t.path
	return t, nil
}

// Model is one model that an endpoint lists.
type Model struct {
	ID         string
	Parent     string // base model of an adapter; "" for a base model
	MaxContext int    // tokens of prompt and answer together; 0 unknown
}

// Models asks the endpoint for its models.
func (t *Target) Models(ctx context.Context) ([]Model, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	if t.Key != "" {
		req.Header.Set("Authorization", "Bearer "+t.Key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s/v1/models: %s: %s", t.URL, resp.Status, excerpt(body))
	}
	var list struct {
		Data []struct {
			ID         string `json:"id"`
			Parent     string `json:"parent"`
			MaxContext int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("GET %s/v1/models: %w", t.URL, err)
	}
	var models []Model
	for _, m := range list.Data {
		models = append(models, Model{ID: m.ID, Parent: m.Parent, MaxContext: m.MaxContext})
	}
	return models, nil
}

// excerpt is the beginning of a body on one line, without control characters.
func excerpt(b []byte) string {
	const most = 200
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b[:min(len(b), most)]), "?"))
	return strings.TrimSpace(s)
}
