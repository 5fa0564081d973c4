// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// stream is one answer that the goroutine of a set copies from a replica to a
// client. The goroutine that asked for it sleeps meanwhile; it is woken at the end,
// and where the client takes less than there is.
type stream struct {
	a     *Answer
	x     *pollConn
	sink  Sink
	cl    *clientConn
	watch *watched
	back  *Back
	wake  chan struct{}

	queued bool // it has more to read; of the set's goroutine
	// Below: under the lock of x.
	state   streamState
	last    time.Time // of the latest bytes from the replica
	left    []byte    // that the client has not taken
	unsaid  bool      // the sink has not heard that its payload was written
	closing bool      // the last chunk is written, or stands in left
	err     error     // why it ended; nil: it is whole
	failure any       // a panic of the sink
}

type streamState uint8

const (
	streamOurs  streamState = iota // the goroutine that asked for it has it
	streamFlows                    // the set has it
	streamFull                     // the client must take left first
	streamOver
)

// pumpMost bounds the reads of one stream in a row; the others wait meanwhile.
const pumpMost = 8

// readable copies what there is.
func (st *stream) readable() {
	st.x.mu.Lock()
	defer st.x.mu.Unlock()
	if st.x.st == st {
		st.pump()
	}
}

// pump copies from the replica to the client until one of them has nothing more or
// takes nothing more. It runs on the goroutine of the set with the lock of x.
func (st *stream) pump() {
	defer func() {
		if f := recover(); f != nil {
			st.failure = f
			st.finish(errCut)
		}
	}()
	p, x := st.x.p, st.x
	for range pumpMost {
		n, e := readNow(x.fd, p.buf[roomBefore:roomBefore+readBuffer])
		if e == syscall.EAGAIN {
			x.ready = x.ended
			return
		}
		if e != 0 {
			st.finish(os.NewSyscallError("read", e))
			return
		}
		if n == 0 {
			st.finish(io.ErrUnexpectedEOF)
			return
		}
		st.last = p.now
		if st.take(p, n) {
			return
		}
		if n < readBuffer && !x.ended {
			return
		}
	}
	if !st.queued {
		st.queued = true
		p.again = append(p.again, st)
	}
}

// take passes n bytes of the round's buffer on and reports whether the stream left
// the set.
func (st *stream) take(p *poller, n int) (gone bool) {
	a := st.a
	b := p.buf[roomBefore : roomBefore+n]
	payload, used, done, err := a.chunks.decode(b)
	a.excess = a.excess || done && used < n
	var out, last []byte
	if len(payload) > 0 {
		st.unsaid = true
		out = st.sink.Payload(payload)
	}
	if done {
		a.state = bodyDone
		last = st.sink.End(EndComplete)
		st.closing = true
	}
	msg := p.frame(out, payload, cap(b)-cap(payload), last, done)
	if len(msg) > 0 {
		if werr := st.write(msg); werr != nil {
			st.finish(werr)
			return true
		}
	}
	if err != nil {
		st.err = err
	}
	if len(st.left) > 0 {
		st.hand(streamFull)
		return true
	}
	if st.unsaid {
		st.unsaid = false
		st.sink.Written(p.now)
	}
	if err != nil || done {
		st.finish(err)
		return true
	}
	return false
}

// frame makes chunks of out and last, and the last chunk where done. Where out is
// the payload itself, which begins at byte at behind the room of the buffer, the
// framing is written around it in place.
func (p *poller) frame(out, payload []byte, at int, last []byte, done bool) []byte {
	if len(out) == 0 && len(last) == 0 && !done {
		return nil
	}
	if len(out) > 0 && len(payload) > 0 && &out[0] == &payload[0] && len(out) <= len(payload) && len(last) == 0 {
		begin, end := roomBefore+at, roomBefore+at+len(out)
		msg := p.buf[p.sizeBefore(begin, len(out)):end]
		msg = append(msg, "\r\n"...)
		if done {
			msg = append(msg, lastChunk...)
		}
		return msg
	}
	msg := appendChunk(p.spare[:0], out)
	msg = appendChunk(msg, last)
	if done {
		msg = append(msg, lastChunk...)
	}
	if cap(msg) <= 4*readBuffer {
		p.spare = msg
	}
	return msg
}

const lastChunk = "0\r\n\r\n"

// sizeBefore writes the size line of a chunk of n bytes in front of begin and
// returns where the line begins.
func (p *poller) sizeBefore(begin, n int) int {
	p.buf[begin-2], p.buf[begin-1] = '\r', '\n'
	begin -= 2
	for first := true; first || n > 0; first = false {
		begin--
		p.buf[begin] = "0123456789abcdef"[n&15]
		n >>= 4
	}
	return begin
}

