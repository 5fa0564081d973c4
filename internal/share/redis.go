// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock-project/penstock/internal/admit"
)

// RedisOptions describe a Redis or Valkey server, version 6 or newer.
type RedisOptions struct {
	Addr     string // host:port
	Username string
	Password string
	DB       int
	TLS      *tls.Config // nil: plain
	Prefix   string      // of the keys; "": penstock
	// Cluster says that Addr is a node of a cluster: each account then lives on the
	// node of its hash slot, and the exchange of one account stays atomic.
	Cluster bool
}

// Redis is a Store in Redis or Valkey. Every exchange is one script: atomic, and by
// the clock of the server, so that clocks of gateways need not agree.
type Redis struct {
	o RedisOptions

	mu     sync.Mutex
	client rueidis.Client
	closed bool
	dialAt time.Time
}

// NewRedis returns a store. It connects when it is first used: a gateway starts
// also while the server is away.
func NewRedis(o RedisOptions) *Redis {
	if o.Prefix == "" {
		o.Prefix = "penstock"
	}
	return &Redis{o: o}
}

// lendScript settles with one gateway on one account.
//
// The hash of an account holds level (what is left), at (when it was refilled, us),
// gen (drawn when the hash was made), quiet (until when nothing is lent, us) and for
// each gateway g:NAME = "lent used back heard". What a gateway was lent and has
// neither used nor given back returns to the level when the gateway falls silent.
const lendScript = `
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local gw, limit, per, start = 'g:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lent, used, back = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local one, all, gen, hint = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11])
local silent, settle, keep = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local h = redis.call('HGETALL', KEYS[1])
local f = {}
for i = 1, #h, 2 do f[h[i]] = h[i + 1] end
local level, at, quiet = tonumber(f.level), tonumber(f.at), tonumber(f.quiet or '0')
local mine = f[gw]
if not level then
  -- A new account, or a store that lost its memory: then what this gateway last
  -- heard counts, and the others get time to say what they did.
  level, at, f.gen = limit, now, ARGV[12]
  if gen ~= '' then level, quiet = math.min(limit, hint), now + settle end
elseif gen ~= '' and gen ~= f.gen then
  level = math.min(level, hint)
end
local gateways, held = 1, 0
for k, v in pairs(f) do
  if string.sub(k, 1, 2) == 'g:' and k ~= gw then
    local l, u, b, heard = string.match(v, '(%S+) (%S+) (%S+) (%S+)')
    if tonumber(heard) < now - silent then
      level = level + math.max(0, l - u - b)
      redis.call('HDEL', KEYS[1], k)
    else
      gateways, held = gateways + 1, held + math.max(0, l - u - b)
    end
  end
end
if mine then
  local l, _, b = string.match(mine, '(%S+) (%S+) (%S+) (%S+)')
  level = level + (l - lent) + (back - b) -- lent in an answer that was lost; given back
elseif gen == f.gen then
  level = level - math.max(0, lent - used - back) -- it was taken for dead
end
if start > 0 then
  if at < start then
    local out = held + math.max(0, lent - used - back)
    level = limit + math.min(level + out, 0) - out
  end
elseif per > 0 and now > at then
  level = level + limit * ((now - at) / per)
end
level = math.min(level, limit)
local over = math.max(0, used + back - lent)
level = level - over
local give = 0
if one > 0 and now >= quiet and level >= one then
  give = math.max(one, math.min(all, math.floor(level)))
  level = level - give
end
lent = lent + over + give
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'at', string.format('%.0f', math.max(now, at)), 'gen', f.gen,
  'quiet', string.format('%.0f', quiet), gw, string.format('%.0f %.0f %.0f %.0f', lent, used, back, now))
redis.call('PEXPIRE', KEYS[1], keep)
return {string.format('%.0f', give + over), string.format('%.0f', over), string.format('%.0f', math.floor(level)), f.gen, gateways, now < quiet and 1 or 0}
`

var lend = rueidis.NewLuaScript(lendScript)

// Times of the script.
const (
	silentTime = 30 * time.Second       // a gateway not heard for so long is dead
	settleTime = 3 * exchangeEvery      // for all gateways to speak after the store forgot
	keepLeast  = 10 * time.Minute       // an account is kept this long at least
	dialEvery  = 200 * time.Millisecond // between attempts to connect
)

var errAway = errors.New("no connection to the store")

// connect returns the client. The first call, and calls after a failed one, dial.
func (s *Redis) connect() (rueidis.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	if s.closed || time.Since(s.dialAt) < dialEvery {
		return nil, errAway
	}
	s.dialAt = time.Now()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.o.Addr}, Username: s.o.Username, Password: s.o.Password, SelectDB: s.o.DB, TLSConfig: s.o.TLS,
		ForceSingleClient: !s.o.Cluster, DisableCache: true, DisableRetry: true, ClientName: "penstock",
		Dialer: net.Dialer{Timeout: exchangeTime}, ConnWriteTimeout: 2 * exchangeTime,
	})
	if err != nil {
		return nil, err
	}
	s.client = c
	return c, nil
}

// Exchange runs the script for each item.
func (s *Redis) Exchange(ctx context.Context, gateway string, items []Item) ([]Grant, error) {
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	execs := make([]rueidis.LuaExec, len(items))
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	for i := range items {
		it := &items[i]
		per, start, keep := int64(0), int64(0), keepLeast
		switch {
		case it.Rule.Measure == admit.Concurrent:
		case it.Rule.Every != admit.Rolling:
			start = it.Rule.Every.Start(time.Now()).UnixMicro()
			keep = 32 * 24 * time.Hour
		default:
			per = it.Rule.Per.Microseconds()
			keep = max(keep, 2*it.Rule.Per)
		}
		execs[i] = rueidis.LuaExec{
			Keys: []string{s.o.Prefix + ":quota:{" + it.Account + "}"},
			Args: []string{gateway, num(it.Rule.Limit), num(per), num(start), num(it.Lent), num(it.Used), num(it.Back),
				num(it.One), num(it.All), it.Gen, num(it.Hint), rand.Text()[:10], num(silentTime.Microseconds()), num(settleTime.Microseconds()), num(keep.Milliseconds())},
		}
	}
	out := make([]Grant, len(items))
	for i, res := range lend.ExecMulti(ctx, c, execs...) {
		a, err := res.ToArray()
		if err != nil {
			return nil, err
		}
		if len(a) != 6 {
			return nil, errors.New("the store's answer has another shape than expected")
		}
		g := &out[i]
		for k, to := range []*int64{&g.Lent, &g.Over, &g.Left} {
			if *to, err = a[k].AsInt64(); err != nil {
				return nil, err
			}
		}
		n, err := a[4].AsInt64()
		if err != nil {
			return nil, err
		}
		quiet, err := a[5].AsInt64()
		if err != nil {
			return nil, err
		}
		g.Gen, _ = a[3].ToString()
		g.Gateways, g.Settling = int(n), quiet == 1
	}
	return out, nil
}

// Close ends the connection.
func (s *Redis) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}
