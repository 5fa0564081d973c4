// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// reader walks over the buffers of one message without joining them.
type reader struct {
	bufs mem.BufferSlice
	at   int // offset in bufs[0]
	left int // bytes left in the message
}

func (r *reader) readByte() (byte, error) {
	for len(r.bufs) > 0 {
		d := r.bufs[0].ReadOnlyData()
		if r.at < len(d) {
			r.at++
			r.left--
			return d[r.at-1], nil
		}
		r.bufs, r.at = r.bufs[1:], 0
	}
	return 0, errProto
}

func (r *reader) varint() (uint64, error) {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		b, err := r.readByte()
		if err != nil {
			return 0, err
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if shift == 63 && b > 1 {
				return 0, errProto
			}
			return v, nil
		}
	}
	return 0, errProto
}

func (r *reader) tag() (protowire.Number, protowire.Type, error) {
	v, err := r.varint()
	if err != nil {
		return 0, 0, err
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber {
		return 0, 0, errProto
	}
	return num, typ, nil
}

// length reads the length of a bytes field and checks it against what is left.
func (r *reader) length() (int, error) {
	v, err := r.varint()
	if err != nil {
		return 0, err
	}
	if v > uint64(r.left) {
		return 0, errProto
	}
	return int(v), nil
}

// bytes returns the next n bytes: a view where they lie in one buffer, a copy
// where they do not. Views die with the message.
func (r *reader) bytes(n int) ([]byte, error) {
	if n > r.left {
		return nil, errProto
	}
	for len(r.bufs) > 0 && r.at == r.bufs[0].Len() {
		r.bufs, r.at = r.bufs[1:], 0
	}
	if n == 0 {
		return nil, nil
	}
	if len(r.bufs) == 0 {
		return nil, errProto
	}
	if d := r.bufs[0].ReadOnlyData()[r.at:]; len(d) >= n {
		r.at += n
		r.left -= n
		return d[:n:n], nil
	}
	out := make([]byte, 0, n)
	err := r.each(n, func(b mem.Buffer, lo, hi int) {
		out = append(out, b.ReadOnlyData()[lo:hi]...)
	})
	return out, err
}

// slice returns the next n bytes as references to the buffers that hold them.
func (r *reader) slice(n int) (mem.BufferSlice, error) {
	var out mem.BufferSlice
	err := r.each(n, func(b mem.Buffer, lo, hi int) {
		out = append(out, b.Slice(lo, hi))
	})
	if err != nil {
		out.Free()
		return nil, err
	}
	return out, nil
}

func (r *reader) discard(n int) error {
	return r.each(n, func(mem.Buffer, int, int) {})
}

// each calls f for the parts of the buffers that make up the next n bytes.
func (r *reader) each(n int, f func(b mem.Buffer, lo, hi int)) error {
	if n > r.left {
		return errProto
	}
	for n > 0 {
		if len(r.bufs) == 0 {
			return errProto
		}
		k := min(r.bufs[0].Len()-r.at, n)
		if k == 0 {
			r.bufs, r.at = r.bufs[1:], 0
			continue
		}
		f(r.bufs[0], r.at, r.at+k)
		r.at += k
		r.left -= k
		n -= k
	}
	return nil
}

// skip passes over one field value of any type.
func (r *reader) skip(num protowire.Number, typ protowire.Type) error {
	switch typ {
	case protowire.VarintType:
		_, err := r.varint()
		return err
	case protowire.Fixed32Type:
		return r.discard(4)
	case protowire.Fixed64Type:
		return r.discard(8)
	case protowire.BytesType:
		n, err := r.length()
		if err != nil {
			return err
		}
		return r.discard(n)
	}
	return errProto // groups were never part of this protocol
}

// addList adds the addresses of a comma-separated list.
func (s *subsetHint) addList(list string) {
	for _, a := range strings.Split(list, ",") {
		if a = strings.TrimSpace(a); a != "" {
			s.addrs = append(s.addrs, a)
		}
	}
}

// cut takes the first n bytes off body and returns both parts; the references of
// body go over into them.
func cut(body mem.BufferSlice, n int) (head, tail mem.BufferSlice) {
	for i, b := range body {
		if l := b.Len(); n >= l {
			n -= l
			continue
		}
		if n == 0 {
			return body[:i:i], body[i:]
		}
		left, right := b.Slice(0, n), b.Slice(n, b.Len())
		b.Free()
		head = append(body[:i:i], left)
		tail = append(mem.BufferSlice{right}, body[i+1:]...)
		return head, tail
	}
	return body, nil
}
