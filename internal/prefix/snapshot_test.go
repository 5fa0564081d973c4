// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/zeebo/xxh3"
)

// seal gives data a checksum that fits.
func seal(data []byte) []byte {
	if len(data) < 8 {
		return data
	}
	d := append([]byte(nil), data[:len(data)-8]...)
	return binary.LittleEndian.AppendUint64(d, xxh3.Hash(d))
}

func TestLoadRefusesWhatIsDamaged(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 100)
	x.Insert(0, 0, long(20, 1))
	good := x.Save(nil, 1, func(int32) string { return "a" })
	load := func(data []byte, check uint64) error {
		y := NewIndex(Options{})
		y.Add(0, 100)
		err := y.Load(data, check, func(string) int32 { return 0 })
		if err != nil && y.Stats().Entries != 0 {
			t.Errorf("a refused snapshot left %d entries", y.Stats().Entries)
		}
		return err
	}
	if err := load(good, 1); err != nil {
		t.Fatal(err)
	}
	if err := load(good, 2); !errors.Is(err, ErrSnapshot) {
		t.Errorf("another key: %v", err)
	}
	for n := range good {
		if err := load(good[:n], 1); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
		if n >= 8 {
			if err := load(seal(good[:n]), 1); !errors.Is(err, ErrSnapshot) {
				t.Fatalf("cut to %d bytes and sealed: %v", n, err)
			}
		}
		bad := append([]byte(nil), good...)
		bad[n] ^= 0x40
		if err := load(bad, 1); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("byte %d changed: %v", n, err)
		}
	}
	v2 := append([]byte(nil), good...)
	v2[4] = 2
	if err := load(seal(v2), 1); !errors.Is(err, ErrSnapshot) {
		t.Errorf("another version: %v", err)
	}
}

func TestSnapshotKeepsTheLearntCapacity(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 1000)
	for range 20 {
		x.Feedback(0, 100, 0)
	}
	y := NewIndex(Options{})
	y.Add(0, 1000)
	if err := y.Load(x.Save(nil, 0, func(int32) string { return "a" }), 0, func(string) int32 { return 0 }); err != nil {
		t.Fatal(err)
	}
	if d := y.Capacity(0) - x.Capacity(0); d < -1 || d > 1 {
		t.Errorf("capacity %d, want %d", y.Capacity(0), x.Capacity(0))
	}
}
