// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limits of a federated view.
const (
	federateAtATime = 16
	federateBytes   = 16 << 20 // of one replica's exposition
)

// federated is one replica's exposition, read now.
type federated struct {
	pool, id, engine string
	age              float64 // of our own last scrape, in seconds; negative: there was none
	families         map[string]*dto.MetricFamily
	up               bool
}

// federate shows the metrics of all replicas on one page, each series with the pool,
// the replica and the engine that it is from. Beside them stand up, 0 for a replica
// that does not answer now, and the age of our own last scrape: a replica that is
// silent has no series here, and does not keep its last ones.
func (s *Server) federate(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), passTimeout)
	defer cancel()
	// One at a time: a page may take as much memory as all replicas send.
	select {
	case s.merging <- struct{}{}:
		defer func() { <-s.merging }()
	case <-ctx.Done():
		fail(w, http.StatusServiceUnavailable, "try_later", "another federated page is being made")
		return
	}
	all := s.gatherReplicas(ctx, r.URL.Query().Get("pool"))
	families := map[string]*dto.MetricFamily{}
	for i := range all {
		for name, f := range all[i].families {
			to := families[name]
			if to == nil {
				to = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type}
				families[name] = to
			}
			if to.GetType() != f.GetType() {
				continue // two engines mean two things by one name
			}
			for _, m := range f.GetMetric() {
				// A replica does not say which one it is; a label given twice would make
				// Prometheus refuse the whole page.
				m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool {
					return l.GetName() == "penstock_pool" || l.GetName() == "penstock_replica"
				})
				m.Label = append(m.Label, label("penstock_pool", all[i].pool), label("penstock_replica", all[i].id))
				to.Metric = append(to.Metric, m)
			}
		}
	}
	addOwn(families, all)
	names := make([]string, 0, len(families))
	for n := range families {
		names = append(names, n)
	}
	slices.Sort(names)
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	var b bytes.Buffer
	for _, n := range names {
		if _, err := expfmt.MetricFamilyToText(&b, families[n]); err != nil {
			s.o.Log.Debug("federate", "family", n, "error", err)
		}
	}
	_, _ = w.Write(b.Bytes())
}

// addOwn adds what we know of each replica.
func addOwn(families map[string]*dto.MetricFamily, all []federated) {
	gauge := func(name, help string, value func(f *federated) (float64, bool)) {
		t := dto.MetricType_GAUGE
		out := &dto.MetricFamily{Name: &name, Help: &help, Type: &t}
		for i := range all {
			if v, ok := value(&all[i]); ok {
				out.Metric = append(out.Metric, &dto.Metric{Gauge: &dto.Gauge{Value: &v},
					Label: []*dto.LabelPair{label("penstock_pool", all[i].pool), label("penstock_replica", all[i].id), label("engine", all[i].engine)}})
			}
		}
		if len(out.Metric) > 0 {
			families[name] = out
		}
	}
	gauge("penstock_replica_up", "1 where the replica showed its metrics now.", func(f *federated) (float64, bool) {
		if f.up {
			return 1, true
		}
		return 0, true
	})
	gauge("penstock_replica_scrape_age_seconds", "Age of the router's own last scrape, which its decisions use.", func(f *federated) (float64, bool) { return f.age, f.age >= 0 })
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// gatherReplicas asks the replicas of a pool, "" of all, at once.
func (s *Server) gatherReplicas(ctx context.Context, pool string) []federated {
	var all []federated
	var ask []func()
	room := make(chan struct{}, federateAtATime)
	for _, p := range s.o.Pools() {
		snap := p.Observer.Snapshot()
		if pool != "" && p.Name != pool || snap == nil {
			continue
		}
		for i := range snap.Endpoints {
			e := &snap.Endpoints[i]
			f := federated{pool: p.Name, id: e.ID, engine: e.Engine, age: -1}
			if e.ScrapedAt != 0 {
				f.age = round3(s.o.Clock().Sub(e.ScrapedAt).Seconds())
			}
			n := len(all)
			all = append(all, f)
			ask = append(ask, func() {
				room <- struct{}{}
				defer func() { <-room }()
				all[n].families, all[n].up = readExposition(ctx, p, e.ID)
			})
		}
	}
	var wg sync.WaitGroup
	for _, f := range ask {
		wg.Go(f)
	}
	wg.Wait()
	return all
}

func readExposition(ctx context.Context, p Pool, id string) (map[string]*dto.MetricFamily, bool) {
	res, err := p.Observer.Metrics(ctx, id)
	if err != nil {
		return nil, false
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, false
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, federateBytes))
	if err != nil {
		return nil, false
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	// What engines write after the end of the last line they mean is no error of ours.
	f, err := parser.TextToMetricFamilies(strings.NewReader(strings.ReplaceAll(string(b), "\n# EOF", "")))
	return f, err == nil || len(f) > 0
}
