// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHasherIgnoresHowTextIsSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "text")
		size := rapid.IntRange(1, 64).Draw(t, "size")
		seed := rapid.Uint64().Draw(t, "seed")
		var whole, parts Hasher
		whole.Reset(seed, size)
		whole.Write(text)
		parts.Reset(seed, size)
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if n%2 == 0 {
				parts.Write(rest[:n])
			} else {
				parts.WriteString(string(rest[:n]))
			}
			rest = rest[n:]
		}
		if !slices.Equal(whole.Blocks(), parts.Blocks()) || parts.Bytes() != len(text) {
			t.Fatalf("split text hashes differently: %v, %v", whole.Blocks(), parts.Blocks())
		}
		if len(whole.Blocks()) != len(text)/size {
			t.Fatalf("%d blocks of %d bytes in %d bytes", len(whole.Blocks()), size, len(text))
		}
	})
}

func TestHashesAreChained(t *testing.T) {
	hash := func(seed uint64, s string) []uint64 {
		var h Hasher
		h.Reset(seed, 4)
		h.WriteString(s)
		return slices.Clone(h.Blocks())
	}
	a, b := hash(1, "aaaabbbbcccc"), hash(1, "aaaaBbbbcccc")
	if a[0] != b[0] || a[1] == b[1] || a[2] == b[2] {
		t.Errorf("a change in the second block must change it and all after it: %x, %x", a, b)
	}
	if c := hash(2, "aaaabbbbcccc"); c[0] == a[0] {
		t.Error("another seed must give other hashes")
	}
	if d := hash(1, "bbbbaaaacccc"); d[2] == a[2] {
		t.Error("the order of blocks must matter")
	}
}

func TestHasherWithoutReset(t *testing.T) {
	var h, g Hasher
	h.WriteString(strings.Repeat("x", 2*DefaultBlockBytes))
	g.Reset(0, DefaultBlockBytes)
	g.WriteString(strings.Repeat("x", 2*DefaultBlockBytes))
	if !slices.Equal(h.Blocks(), g.Blocks()) || len(g.Blocks()) != 2 {
		t.Errorf("a zero Hasher must work with the defaults: %x, %x", h.Blocks(), g.Blocks())
	}
}

func TestSeedSeparatesFields(t *testing.T) {
	seen := map[uint64]string{}
	for _, f := range [][4]string{
		{"k", "ab", "c", ""}, {"k", "a", "bc", ""}, {"k", "ab", "", "c"}, {"k", "", "ab", "c"}, {"l", "ab", "c", ""},
	} {
		s := Seed(uint64(f[0][0]), f[1], f[2], f[3])
		if other, ok := seen[s]; ok {
			t.Errorf("%v and %s have the same seed", f, other)
		}
		seen[s] = strings.Join(f[:], "/")
	}
}

func TestHasherDoesNotAllocate(t *testing.T) {
	text := bytes.Repeat([]byte("penstock "), 5000)
	var h Hasher
	n := testing.AllocsPerRun(100, func() {
		h.Reset(Seed(1, "m", "", ""), DefaultBlockBytes)
		h.Write(text[:1000])
		h.Write(text[1000:])
	})
	if n != 0 {
		t.Errorf("%v allocations a prompt, want 0", n)
	}
}

func BenchmarkHasher(b *testing.B) {
	text := bytes.Repeat([]byte("penstock "), 50000)[:400*1024]
	for _, size := range []int{2 << 10, 400 << 10} {
		b.Run(map[int]string{2 << 10: "2KiB", 400 << 10: "400KiB"}[size], func(b *testing.B) {
			var h Hasher
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				h.Reset(1, DefaultBlockBytes)
				h.Write(text[:size])
			}
		})
	}
}
