// SPDX-License-Identifier: Apache-2.0

package entry

import "testing"

// A closed key ends the requests that have it, once, and no others.
func TestWatches(t *testing.T) {
	w := &Watches{}
	then := make(chan string, 10)
	ctx, a := w.Add(t.Context(), "a", func() { then <- "a" })
	other, b := w.Add(t.Context(), "b", func() { then <- "b" })
	plain, c := w.Add(t.Context(), "a", nil)
	nobody, d := w.Add(t.Context(), "", func() { then <- "nobody" })
	left, e := w.Add(t.Context(), "a", func() { then <- "left" })
	w.Drop(e)
	if left.Err() == nil || e.Closed() {
		t.Error("who left: its context lives on, or counts as ended with the key")
	}
	if n := w.End(func(string) bool { return true }); n != 0 || a.Closed() || ctx.Err() != nil {
		t.Errorf("%d ended with open keys", n)
	}
	if n := w.End(func(key string) bool { return key == "b" }); n != 2 || !a.Closed() || !c.Closed() || ctx.Err() == nil || plain.Err() == nil {
		t.Errorf("%d ended", n)
	}
	if b.Closed() || d != nil || d.Closed() || other.Err() != nil || nobody.Err() != nil {
		t.Error("it ended those of others")
	}
	if n := w.End(func(key string) bool { return key == "b" }); n != 0 {
		t.Errorf("%d ended once more", n)
	}
	w.Drop(a)
	w.Drop(b)
	w.Drop(c)
	w.Drop(d)
	if len(w.all) != 0 {
		t.Errorf("%d are left", len(w.all))
	}
	if got := <-then; got != "a" || len(then) != 0 {
		t.Errorf("%q was told, and %d more", got, len(then))
	}
}

// Where nobody wants it, nothing is watched.
func TestNoWatches(t *testing.T) {
	var w *Watches
	ctx, v := w.Add(t.Context(), "a", func() { t.Error("told") })
	if ctx != t.Context() || v != nil || w.End(func(string) bool { return false }) != 0 {
		t.Error("it is watched")
	}
	w.Drop(v)
}
