// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/share"
	"github.com/penstock-project/penstock/internal/wholefile"
)

// peersEnv names the environment variable that share.peers: auto asks.
const peersEnv = "PENSTOCK_PEERS"

// secretLeast is the least length of the secret that routers share, in bytes.
const secretLeast = 16

// peerList are the peers that a configuration names; empty: none.
func peerList(c *config.Config) []string {
	v := c.Share.Peers
	if v == "auto" {
		v = os.Getenv(peersEnv)
	}
	if v == "" || v == "off" {
		return nil
	}
	var out []string
	for _, p := range strings.Split(v, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// openShare opens the exchange with other routers where the configuration turns it
// on, and finds the key that prompts are hashed with: that of all routers, or of the
// last run, or a random one.
func (s *server) openShare(random []byte) error {
	c := s.o.Config
	var secret []byte
	if c.Share.SecretFile != "" {
		v, err := config.ReadSecret(c.Share.SecretFile)
		if err != nil {
			return failf("make one with `openssl rand -hex 32`, the same for all routers", "share.secretFile: %v", err)
		}
		secret = []byte(v.Reveal())
		if len(secret) < secretLeast {
			return usagef("make one with `openssl rand -hex 32`, the same for all routers",
				"share.secretFile: %s holds %d bytes, at least %d are needed: a secret that can be guessed lets anybody tell this router what to believe", c.Share.SecretFile, len(secret), secretLeast)
		}
	}
	peers := peerList(c)
	shares := len(peers) > 0 || c.Share.Listen != ""
	if shares && len(secret) == 0 {
		for _, a := range append(append([]string(nil), peers...), c.Share.Listen) {
			if a != "" && (strings.HasPrefix(a, "dns:") || !config.IsLoopback(a)) {
				return usagef("make one with `openssl rand -hex 32`, the same for all routers, and name its file in share.secretFile",
					"refusing to share with %s without a secret: anyone who reaches it could tell this router what to believe", a)
			}
		}
		var err error
		if secret, err = s.machineSecret(); err != nil {
			return err
		}
	}
	if err := s.openHashKey(random, secret); err != nil || !shares {
		return err
	}
	if c.Share.Listen != "" {
		ln, err := listen("the exchange with other routers", "share.listen", c.Share.Listen)
		if err != nil {
			return err
		}
		s.shareLn = ln
	}
	s.exchange = share.NewExchange(share.ExchangeOptions{
		Router: s.router + "-" + hex.EncodeToString(random[:4]), Peers: peers, Secret: secret,
		Check: xxh3.HashSeed(nil, s.hashKey), Log: s.log,
	})
	s.background = append(s.background, func(ctx context.Context) { s.exchange.Run(ctx, s.shareLn) })
	return nil
}

// machineSecret is the secret of routers that share on loopback and were given none:
// one that the first of them draws and keeps for this user of the machine.
func (s *server) machineSecret() ([]byte, error) {
	const hint = "make a secret with `openssl rand -hex 32`, the same for all routers, and name its file in share.secretFile"
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, usagef(hint, "sharing without a secret needs a place to keep one: %v", err)
	}
	path := filepath.Join(dir, "penstock", "share.secret")
	b, err := drawnSecret(path)
	if err != nil {
		return nil, failf(hint, "%v", err)
	}
	s.log.Info("share.secretFile is not set: routers of this user on this machine share with a secret that one of them drew", "file", path)
	return b, nil
}

// drawnSecret reads a secret from a file that is its owner's alone, and draws one where
// there is none. Of several that do so at once all read that of the first.
func drawnSecret(path string) ([]byte, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		f, err := os.CreateTemp(filepath.Dir(path), ".share.secret-*")
		if err != nil {
			return nil, err
		}
		defer os.Remove(f.Name())
		_, err = f.WriteString(rand.Text() + rand.Text() + "\n")
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others", path)
	}
	v, err := config.ReadSecret(path)
	if err != nil {
		return nil, err
	}
	return []byte(v.Reveal()), nil
}

// openHashKey sets the key that prompts are hashed with. Nobody without it can find
// prompts that collide.
func (s *server) openHashKey(random, secret []byte) error {
	s.hashKey = binary.LittleEndian.Uint64(random)
	switch dir := s.o.Config.StateDir; {
	case len(secret) > 0:
		s.hashKey = share.Derive(secret, "prompts")
	case dir != "":
		key, err := keptKey(filepath.Join(dir, "hash.key"), random[:8])
		if err != nil {
			return failf("name another directory with --state-dir, or none", "%v", err)
		}
		s.hashKey = key
	}
	return nil
}

// keptKey reads a key from a file, which it makes where there is none.
func keptKey(path string, fresh []byte) (uint64, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return 0, err
		}
		b = []byte(hex.EncodeToString(fresh) + "\n")
		if err := wholefile.Write(path, b, 0o600); err != nil {
			return 0, err
		}
	} else if err != nil {
		return 0, err
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(raw) != 8 {
		return 0, fmt.Errorf("%s holds no key of 16 hexadecimal digits", path)
	}
	return binary.LittleEndian.Uint64(raw), nil
}

// sharePool lets a pool tell other routers.
func (s *server) sharePool(lp *livePool) {
	if s.exchange != nil {
		lp.flow.SetSink(s.exchange.Add(lp.name, lp.flow))
	}
}

// peersStatus tells what this router and the others know of each other; nil where it
// shares with nobody.
func (s *server) peersStatus() *console.PeersStatus {
	if s.exchange == nil {
		return nil
	}
	states, fault := s.exchange.States()
	out := &console.PeersStatus{Fault: fault, Peers: []console.PeerStatus{}}
	if s.shareLn != nil {
		out.Listen = s.shareLn.Addr().String()
	}
	for i := range states {
		p := &states[i]
		ps := console.PeerStatus{
			Router: p.Router, Address: p.Address, Telling: p.Telling, Fault: p.Fault, Heard: p.Heard,
			Notes: p.Notes, Resyncs: p.Resyncs, OtherKey: p.OtherKey,
		}
		if p.Age >= 0 && p.Number > 0 {
			ms := float64(p.Age/time.Microsecond) / 1e3
			ps.AgeMS = &ms
		}
		if p.Heard {
			for _, lp := range s.pools {
				l := lp.flow.Peer(p.Number)
				ps.InFlight, ps.Held, ps.Unknown = ps.InFlight+l.InFlight, ps.Held+l.Held, ps.Unknown+l.Unknown
			}
		}
		out.Peers = append(out.Peers, ps)
	}
	return out
}

// hears reports whether the process that leads, by its identity in the election, is a
// router that hears this one.
func (s *server) hears(leader string) bool {
	if s.exchange == nil {
		return false
	}
	states, _ := s.exchange.States()
	for i := range states {
		name, _, _ := strings.Cut(states[i].Router, "-")
		if states[i].Telling && name != "" && strings.HasSuffix(leader, "_"+name) {
			return true
		}
	}
	return false
}
