// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Target is one place where a replica is said to be.
type Target struct {
	ID   string // stable and unique in its pool
	URL  string // base URL without /v1
	Role fleet.Role
	Rank int // data-parallel rank that answers there, -1 where ranks are not told apart
	// Draining says that whoever runs the replica is taking it away; Reason says how
	// that is known.
	Draining bool
	Reason   string
}

// Source finds the replicas of a pool.
type Source interface {
	// Run calls up with the complete list at first and after each change, until ctx
	// ends. While a source cannot tell, it keeps silent: an endpoint that is not
	// listed is gone, one that cannot be looked up is not. up does not keep the list.
	Run(ctx context.Context, up func([]Target)) error
	// String names the source for people: "dns http://vllm:8000".
	String() string
}

// TargetFor names a target by the host and port of its URL, so that names survive
// a change of the list.
func TargetFor(base string) Target {
	base = strings.TrimRight(base, "/")
	id := base
	if u, err := url.Parse(base); err == nil && u.Host != "" {
		// Scheme and host know no case (RFC 3986 6.2.2.1): one replica has one name.
		u.Host = strings.ToLower(u.Host)
		base, id = u.String(), u.Host
		if u.Port() == "" && u.Scheme == "https" {
			id += ":443"
		} else if u.Port() == "" {
			id += ":80"
		}
		id += strings.ReplaceAll(u.EscapedPath(), "/", "_")
	}
	return Target{ID: id, URL: base, Rank: -1}
}

// Static is a fixed list.
type Static []Target

// StaticURLs is a fixed list of base URLs.
func StaticURLs(urls []string) Static {
	out := make(Static, len(urls))
	for i, u := range urls {
		out[i] = TargetFor(u)
	}
	return out
}

// Run implements Source.
func (s Static) Run(ctx context.Context, up func([]Target)) error {
	up(s)
	<-ctx.Done()
	return ctx.Err()
}

func (s Static) String() string { return "static" }

// File is a list in a file that is read again when it changes.
type File struct {
	Path  string
	Every time.Duration // 0: 2 s
	Log   *slog.Logger  // nil: discard
}

func (f File) String() string { return "file " + f.Path }

// Run implements Source. A file that is missing or broken keeps the last list.
func (f File) Run(ctx context.Context, up func([]Target)) error {
	log := orDiscard(f.Log)
	var last, told string
	first := true
	t := time.NewTicker(cmp.Or(f.Every, 2*time.Second))
	defer t.Stop()
	for {
		b, err := os.ReadFile(f.Path)
		if err == nil && (first || string(b) != last) {
			last = string(b)
			var list []Target
			if list, err = ParseTargets(f.Path, b); err == nil {
				first = false
				up(list)
			}
		}
		if err != nil && err.Error() != told {
			log.Warn("replica file is not usable, keeping the last list", "error", err)
			told = err.Error()
		} else if err == nil {
			told = ""
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// maxTargets bounds a pool.
const maxTargets = 10_000

// fileTarget is the long form of an entry.
type fileTarget struct {
	ID   string `yaml:"id"`
	URL  string `yaml:"url"`
	Role string `yaml:"role"`
	Rank *int   `yaml:"rank"`
}

// ParseTargets reads a discovery file: one base URL a line with # comments, or a
// YAML or JSON list of URLs and of {url, id, role, rank}. Errors name file and
// line.
func ParseTargets(name string, b []byte) ([]Target, error) {
	if len(b) > 4<<20 {
		return nil, fmt.Errorf("%s: larger than 4 MiB", name)
	}
	var doc yaml.Node
	plain := true
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		plain = !strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "[")
		break
	}
	if plain {
		return plainTargets(name, string(b))
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%s:1: want a list of replicas", name)
	}
	var out []Target
	for _, n := range doc.Content[0].Content {
		t, err := nodeTarget(n)
		if err == nil {
			out, err = addTarget(out, t)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n.Line, err)
		}
	}
	return out, nil
}

