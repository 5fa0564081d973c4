// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"
)

// openScrape opens the listener for those who scrape, where the configuration names
// one. The admin API stays on loopback; in a cluster Prometheus and the kubelet come
// from elsewhere.
func (s *server) openScrape() error {
	addr := s.o.Config.Listen.Prometheus
	if addr == "" {
		return nil
	}
	ln, err := listen("metrics", "--prometheus", addr)
	if err != nil {
		return err
	}
	s.scrapeLn = ln
	srv := &http.Server{
		Handler: s.admin.Scrapes(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.background = append(s.background, func(ctx context.Context) {
		stop := context.AfterFunc(ctx, func() { srv.Close() })
		defer stop()
		s.log.Info("metrics", "url", s.MetricsURL()+"/metrics")
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the listener for metrics broke", "error", err)
		}
	})
	return nil
}

// MetricsURL is where metrics are scraped beside the admin API, "" where that is off.
func (s *server) MetricsURL() string {
	if s.scrapeLn == nil {
		return ""
	}
	return "http://" + s.scrapeLn.Addr().String()
}
