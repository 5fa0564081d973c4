// SPDX-License-Identifier: Apache-2.0

package prefix

// The index lives in pages that never move and hold no pointers: it grows without
// copying what is there, and the garbage collector has nothing to follow.

const (
	pageBits = 10
	pageSize = 1 << pageBits
	pageMask = pageSize - 1

	// runPage is the number of hashes in one page of runs; maxRun, the longest
	// run, is the largest class and divides into a page.
	runPageBits = 12
	runPage     = 1 << runPageBits
	maxRun      = 256
)

// node is a run of blocks that follow each other without a branch. All prompts
// that share the first block of a run share the whole way to it, since hashes are
// chained; so one hash finds the node.
type node struct {
	run     uint32 // position of the hashes; next free node while free
	holders uint32 // first hold
	start   uint32 // blocks before the run
	nHold   uint16 // holds, those of cleared lanes included
	nPin    uint16 // holds with pins
	len     uint16 // blocks in the run, 1..maxRun
	class   uint8
}

// hold says that one lane has the first blocks of one node. Every hold but those
// of first nodes has the hold of the same lane in the parent node above it.
type hold struct {
	node       uint32
	next, prev uint32 // other holds of the node; next free hold while free
	up         uint32 // hold in the parent node; 0 at the root
	older      uint32 // neighbours in the lane's list
	newer      uint32
	lane       uint16
	held       uint16 // leading blocks of the run that are there
	pins       uint16 // requests in flight that use them
	kids       uint16 // holds below; stays at its maximum once there
}

const (
	nodeBytes  = 20
	holdBytes  = 32
	entryBytes = 13 // one table entry: 8 bytes at the mean fill of a segment
	maxCount   = 1<<16 - 1
)

// runSizes are the lengths for which room is kept ready; steps of at most one
// half keep the waste at a fifth on average.
var runSizes = [...]uint16{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}

func runClass(n int) uint8 {
	for c, s := range runSizes {
		if int(s) >= n {
			return uint8(c)
		}
	}
	return uint8(len(runSizes) - 1)
}

// store allocates nodes, holds and runs. Index 0 of each is "none".
type store struct {
	nodes    [][]node
	holds    [][]hold
	runs     [][]uint64
	nodeTop  uint32
	holdTop  uint32
	freeNode uint32
	freeHold uint32
	freeRun  [len(runSizes)]uint32 // position + 1 of a free run of the class
	liveNode int64
	liveHold int64
	runBytes int64
}

func (s *store) node(i uint32) *node { return &s.nodes[i>>pageBits][i&pageMask] }
func (s *store) hold(i uint32) *hold { return &s.holds[i>>pageBits][i&pageMask] }

func (s *store) run(n *node) []uint64 {
	o := n.run & (runPage - 1)
	return s.runs[n.run>>runPageBits][o : o+uint32(n.len)]
}

func (s *store) newNode() (uint32, *node) {
	s.liveNode++
	if i := s.freeNode; i != 0 {
		n := s.node(i)
		s.freeNode = n.run
		*n = node{}
		return i, n
	}
	s.nodeTop++
	for int(s.nodeTop>>pageBits) >= len(s.nodes) {
		s.nodes = append(s.nodes, make([]node, pageSize))
	}
	return s.nodeTop, s.node(s.nodeTop)
}

func (s *store) newHold() (uint32, *hold) {
	s.liveHold++
	if i := s.freeHold; i != 0 {
		h := s.hold(i)
		s.freeHold = h.next
		*h = hold{}
		return i, h
	}
	s.holdTop++
	for int(s.holdTop>>pageBits) >= len(s.holds) {
		s.holds = append(s.holds, make([]hold, pageSize))
	}
	return s.holdTop, s.hold(s.holdTop)
}

func (s *store) releaseHold(i uint32) {
	s.liveHold--
	*s.hold(i) = hold{next: s.freeHold}
	s.freeHold = i
}

func (s *store) releaseNode(i uint32) {
	n := s.node(i)
	s.releaseRun(n.run, n.class)
	s.liveNode--
	*n = node{run: s.freeNode}
	s.freeNode = i
}

// setRun gives n room for the blocks and copies them there.
func (s *store) setRun(n *node, blocks []uint64) {
	c := runClass(len(blocks))
	n.run, n.class, n.len = s.newRun(c), c, uint16(len(blocks))
	copy(s.run(n), blocks)
}

func (s *store) newRun(c uint8) uint32 {
	s.runBytes += int64(runSizes[c]) * 8
	if s.freeRun[c] == 0 {
		s.fillRuns(c)
	}
	pos := s.freeRun[c] - 1
	s.freeRun[c] = uint32(s.runs[pos>>runPageBits][pos&(runPage-1)])
	return pos
}

func (s *store) releaseRun(pos uint32, c uint8) {
	s.runBytes -= int64(runSizes[c]) * 8
	s.runs[pos>>runPageBits][pos&(runPage-1)] = uint64(s.freeRun[c])
	s.freeRun[c] = pos + 1
}

// fillRuns cuts a new page into runs of class c and chains them.
func (s *store) fillRuns(c uint8) {
	page := make([]uint64, runPage)
	base := uint32(len(s.runs)) << runPageBits
	s.runs = append(s.runs, page)
	size := uint32(runSizes[c])
	for o := uint32(0); o+size <= runPage; o += size {
		page[o] = uint64(s.freeRun[c])
		s.freeRun[c] = base + o + 1
	}
}

// reserved returns the bytes of all pages.
func (s *store) reserved() int64 {
	return int64(len(s.nodes))*pageSize*nodeBytes + int64(len(s.holds))*pageSize*holdBytes +
		int64(len(s.runs))*runPage*8
}