// appendChunk appends b as one chunk; nothing for no bytes, which would end the
// answer.
func appendChunk(dst, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	dst = strconv.AppendUint(dst, uint64(len(b)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, b...)
	return append(dst, "\r\n"...)
}

// write sends msg to the client, and keeps what it does not take.
func (st *stream) write(msg []byte) error {
	for len(msg) > 0 {
		n, e := writeNow(st.cl.fd, msg)
		if e == syscall.EAGAIN {
			st.left = append(st.left[:0], msg...)
			return nil
		}
		if e != 0 {
			return errClientLeft
		}
		msg = msg[n:]
	}
	return nil
}

// finish ends a stream that the set has. The lock of x is held.
func (st *stream) finish(err error) {
	if st.x.st == st {
		st.err = err
		st.hand(streamOver)
	}
}

// hand gives the stream to the goroutine that asked for it.
func (st *stream) hand(s streamState) {
	st.state = s
	st.x.st = nil
	st.x.ready = true
	st.wake <- struct{}{}
}

// clientLeft ends the stream for the client's sake; any goroutine may call it.
func (st *stream) clientLeft(err error) {
	st.x.mu.Lock()
	defer st.x.mu.Unlock()
	if st.x.st == st {
		st.finish(err)
		return
	}
	if st.state == streamOver {
		return
	}
	// The goroutine that asked for it writes: it must not wait.
	st.err = err
	st.cl.SetWriteDeadline(time.Unix(1, 0))
}

// takePolled prepares to copy the answer to a client whose connection was taken from
// its server; see Answer.Take. left: the client is gone already.
func (a *Answer) takePolled(nc net.Conn, rw *bufio.ReadWriter, s Sink, left bool) (rest func() (Ending, error), done func()) {
	cl, ok := nc.(*clientConn)
	if !ok {
		cl = &clientConn{TCPConn: nc.(*net.TCPConn), fd: -1}
	}
	// A next request that came in a pipe; nobody reads the connection from here on.
	if n := rw.Reader.Buffered(); n > 0 {
		b, _ := rw.Reader.Peek(n)
		cl.pre = append([]byte(nil), b...)
	}
	st := &stream{a: a, x: a.x.poll, sink: s, cl: cl, back: a.back, wake: make(chan struct{}, 1)}
	st.back.begin(st)
	err := cl.open()
	if left {
		err = errClientLeft
	}
	return func() (Ending, error) { return st.copy(err) }, func() { st.back.end(st) }
}

// copy does the whole of a stream; err says that it cannot begin.
func (st *stream) copy(err error) (Ending, error) {
	if err == nil {
		st.watch, err = watch(st.x.p, st.cl, st)
	}
	if err != nil {
		st.a.Close()
		st.cl.Close()
		return EndClientGone, err
	}
	err = st.first()
	if err == nil && st.a.state != bodyDone {
		st.a.x.dropBuffer()
		st.a.x.out = nil
		err = st.run()
	}
	return st.finale(err)
}

// first passes on what was read along with the head.
func (st *stream) first() error {
	a := st.a
	for a.x.r < a.x.w && a.state != bodyDone {
		p, err := a.next()
		if len(p) > 0 {
			now := time.Now()
			if werr := st.send(now, appendChunk(nil, st.sink.Payload(p))); werr != nil {
				return werr
			}
			st.sink.Written(now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run lets the set copy, and steps in where the client is slow.
func (st *stream) run() error {
	x, stall := st.x, st.a.x.rep.c.o.Stall
	timer := time.NewTimer(stall)
	defer timer.Stop()
	if err := st.flow(); err != nil {
		return err
	}
	for {
		select {
		case <-st.wake:
		case now := <-timer.C:
			x.mu.Lock()
			quiet := now.Sub(st.last)
			if st.state == streamFlows && quiet >= stall {
				st.finish(os.ErrDeadlineExceeded)
			} else if st.state == streamFlows {
				timer.Reset(stall - quiet)
			}
			x.mu.Unlock()
			continue
		}
		x.mu.Lock()
		state, err, failure := st.state, st.err, st.failure
		x.mu.Unlock()
		if failure != nil {
			st.a.Close()
			st.cl.Close()
			panic(failure)
		}
		if state == streamOver {
			return err
		}
		if werr := st.drain(); werr != nil || err != nil || st.closing {
			return errors.Join(werr, err)
		}
		timer.Reset(stall)
		if err := st.flow(); err != nil {
			return err
		}
	}
}

// flow gives the stream to the set.
func (st *stream) flow() error {
	x := st.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return net.ErrClosed
	}
	if st.err != nil {
		return st.err
	}
	st.state, st.last = streamFlows, time.Now()
	x.st = st
	// What came while nobody copied is told of again.
	if err := x.p.change(x.fd, x.gen, streamEvents); err != nil {
		x.st, st.state = nil, streamOurs
		return err
	}
	return nil
}

// drain writes what a slow client has not taken.
func (st *stream) drain() error {
	now := time.Now()
	if err := st.send(now, st.left); err != nil {
		return err
	}
	st.left = nil
	if st.unsaid {
		st.unsaid = false
		st.sink.Written(time.Now())
	}
	return nil
}

// send writes to the client and waits for it.
func (st *stream) send(now time.Time, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	st.cl.SetWriteDeadline(now.Add(st.a.x.rep.c.o.ClientWrite))
	st.x.mu.Lock()
	err := st.err
	st.x.mu.Unlock()
	if err == errClientLeft || err == errCut {
		return err
	}
	if _, err := st.cl.Write(b); err != nil {
		return errClientLeft
	}
	return nil
}

// finale says the last words, and lets go of both connections.
func (st *stream) finale(err error) (Ending, error) {
	a := st.a
	st.x.mu.Lock()
	st.state = streamOver
	st.x.mu.Unlock()
	end := EndComplete
	switch {
	case errors.Is(err, errClientLeft) || errors.Is(err, errCut) || a.ctx.Err() != nil:
		end = EndClientGone
	case err != nil && isTimeout(err):
		end = EndStalled
	case err != nil:
		end = EndBroken
	}
	if end == EndComplete {
		a.release()
	} else {
		a.Close()
	}
	whole := st.closing && end == EndComplete
	if !st.closing && end != EndClientGone {
		last := st.sink.End(end)
		if whole = end == EndComplete || last != nil; whole {
			if werr := st.send(time.Now(), append(appendChunk(nil, last), lastChunk...)); werr != nil {
				end, err, whole = EndClientGone, werr, false
			}
		}
	}
	if whole && !a.closeClient {
		st.watch.park(st.back)
	} else {
		st.watch.stop()
		st.cl.Close()
	}
	return end, err
}
