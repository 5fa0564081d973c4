// SPDX-License-Identifier: Apache-2.0

package dispatch

import "testing"

// A place that one note opens and the next one takes is left alone, be it that a request
// ends and the peer's next one goes, or that one which the peer held is sent.
func TestPlaceThatIsTaken(t *testing.T) {
	for _, more := range []bool{true, false} {
		p := newPair(1)
		p.arrive(0, prompt(16, part{1, 12000}))
		p.arrive(0, prompt(16, part{2, 2000}))
		p.arrive(1, prompt(16, part{3, 2000}))
		if len(p.went) != 1 || p.d[0].queued != 1 || p.d[1].queued != 1 {
			t.Fatalf("%d sent, %d and %d held", len(p.went), p.d[0].queued, p.d[1].queued)
		}
		p.now = p.now.AddSeconds(1)
		p.carry(0, p.d[0].FirstToken(p.now, p.went[0].ticket, nil))
		if len(p.went) != 2 {
			t.Fatalf("%d sent", len(p.went))
		}
		notes := p.d[0].TakeNotes(nil)
		if len(notes) != 2 || notes[0].Kind != NoteFirst || notes[1].Kind != NoteSent {
			t.Fatalf("notes %+v", notes)
		}
		n := 0
		for i := range notes {
			notes[i].More = more && i+1 < len(notes)
			n += len(p.d[1].Hear(p.now, 1, &notes[i], nil))
		}
		if more && n != 0 || !more && n == 0 {
			t.Errorf("more %v: %d sent into a place that is taken", more, n)
		}
		if len(p.d[1].roomAt) != 0 {
			t.Error("a slot is still to be looked at")
		}
	}
}
