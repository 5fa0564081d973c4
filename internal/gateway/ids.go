// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// ids makes request ids: NAME-BOOT-N. NAME is the router's, so that any router can
// tell whom to ask about a request; BOOT is drawn at each start.
type ids struct {
	prefix string
	n      atomic.Uint64
}

func newIDs(router string) *ids {
	var boot [4]byte
	rand.Read(boot[:]) // never fails
	return &ids{prefix: cleanName(router) + "-" + hex.EncodeToString(boot[:]) + "-"}
}

func (i *ids) next() string {
	var buf [96]byte
	b := append(buf[:0], i.prefix...)
	return string(strconv.AppendUint(b, i.n.Add(1), 36))
}

// cleanName makes a router's name fit into ids and headers.
func cleanName(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if idByte(c) && b.Len() < 48 {
			b.WriteByte(c)
		}
	}
	if b.Len() == 0 {
		return "ps"
	}
	return b.String()
}

// RouterOf returns the name of the router that made a request id; "" where the id
// is not one of ours.
func RouterOf(id string) string {
	i := strings.LastIndexByte(id, '-')
	if i < 0 {
		return ""
	}
	if i = strings.LastIndexByte(id[:i], '-'); i < 0 {
		return ""
	}
	return id[:i]
}

func idByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// validID accepts an id that a client made: 1 to 128 letters, digits, dots,
// underscores and hyphens. Others could forge log lines or grow without bound.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := 0; i < len(id); i++ {
		if !idByte(id[i]) {
			return false
		}
	}
	return true
}

// Headers, in canonical form.
const (
	headerClientRequestID = "X-Client-Request-Id"
	headerReplica         = "X-Penstock-Replica"
	headerRequestID       = "X-Request-Id"
)

// stripInternal removes the headers that only the fleet's own parts may set: they
// steer requests past the picker, or claim what we found. Some servers read an
// underscore as a hyphen, so both count.
func stripInternal(h http.Header) {
	for k := range h {
		if internalHeader(k) {
			delete(h, k)
		}
	}
}

func internalHeader(k string) bool {
	if len(k) < 10 || k[0] != 'X' && k[0] != 'T' {
		return false
	}
	if strings.IndexByte(k, '_') >= 0 {
		k = http.CanonicalHeaderKey(strings.ReplaceAll(k, "_", "-"))
	}
	switch {
	case strings.HasPrefix(k, "X-Gateway-"), strings.HasPrefix(k, "X-Penstock-"), strings.HasPrefix(k, "X-Prefiller-"),
		strings.HasPrefix(k, "X-Data-Parallel-"), k == "Target-Pod":
		return true
	}
	return false
}

// identify gives the request its id. A valid id of the client goes on to the
// engine and comes back as X-Client-Request-Id; ours is what we answer with.
func identify(h http.Header, own string) (client string) {
	if v := h[headerRequestID]; len(v) == 1 && validID(v[0]) {
		return v[0]
	}
	h[headerRequestID] = []string{own}
	return ""
}
