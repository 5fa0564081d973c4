// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// edge makes epoll tell of changes only. The constant of package syscall is
// negative and does not fit Events.
const edge = 1 << 31

// over is what says that the other side has sent its last byte, or more.
const over = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR

// pollers are the epoll sets of a Client.
type pollers struct {
	all  []*poller
	mu   sync.Mutex
	next int
}

// newPollers opens n sets; nil where the system has none.
func newPollers(n int) *pollers {
	ps := &pollers{}
	for range n {
		p, err := newPoller()
		if err != nil {
			ps.close()
			return nil
		}
		ps.all = append(ps.all, p)
	}
	return ps
}

// close ends every set once nothing is left in it.
func (ps *pollers) close() {
	for _, p := range ps.all {
		p.shut()
	}
}

// pick returns the sets in turn.
func (ps *pollers) pick() *poller {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.next = (ps.next + 1) % len(ps.all)
	return ps.all[ps.next]
}

// handler is told of events of its descriptor, by the goroutine of the set.
type handler interface{ event(events uint32) }

// place is where a descriptor stands in a set. gen tells a late event of a closed
// descriptor from one of its successor.
type place struct {
	gen uint32
	h   handler
}

// poller is one epoll set with the goroutine that serves it. The set itself waits
// in the runtime's own poller: so one goroutine is woken for all that is ready, and
// no thread blocks. A goroutine for each stream costs about twice as much, since
// each wakes the scheduler.
type poller struct {
	f      *os.File
	ep     int
	events []syscall.EpollEvent
	hits   []handler
	again  []*stream // that have more to read
	buf    []byte    // of the round: room, a read, room
	spare  []byte    // for answers that are changed on their way
	now    time.Time // of the round

	mu     sync.Mutex
	places []place // by descriptor
	gen    uint32
	live   int
	shutAt bool
	parked int
	sweeps bool // a sweep of what is parked is due
}

// roundMost bounds the events of one round.
const roundMost = 256

// Room around a read for the framing of what goes to the client: the size of a
// chunk before it, its line end and the last chunk behind it.
const (
	roomBefore = 16
	roomBehind = 16
)

func newPoller() (*poller, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	p := &poller{
		f: os.NewFile(uintptr(fd), "epoll"), ep: fd, events: make([]syscall.EpollEvent, roundMost), hits: make([]handler, roundMost),
		buf: make([]byte, roomBefore+readBuffer+roomBehind),
	}
	rc, err := p.f.SyscallConn()
	if err != nil {
		p.f.Close()
		return nil, err
	}
	go rc.Read(p.serve)
	return p, nil
}

// serve works until nothing is ready; it reports false: wait for more.
func (p *poller) serve(fd uintptr) bool {
	for {
		n := ready(int(fd), p.events)
		if n <= 0 && len(p.again) == 0 {
			return false
		}
		p.round(max(n, 0))
		if n < len(p.events) && len(p.again) == 0 {
			return false // what comes from here on wakes us again
		}
	}
}

// round serves n events, and the streams that had more to read in the last round.
func (p *poller) round(n int) {
	p.now = time.Now()
	again := len(p.again)
	p.mu.Lock()
	for i := range n {
		e := &p.events[i]
		p.hits[i] = nil
		if at := int(e.Fd); at < len(p.places) && p.places[at].gen == uint32(e.Pad) {
			p.hits[i] = p.places[at].h
		}
	}
	p.mu.Unlock()
	for i := range n {
		if h := p.hits[i]; h != nil {
			h.event(p.events[i].Events)
			p.hits[i] = nil
		}
	}
	for _, st := range p.again[:again] {
		st.queued = false
		st.readable()
	}
	p.again = p.again[:copy(p.again, p.again[again:])]
}

// add puts a descriptor into the set.
func (p *poller) add(fd int, events uint32, h handler) (gen uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shutAt && p.live == 0 {
		return 0, net.ErrClosed
	}
	for fd >= len(p.places) {
		p.places = append(p.places, place{})
	}
	p.gen++
	p.places[fd] = place{p.gen, h}
	if err := p.control(syscall.EPOLL_CTL_ADD, fd, p.gen, events); err != nil {
		p.places[fd] = place{}
		return 0, err
	}
	p.live++
	return p.gen, nil
}

// control changes the set; p.mu is held, so the set is not closed meanwhile.
func (p *poller) control(op, fd int, gen, events uint32) error {
	return syscall.EpollCtl(p.ep, op, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd), Pad: int32(gen)})
}

// change sets what is wanted of a descriptor, and makes the set tell what is true
// of it already.
func (p *poller) change(fd int, gen, events uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fd >= len(p.places) || p.places[fd].gen != gen {
		return net.ErrClosed
	}
	return p.control(syscall.EPOLL_CTL_MOD, fd, gen, events)
}

// remove takes a descriptor out of the set, before it is closed.
func (p *poller) remove(fd int, gen uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fd >= len(p.places) || p.places[fd].gen != gen {
		return
	}
	p.places[fd] = place{}
	p.live--
	p.control(syscall.EPOLL_CTL_DEL, fd, gen, 0)
	p.end()
}

// end closes the set if nothing is to come; p.mu is held, and it may be the goroutine of
// the set itself that found so. Close waits for that goroutine to leave the set, and it
// may be about to take p.mu: so another one waits. Nothing uses the set any more.
func (p *poller) end() {
	if p.shutAt && p.live == 0 {
		go p.f.Close()
	}
}

// shut ends the goroutine as soon as the set is empty.
func (p *poller) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shutAt {
		return
	}
	p.shutAt = true
	p.end()
}

// The calls below never block: their descriptors are set so, and the wait has no
// time. The scheduler need not be told of them, which saves a tenth of a chunk.

// ready returns how many events there are.
func ready(ep int, events []syscall.EpollEvent) int {
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
		if e == 0 {
			return int(n)
		}
		if e != syscall.EINTR {
			return 0
		}
	}
}
