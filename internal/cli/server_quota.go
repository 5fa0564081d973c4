// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"crypto/x509"
	"math"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/share"
)

// tenantWeights are the shares of tenants in a pool's queue: without that the order
// of requests is the replicas'.
func tenantWeights(c *config.Config) map[string]float64 {
	m := map[string]float64{}
	for i := range c.Tenants {
		m[c.Tenants[i].Name] = c.Tenants[i].Weight
	}
	return m
}

// nano is how many billionths a unit of currency has.
const nano = 1e9

// quotaPolicy turns the limits of a configuration into rules.
func quotaPolicy(c *config.Config) *share.Policy {
	p := &share.Policy{Tenants: map[string]*share.Tenant{}, Prices: map[string]admit.Price{}}
	for i := range c.Tenants {
		t := &c.Tenants[i]
		st := &share.Tenant{Name: t.Name, OutputCap: t.OutputCap}
		for k := range t.Limits {
			st.Limits = append(st.Limits, limitRules(&t.Limits[k])...)
		}
		p.Tenants[t.Name] = st
	}
	for _, pr := range c.Prices {
		cached := pr.Cached
		if cached == 0 {
			cached = pr.Prompt
		}
		p.Prices[pr.Model] = admit.Price{Prompt: perToken(pr.Prompt), Cached: perToken(cached), Output: perToken(pr.Output)}
	}
	return p
}

// perToken turns the price of a million tokens into billionths for one.
func perToken(million float64) int64 { return int64(math.Round(million * nano / 1e6)) }

// limitRules are the rules that one entry of a tenant's limits stands for.
func limitRules(l *config.Limit) []share.Limit {
	var out []share.Limit
	add := func(m admit.Measure, amount int64) {
		if amount <= 0 {
			return
		}
		r := admit.Rule{Measure: m, Limit: amount, Per: l.Per, Hard: l.HardStop && m != admit.Requests && m != admit.Concurrent}
		switch {
		case m == admit.Concurrent:
			r.Per = 0
		case l.Every == "day":
			r.Every = admit.Day
		case l.Every == "month":
			r.Every = admit.Month
		}
		out = append(out, share.Limit{Rule: r, PerKey: l.Scope == "key", Model: l.Model})
	}
	add(admit.Requests, int64(l.Requests))
	add(admit.PromptTokens, int64(l.PromptTokens))
	add(admit.OutputTokens, int64(l.OutputTokens))
	add(admit.TotalTokens, int64(l.Tokens))
	add(admit.Concurrent, int64(l.Concurrent))
	add(admit.Money, int64(math.Round(l.Budget*nano)))
	return out
}

// newMeter makes the meter of a server.
func (s *server) newMeter() (*share.Meter, error) {
	o := share.Options{
		Policy: quotaPolicy(s.cfg), Clock: s.clock,
		Log: func(msg string, args ...any) { s.log.Warn(msg, args...) },
	}
	if s.cfg.Share.Redis != "" {
		r, err := redisStore(&s.cfg.Share)
		if err != nil {
			return nil, err
		}
		o.Store = share.NewRedis(r)
	}
	return share.NewMeter(o), nil
}

// redisStore reads where the store of quotas is and what opens it.
func redisStore(c *config.Share) (share.RedisOptions, error) {
	r := redisOptions(c.Redis)
	r.Username, r.Cluster = c.RedisUser, c.RedisCluster
	if c.RedisPasswordFile != "" {
		key, err := config.ReadSecret(c.RedisPasswordFile)
		if err != nil {
			return r, failf("share.redisPasswordFile names a file with the password of Redis", "%v", err)
		}
		r.Password = key.Reveal()
	}
	if c.RedisCA == "" {
		return r, nil
	}
	b, err := os.ReadFile(c.RedisCA)
	if err != nil {
		return r, failf("share.redisCA names a PEM file", "%v", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return r, failf("share.redisCA names a PEM file", "%s holds no PEM certificate", c.RedisCA)
	}
	host, _, err := net.SplitHostPort(r.Addr)
	if err != nil {
		return r, usagef("write share.redis as host:port", "%v", err)
	}
	r.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, RootCAs: roots}
	return r, nil
}

