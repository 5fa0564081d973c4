// SPDX-License-Identifier: Apache-2.0

package engine

// loraSlots are the adapters that one batch can use at the same time. An adapter
// stays in its slot until another one needs it, the least recently used first; one
// that a running sequence uses is never moved out.
type loraSlots struct {
	max      int
	names    []string
	byName   map[string]int32
	running  []int32 // sequences in the batch, by adapter
	queued   []int32 // sequences that wait, by adapter
	resident []int32 // adapters in slots, least recently used first
	waiting  int     // sequences that wait, of all adapters
	loads    int64
}

func (l *loraSlots) init(slots int) { *l = loraSlots{max: slots, byName: map[string]int32{}} }

// id returns the number of an adapter; -1 for the base model.
func (l *loraSlots) id(name string) int32 {
	if name == "" {
		return -1
	}
	a, ok := l.byName[name]
	if !ok {
		a = int32(len(l.names))
		l.byName[name] = a
		l.names = append(l.names, name)
		l.running = append(l.running, 0)
		l.queued = append(l.queued, 0)
	}
	return a
}

func (l *loraSlots) wait(a int32, n int32) {
	if a >= 0 {
		l.queued[a] += n
		l.waiting += int(n)
	}
}

// fits reports whether a sequence of adapter a can join the batch.
func (l *loraSlots) fits(a int32) bool {
	if a < 0 || len(l.resident) < l.max {
		return true
	}
	for _, r := range l.resident {
		if r == a || l.running[r] == 0 {
			return true
		}
	}
	return false
}

// use brings adapter a, which fits, into a slot and returns how many loads that
// took: 0 or 1.
func (l *loraSlots) use(a int32) int {
	if a < 0 {
		return 0
	}
	l.running[a]++
	victim := -1
	for i, r := range l.resident {
		if r == a {
			copy(l.resident[i:], l.resident[i+1:])
			l.resident[len(l.resident)-1] = a
			return 0
		}
		if victim < 0 && l.running[r] == 0 {
			victim = i
		}
	}
	l.loads++
	if len(l.resident) < l.max {
		l.resident = append(l.resident, a)
		return 1
	}
	copy(l.resident[victim:], l.resident[victim+1:])
	l.resident[len(l.resident)-1] = a
	return 1
}

func (l *loraSlots) drop(a int32) {
	if a >= 0 {
		l.running[a]--
	}
}

func (l *loraSlots) isResident(a int32) bool {
	for _, r := range l.resident {
		if r == a {
			return true
		}
	}
	return false
}

// AdapterState is one LoRA adapter at a replica.
type AdapterState struct {
	Name     string
	Resident bool // in a slot
	Running  int  // sequences in the batch
	Waiting  int  // sequences that wait
}

// Adapters appends the state of every adapter that a sequence has asked for since
// the start, in the order of first use.
func (c *Core) Adapters(out []AdapterState) []AdapterState {
	for i, name := range c.lora.names {
		out = append(out, AdapterState{
			Name: name, Resident: c.lora.isResident(int32(i)),
			Running: int(c.lora.running[i]), Waiting: int(c.lora.queued[i]),
		})
	}
	return out
}
