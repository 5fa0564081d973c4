// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"crypto/rand"

	"encoding/hex"
	"time"

	"github.com/zeebo/xxh3"
)

// Kinds of spans, as OTLP numbers them.
const (
	KindServer = 2
	KindClient = 3
)

// Attr is one attribute. One of the values counts: S where it is not empty or Kind is
// a string, else I or F.
type Attr struct {
	Key string
	S   string
	I   int64
	F   float64
	B   bool
	T   AttrType
}

// AttrType is the type of an attribute's value.
type AttrType uint8

// Types of values.
const (
	TypeString AttrType = iota
	TypeInt
	TypeFloat
	TypeBool
)

// String makes an attribute.
func String(k, v string) Attr { return Attr{Key: k, S: v} }

// Int makes an attribute.
func Int(k string, v int) Attr { return Attr{Key: k, I: int64(v), T: TypeInt} }

// Float makes an attribute.
func Float(k string, v float64) Attr { return Attr{Key: k, F: v, T: TypeFloat} }

// Bool makes an attribute.
func Bool(k string, v bool) Attr { return Attr{Key: k, B: v, T: TypeBool} }

// TraceID names a trace, SpanID a span. Zero is none.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Context is where a request stands in a trace.
type Context struct {
	Trace   TraceID
	Span    SpanID // the parent of what follows
	Sampled bool
}

// Span is one unit of work.
type Span struct {
	Context
	Parent     SpanID
	Name       string
	Kind       int
	Start, End time.Time
	Attrs      []Attr
	Failed     bool
	Message    string // of the failure
}

// NewTrace draws a trace, sampled with a chance of share.
func NewTrace(share float64) Context {
	var c Context
	rand.Read(c.Trace[:]) // never fails
	c.Sampled = share >= 1 || float64(xxh3.Hash(c.Trace[:])>>11)/(1<<53) < share
	return c
}

// NewSpanID draws a span's name.
func NewSpanID() (id SpanID) {
	for id == (SpanID{}) {
		rand.Read(id[:]) // never fails
	}
	return id
}

// ParseTraceparent reads the header of W3C Trace Context, level 1. It accepts later
// versions as far as they begin alike.
func ParseTraceparent(s string) (Context, bool) {
	var c Context
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || s[:2] == "00" && len(s) != 55 || len(s) > 55 && s[55] != '-' {
		return c, false
	}
	var version, flags [1]byte
	if !lowerHex(version[:], s[:2]) || !lowerHex(c.Trace[:], s[3:35]) || !lowerHex(c.Span[:], s[36:52]) || !lowerHex(flags[:], s[53:55]) ||
		c.Trace == (TraceID{}) || c.Span == (SpanID{}) {
		return Context{}, false
	}
	c.Sampled = flags[0]&1 != 0
	return c, true
}

func lowerHex(dst []byte, s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}

// Traceparent writes the header.
func (c *Context) Traceparent() string {
	var b [55]byte
	copy(b[:], "00-")
	hex.Encode(b[3:], c.Trace[:])
	b[35] = '-'
	hex.Encode(b[36:], c.Span[:])
	copy(b[52:], "-00")
	if c.Sampled {
		b[54] = '1'
	}
	return string(b[:])
}

// LogRecord is one record of the logs signal.
type LogRecord struct {
	Time  time.Time
	Name  string // of the event
	Body  string
	Attrs []Attr
}
