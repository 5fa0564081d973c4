// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net"
	"net/http"

	"github.com/penstock-project/penstock/internal/h1"
	"github.com/penstock-project/penstock/internal/relay"
)

// loop serves the usual requests of clients in plain text; what else they ask for goes
// to the http.Server.
type loop struct {
	*h1.Server
	other *relay.Back // accepts for the http.Server
}

// newLoop returns the loop of s, or nil where nobody can watch connections: then
// net/http serves all.
func newLoop(s *Server, watch *relay.Client) *loop {
	l := &loop{other: relay.NewBack(backAddr{})}
	l.Server = h1.New(h1.Options{
		Handler: s.Handler, HeadTime: s.ReadHeaderTimeout, IdleTime: s.IdleTimeout, Log: s.log,
		Watch: watch.Watch,
		Open: func(nc net.Conn) (context.Context, h1.Visitor) {
			ctx := s.ConnContext(context.Background(), nc)
			v := &visitor{c: s.conns, nc: nc, d: ctx.Value(doorwayKey{}).(*doorway)}
			if s.conns.turnAway(nc) {
				v.Leaves()
				return nil, nil
			}
			return ctx, v
		},
		Other: func(nc net.Conn, read []byte) {
			to, ok := relay.WithRead(nc, read)
			if !ok {
				to = nc // which nobody could watch, so that nothing was read
			}
			s.conns.hand(nc, to)
			l.other.Give(to)
		},
	})
	return l
}

// visitor tells the connections how far one of them is.
type visitor struct {
	c  *connections
	nc net.Conn
	d  *doorway
}

// Asks implements h1.Visitor.
func (v *visitor) Asks() { v.d.owed.Store(true) }

// Rests implements h1.Visitor.
func (v *visitor) Rests() { v.d.owed.Store(false) }

// Leaves implements h1.Visitor.
func (v *visitor) Leaves() { v.c.state(v.nc, http.StateClosed) }
