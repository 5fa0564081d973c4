// SPDX-License-Identifier: Apache-2.0

package share

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A connection between routers carries notes one way, from the one that dialled.
// Both prove that they know the secret, each with a number that the other drew, and
// from then on each frame carries a code that only they can compute:
//
//	dialler   "PSX1", nonce (32)
//	listener  "PSX1", nonce (32), HMAC(secret, "listener" | both nonces)
//	dialler   HMAC(secret, "dialler" | both nonces), then frames
//	frame     length (4), payload, the first 16 bytes of HMAC(key, number | payload)
//
// The first frame of each side is its hello. Frames are not encrypted: they hold
// keyed hashes and numbers.
const (
	connMagic = "PSX1"
	nonceSize = 32
	macSize   = 16
	frameMost = 8 << 20

	handshakeFor = 5 * time.Second
	// beatEvery is the longest silence of a router that has nothing to tell; goneAfter
	// is when one that is silent counts as gone.
	beatEvery = 500 * time.Millisecond
	goneAfter = 2500 * time.Millisecond
)

var errSecret = errors.New("the other side does not know the secret")

func prove(secret []byte, what string, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(what))
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// Derive makes a number for one purpose out of the secret that routers share: all of
// them get the same one, and nobody else can compute it.
func Derive(secret []byte, purpose string) uint64 {
	return binary.LittleEndian.Uint64(prove(secret, "derive "+purpose))
}

// framer writes or reads authenticated frames.
type framer struct {
	c             net.Conn
	r             *bufio.Reader
	outKey, inKey []byte
	out, in       uint64 // frames so far
	buf           []byte
}

// Versions of what routers tell. The first one does not name itself.
const (
	versionFirst = 1
	// versionMeet also tells which held requests lead and follow.
	versionMeet = 2
	versionNow  = versionMeet
)

// hello is what a router says of itself. The version stands behind the name, where a
// router of the first version takes it for a part of that.
type hello struct {
	Router  string
	Check   uint64 // of the key that prompts are hashed with
	Version int    // of the other side
}

func (h *hello) bytes() []byte {
	b := append(binary.LittleEndian.AppendUint64(nil, h.Check), h.Router...)
	return append(b, "/"+strconv.Itoa(versionNow)...)
}

func readHello(b []byte) (hello, error) {
	if len(b) < 9 || len(b) > 8+64 {
		return hello{}, errors.New("malformed hello")
	}
	h := hello{Check: binary.LittleEndian.Uint64(b), Version: versionFirst}
	name, version, said := strings.Cut(string(b[8:]), "/")
	if h.Router = name; said {
		v, err := strconv.Atoi(version)
		if err != nil || v < versionFirst || name == "" {
			return hello{}, errors.New("malformed hello")
		}
		h.Version = v
	}
	return h, nil
}

// dialled does the dialler's part of the handshake.
func dialled(c net.Conn, secret []byte, me hello) (*framer, hello, error) {
	_ = c.SetDeadline(time.Now().Add(handshakeFor))
	mine := make([]byte, nonceSize)
	if _, err := rand.Read(mine); err != nil {
		return nil, hello{}, err
	}
	if _, err := c.Write(append([]byte(connMagic), mine...)); err != nil {
		return nil, hello{}, err
	}
	f := &framer{c: c, r: bufio.NewReaderSize(c, 64<<10)}
	answer := make([]byte, len(connMagic)+nonceSize+sha256.Size)
	if _, err := io.ReadFull(f.r, answer); err != nil {
		return nil, hello{}, fmt.Errorf("no answer to the handshake: %w", err)
	}
	if string(answer[:4]) != connMagic {
		return nil, hello{}, errors.New("that is no router of this kind")
	}
	theirs, proof := answer[4:4+nonceSize], answer[4+nonceSize:]
	if !hmac.Equal(proof, prove(secret, "listener", mine, theirs)) {
		return nil, hello{}, errSecret
	}
	if _, err := c.Write(prove(secret, "dialler", mine, theirs)); err != nil {
		return nil, hello{}, err
	}
	f.outKey, f.inKey = prove(secret, "from dialler", mine, theirs), prove(secret, "from listener", mine, theirs)
	if err := f.write(me.bytes()); err != nil {
		return nil, hello{}, err
	}
	b, err := f.read()
	if err != nil {
		return nil, hello{}, err
	}
	h, err := readHello(b)
	_ = c.SetDeadline(time.Time{})
	return f, h, err
}

// accepted does the listener's part of the handshake.
func accepted(c net.Conn, secret []byte, me hello) (*framer, hello, error) {
	_ = c.SetDeadline(time.Now().Add(handshakeFor))
	f := &framer{c: c, r: bufio.NewReaderSize(c, 4<<10)} // it may be a stranger
	first := make([]byte, len(connMagic)+nonceSize)
	if _, err := io.ReadFull(f.r, first); err != nil {
		return nil, hello{}, err
	}
	if string(first[:4]) != connMagic {
		return nil, hello{}, errors.New("not a router")
	}
	theirs, mine := first[4:], make([]byte, nonceSize)
	if _, err := rand.Read(mine); err != nil {
		return nil, hello{}, err
	}
	answer := append(append([]byte(connMagic), mine...), prove(secret, "listener", theirs, mine)...)
	if _, err := c.Write(answer); err != nil {
		return nil, hello{}, err
	}
	proof := make([]byte, sha256.Size)
	if _, err := io.ReadFull(f.r, proof); err != nil {
		return nil, hello{}, err
	}
	if !hmac.Equal(proof, prove(secret, "dialler", theirs, mine)) {
		return nil, hello{}, errSecret
	}
	f.r = bufio.NewReaderSize(f.r, 64<<10)
	f.inKey, f.outKey = prove(secret, "from dialler", theirs, mine), prove(secret, "from listener", theirs, mine)
	b, err := f.read()
	if err != nil {
		return nil, hello{}, err
	}
	h, err := readHello(b)
	if err != nil {
		return nil, hello{}, err
	}
	err = f.write(me.bytes())
	_ = c.SetDeadline(time.Time{})
	return f, h, err
}

// mac is the code of a frame. Each direction has a key of its own, so that a frame
// sent back does not pass.
func mac(key []byte, number uint64, payload []byte) []byte {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], number)
	return prove(key, "frame", n[:], payload)[:macSize]
}

func (f *framer) write(payload []byte) error {
	f.buf = binary.LittleEndian.AppendUint32(f.buf[:0], uint32(len(payload)))
	f.buf = append(f.buf, payload...)
	f.buf = append(f.buf, mac(f.outKey, f.out, payload)...)
	f.out++
	_, err := f.c.Write(f.buf)
	if cap(f.buf) > 1<<20 {
		f.buf = nil
	}
	return err
}

// read returns the payload of the next frame, valid until the next call.
func (f *framer) read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n > frameMost {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	if cap(f.buf) < n+macSize {
		f.buf = make([]byte, n+macSize)
	}
	b := f.buf[:n+macSize]
	if _, err := io.ReadFull(f.r, b); err != nil {
		return nil, err
	}
	if !hmac.Equal(b[n:], mac(f.inKey, f.in, b[:n])) {
		return nil, errors.New("a frame that was tampered with")
	}
	f.in++
	return b[:n], nil
}
