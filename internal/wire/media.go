// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// MediaPolicy says which addresses of images, sounds and files may reach an engine,
// which fetches them from inside of the network. The zero value allows addresses of
// the public internet; data: is always allowed.
type MediaPolicy struct {
	Any      bool     // every http and https address
	DataOnly bool     // none
	Hosts    []string // these only; "*.example.com" is every host below
}

// ParseMediaPolicy reads a list of hosts, or one of the words public, data, any.
func ParseMediaPolicy(list []string) MediaPolicy {
	var p MediaPolicy
	for _, w := range list {
		switch w {
		case "public":
		case "data":
			p.DataOnly = true
		case "any":
			p.Any = true
		default:
			p.Hosts = append(p.Hosts, strings.ToLower(w))
		}
	}
	return p
}

// checkMedia judges one image, sound or file: its size, and every string in it that
// an engine might take for an address.
func checkMedia(body []byte, at Span, l *Limits) *BadRequest {
	if at.Len() > l.MaxMediaBytes {
		return &BadRequest{Message: "an image, sound or file must take at most " + strconv.Itoa(l.MaxMediaBytes) + " bytes", Offset: at.Start, Code: CodeInvalidValue}
	}
	p := parser{b: body[:at.End], i: at.Start, maxDepth: maxNesting}
	m := mediaWalk{p: p, policy: &l.Media}
	m.value()
	return m.bad
}

type mediaWalk struct {
	p      parser
	policy *MediaPolicy
	bad    *BadRequest
}

func (m *mediaWalk) value() {
	p := &m.p
	switch c := p.peek(); c {
	case '{':
		for more := p.enter('}'); more && m.bad == nil; more = p.next('}') {
			p.str()
			p.colon()
			if p.err == nil {
				m.value()
			}
		}
	case '[':
		for more := p.enter(']'); more && m.bad == nil; more = p.next(']') {
			m.value()
		}
	case '"':
		at := p.i
		if t := p.str(); p.err == nil && !m.policy.allows(m.text(t)) {
			m.bad = &BadRequest{Message: "the address of an image, sound or file is not allowed here", Offset: at, Code: CodeInvalidValue}
		}
	default:
		p.scalar(c)
	}
}

// maxAddress bounds an address of media, in bytes; longer strings are data.
const maxAddress = 8 << 10

// text returns a string with its escapes undone, cut where it is too long for an
// address.
func (m *mediaWalk) text(t text) string {
	b := m.p.b[t.start:t.end]
	if len(b) > 6*maxAddress {
		b = b[:64] // its scheme is enough: data: is allowed, all else is too long
		if i := slices.Index(b, '\\'); i >= 0 {
			b = b[:i]
		}
		return string(b) + strings.Repeat(" ", maxAddress)
	}
	if t.escaped() {
		b = unescape(nil, b)
	}
	return string(b)
}

var lineEnds = strings.NewReplacer("\t", "", "\r", "", "\n", "")

// allows reports whether a string among media may pass. What has no scheme is data.
func (m *MediaPolicy) allows(s string) bool {
	// Libraries drop blanks and controls in front of an address, and tabs and line
	// ends anywhere.
	s = lineEnds.Replace(s)
	s = strings.TrimLeftFunc(s, func(r rune) bool { return r <= ' ' || r == 0xa0 || r == 0xfeff })
	scheme, ok := schemeOf(s)
	if !ok {
		// An address that takes the scheme of who reads it; data in base64 may begin so.
		return !strings.HasPrefix(s, "//") || !strings.ContainsAny(s[:min(len(s), maxAddress)], ".:[")
	}
	switch scheme {
	case "data":
		return true
	case "http", "https":
	default:
		return false
	}
	if len(s) > maxAddress || m.DataOnly {
		return false
	}
	// What two parsers read as two hosts.
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '\\' || r >= 0x7f }) {
		return false
	}
	u, err := url.Parse(s)
	if err != nil || u.User != nil || u.Opaque != "" || u.Host == "" {
		return false
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if m.Any {
		return true
	}
	if len(m.Hosts) > 0 {
		return slices.ContainsFunc(m.Hosts, func(h string) bool {
			if below, ok := strings.CutPrefix(h, "*"); ok {
				return strings.HasSuffix(host, below)
			}
			return h == host
		})
	}
	return publicHost(host)
}

// schemeOf returns the scheme of an address in lower case.
func schemeOf(s string) (string, bool) {
	for i := 0; i < len(s) && i < 32; i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		case c == ':' && i > 0:
			return strings.ToLower(s[:i]), true
		default:
			return "", false
		}
	}
	return "", false
}

// insideNames are the ends of names that only an inner network resolves.
var insideNames = []string{
	".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".corp", ".home", ".home.arpa", ".private", ".svc", ".cluster", ".consul", ".test", ".onion",
}

// notPublic are ranges that netip does not know as private: special purposes by the
// registries of RFC 6890, and addresses that hold others.
var notPublic = func() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10",
	} {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}()

// publicHost reports whether a host is one of the public internet by its spelling. A
// name that resolves to an inner address passes: who must rule that out lists hosts.
func publicHost(host string) bool {
	if strings.ContainsAny(host, "%") {
		return false
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return publicAddr(a.Unmap())
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == host || last == "" || last[0] >= '0' && last[0] <= '9' {
		return false // a name of the own network, or a number in one of the old spellings
	}
	return !slices.ContainsFunc(insideNames, func(end string) bool { return strings.HasSuffix(host, end) })
}

func publicAddr(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(a) })
}