func plainTargets(name, text string) ([]Target, error) {
	var out []Target
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		t, err := targetOf(line)
		if err == nil {
			out, err = addTarget(out, t)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	return out, nil
}

func nodeTarget(n *yaml.Node) (Target, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		return targetOf(n.Value)
	case yaml.MappingNode:
	default:
		return Target{}, errors.New("want a URL or {url, id, role, rank}")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch k := n.Content[i].Value; k {
		case "url", "id", "role", "rank":
		default:
			return Target{}, fmt.Errorf("unknown field %q; known are url, id, role, rank", k)
		}
	}
	var f fileTarget
	if err := n.Decode(&f); err != nil {
		return Target{}, err
	}
	t, err := targetOf(f.URL)
	if err != nil {
		return Target{}, err
	}
	if f.ID != "" {
		t.ID = f.ID
	}
	if f.Rank != nil {
		t.Rank = *f.Rank
	}
	if f.Role != "" {
		role, ok := fleet.ParseRole(f.Role)
		if !ok {
			return Target{}, fmt.Errorf("unknown role %q; use both, prefill or decode", f.Role)
		}
		t.Role = role
	}
	return t, nil
}

func targetOf(s string) (Target, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return Target{}, errors.New("not a base URL; write http://127.0.0.1:8000")
	}
	if u.User != nil {
		return Target{}, errors.New("a URL here must not carry credentials")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return Target{}, errors.New("not a base URL: drop what follows the path")
	}
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return Target{}, errors.New("not a base URL: write the host in its ASCII form (xn--…) and escape the path")
		}
	}
	return TargetFor(s), nil
}

func addTarget(list []Target, t Target) ([]Target, error) {
	if len(list) >= maxTargets {
		return nil, fmt.Errorf("more than %d replicas", maxTargets)
	}
	for i := range list {
		if list[i].ID == t.ID {
			return nil, fmt.Errorf("replica %q is there twice", t.ID)
		}
	}
	return append(list, t), nil
}

// Resolver is the part of net.Resolver that DNS uses.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// DNS looks a name up again and again: every address is a replica.
type DNS struct {
	URL      string        // http://name:port, or http://_service._proto.name for SRV records
	Every    time.Duration // 0: 5 s
	Resolver Resolver      // nil: the system's
	Log      *slog.Logger  // nil: discard
}

func (d DNS) String() string { return "dns " + d.URL }

// Run implements Source. A lookup that fails keeps the last list: a name server
// that is away says nothing about the replicas.
func (d DNS) Run(ctx context.Context, up func([]Target)) error {
	log := orDiscard(d.Log)
	u, err := url.Parse(d.URL)
	if err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	var last []Target
	first, failing := true, false
	t := time.NewTicker(cmp.Or(d.Every, 5*time.Second))
	defer t.Stop()
	for {
		lookup, cancel := context.WithTimeout(ctx, 5*time.Second)
		list, err := d.lookup(lookup, u)
		cancel()
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			if !failing {
				log.Warn("lookup of replicas failed, keeping the last list", "name", u.Hostname(), "error", err)
			}
			failing = true
		case first || !slices.Equal(list, last):
			first, failing, last = false, false, list
			up(list)
		default:
			failing = false
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

func (d DNS) lookup(ctx context.Context, u *url.URL) ([]Target, error) {
	var r Resolver = net.DefaultResolver
	if d.Resolver != nil {
		r = d.Resolver
	}
	base := func(hostport string) Target {
		return TargetFor((&url.URL{Scheme: u.Scheme, Host: hostport, Path: u.Path}).String())
	}
	var out []Target
	if strings.HasPrefix(u.Hostname(), "_") {
		_, srv, err := r.LookupSRV(ctx, "", "", u.Hostname())
		if err != nil {
			return nil, err
		}
		for _, s := range srv {
			out = append(out, base(net.JoinHostPort(strings.TrimSuffix(s.Target, "."), strconv.Itoa(int(s.Port)))))
		}
	} else {
		addrs, err := r.LookupNetIP(ctx, "ip", u.Hostname())
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			out = append(out, base(net.JoinHostPort(a.Unmap().String(), u.Port())))
		}
	}
	slices.SortFunc(out, func(a, b Target) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(out, func(a, b Target) bool { return a.ID == b.ID }), nil
}

func orDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