// redisOptions reads host:port or redis://host:port/db; rediss:// speaks TLS.
func redisOptions(addr string) share.RedisOptions {
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" {
		return share.RedisOptions{Addr: addr}
	}
	o := share.RedisOptions{Addr: u.Host}
	if u.Port() == "" {
		o.Addr = net.JoinHostPort(u.Hostname(), "6379")
	}
	o.DB, _ = strconv.Atoi(strings.Trim(u.Path, "/")) // no number is database 0
	if u.Scheme == "rediss" {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
	}
	return o
}

// quotaCollector shows the limits of tenants. Those of single keys are left out:
// keys come and go, and each would be a series.
type quotaCollector struct {
	m                             *share.Meter
	left, limit, charged, opened  *prometheus.Desc
	up, failures, borrowed, peers *prometheus.Desc
}

func newQuotaCollector(m *share.Meter) *quotaCollector {
	labels := []string{"tenant", "measure", "period", "model"}
	desc := func(name, help string, l []string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_quota_"+name, help, l, nil)
	}
	return &quotaCollector{
		m:        m,
		left:     desc("left", "What is left of a limit here; negative: debt. Budgets in units of currency.", labels),
		limit:    desc("limit", "The limit. Budgets in units of currency.", labels),
		charged:  desc("charged_total", "What was charged here since the start. Budgets in units of currency.", labels),
		up:       desc("store_up", "1 while the store of quotas answers.", nil),
		failures: desc("store_failures_total", "Exchanges with the store that failed.", nil),
		borrowed: desc("store_borrowed", "Units in use that the store did not lend: taken while it was away.", nil),
		peers:    desc("store_gateways", "Gateways that the store heard lately.", nil),
		opened:   desc("reservations_open", "Requests that hold a reservation.", nil),
	}
}

// Describe tells the series.
func (c *quotaCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.left, c.limit, c.charged, c.opened, c.up, c.failures, c.borrowed, c.peers} {
		out <- d
	}
}

// Collect reads the meter.
func (c *quotaCollector) Collect(out chan<- prometheus.Metric) {
	st := c.m.Stats()
	out <- prometheus.MustNewConstMetric(c.opened, prometheus.GaugeValue, float64(st.Open))
	if s := st.Store; s.Used {
		up := 0.0
		if s.Up {
			up = 1
		}
		out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up)
		out <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(s.Failures))
		out <- prometheus.MustNewConstMetric(c.borrowed, prometheus.GaugeValue, float64(s.Borrowed))
		out <- prometheus.MustNewConstMetric(c.peers, prometheus.GaugeValue, float64(s.Gateways))
	}
	for i := range st.Balances {
		b := &st.Balances[i]
		p := strings.Split(b.Name, "|")
		if len(p) != 5 || p[4] != "" {
			continue
		}
		unit := 1.0
		if b.Rule.Measure == admit.Money {
			unit = nano
		}
		put := func(d *prometheus.Desc, t prometheus.ValueType, v int64) {
			out <- prometheus.MustNewConstMetric(d, t, float64(v)/unit, p[0], b.Rule.Measure.String(), p[2], p[3])
		}
		put(c.left, prometheus.GaugeValue, b.Left)
		put(c.limit, prometheus.GaugeValue, b.Rule.Limit)
		put(c.charged, prometheus.CounterValue, b.Charged)
	}
}

// applyTenants returns the tenants of next with what only a restart changes as it
// was.
func applyTenants(was, next []config.Tenant) []config.Tenant {
	out := append([]config.Tenant(nil), next...)
	for i := range out {
		for k := range was {
			if t := &out[i]; t.Name == was[k].Name {
				t.Weight, t.Logging, t.CacheSalt = was[k].Weight, was[k].Logging, was[k].CacheSalt
			}
		}
	}
	return out
}
