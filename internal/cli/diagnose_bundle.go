// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/coldstart"
	"github.com/penstock-project/penstock/internal/manifest"
	"github.com/penstock-project/penstock/internal/route"
)

func diagnoseBundleCmd(e *Env) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "bundle [FILE|DIR]...",
		Short: "Make an archive of the system's state that is safe to share",
		Long: `Make an archive of what a diagnosis needs: the state of the running Penstock, its last
decisions, the replicas' metrics, and what was found. Files that are given are judged
here and only the findings go in. Prompts are never recorded; tenants are replaced by
hashes; texts from outside, labels that are not known, addresses with credentials and
everything that looks like a key are left out.

On another machine: penstock diagnose --bundle FILE`,
		Example: `  penstock diagnose bundle
  penstock diagnose bundle deploy/ engine.log --file ticket-4711.tar.gz`,
	}
	c.Flags().StringVar(&file, "file", "", "write the archive to this `file` (default penstock-bundle-TIME.tar.gz)")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		b := &bundle{now: e.Now()}
		if err := b.live(c.Context(), e, *server); err != nil && len(args) == 0 {
			return err
		}
		if err := b.files(e, args); err != nil {
			return err
		}
		name := file
		if name == "" {
			name = "penstock-bundle-" + b.now.UTC().Format("20060102-150405") + ".tar.gz"
		}
		raw, err := b.archive()
		if err != nil {
			return failf("", "%w", err)
		}
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			return failf("", "%w", err)
		}
		fmt.Fprintf(e.Stdout, "%s: %s, %d bytes\n", name, diagnose.Plural(len(b.entries), "file"), len(raw))
		return nil
	}
	return c
}

// bundle collects the files of an archive.
type bundle struct {
	now     time.Time
	entries []bundleEntry
}

type bundleEntry struct {
	name string
	data []byte
}

func (b *bundle) json(name string, v any) error {
	var buf bytes.Buffer
	if err := printJSON(&buf, v); err != nil {
		return err
	}
	b.entries = append(b.entries, bundleEntry{name, buf.Bytes()})
	return nil
}

// live adds the state of the running system.
func (b *bundle) live(ctx context.Context, e *Env, server string) error {
	cl, err := e.client(server)
	if err != nil {
		return err
	}
	var st console.Status
	if err := cl.get(ctx, "/api/v1/status", &st); err != nil {
		return err
	}
	var list console.Decisions
	if err := cl.get(ctx, "/api/v1/decisions?limit=1000", &list); err != nil {
		return err
	}
	for _, r := range list.Decisions {
		scrubRecord(r)
	}
	rep := console.Judge(&st, list.Decisions)
	for _, p := range st.Pools {
		for _, r := range p.Replica {
			if text, err := cl.text(ctx, "/replicas/"+url.PathEscape(r.ID)+"/metrics?pool="+url.QueryEscape(p.Name)); err == nil {
				b.entries = append(b.entries, bundleEntry{"metrics/" + safeName(p.Name) + "-" + safeName(r.ID) + ".txt", scrubMetrics(text)})
			}
		}
	}
	scrubStatus(&st)
	if err := b.json("status.json", &st); err != nil {
		return err
	}
	var lines bytes.Buffer
	for _, r := range list.Decisions {
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		lines.Write(append(raw, '\n'))
	}
	b.entries = append(b.entries, bundleEntry{"decisions.jsonl", lines.Bytes()})
	for i := range rep.Findings {
		scrubFinding(&rep.Findings[i])
		rep.Findings[i].File = ""
	}
	return b.json("findings.json", rep)
}

// files judges what was given and adds the findings alone.
func (b *bundle) files(e *Env, args []string) error {
	if len(args) == 0 {
		return nil
	}
	g, err := e.gather(args)
	if err != nil {
		return err
	}
	set, _ := manifest.Read(g.manifests)
	found := diagnose.Lint(set)
	for i := range found {
		scrubFinding(&found[i])
	}
	if err := b.json("lint.json", diagnose.NewReport(set.Objects, found)); err != nil {
		return err
	}
	in := coldstart.Input{}
	for _, t := range g.texts {
		if evs := manifest.Events(t.name, []byte(t.text)); len(evs) > 0 {
			in.Events = append(in.Events, evs...)
		} else {
			in.Logs = append(in.Logs, coldstart.Log{Name: t.name, Text: t.text})
		}
	}
	if len(in.Logs)+len(in.Events) == 0 {
		return nil
	}
	rep := coldstart.Analyse(in)
	for i := range rep.Stages {
		for j := range rep.Stages[i].Evidence {
			if ev := &rep.Stages[i].Evidence[j]; ev.Name == "silence" {
				ev.Age = "" // it quotes lines
			}
		}
	}
	for i := range rep.Findings {
		scrubFinding(&rep.Findings[i])
	}
	return b.json("start.json", rep)
}

func (b *bundle) archive() ([]byte, error) {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	about := fmt.Sprintf("Made by penstock %s on %s.\nJudge it with: penstock diagnose --bundle FILE\n", buildVersion().Version, b.now.UTC().Format(time.RFC3339))
	for _, en := range append([]bundleEntry{{"README.txt", []byte(about)}}, b.entries...) {
		h := &tar.Header{Name: "penstock-bundle/" + en.name, Mode: 0o600, Size: int64(len(en.data)), ModTime: b.now.UTC().Truncate(time.Second), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := tw.Write(en.data); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// maxBundle bounds what is read of an archive that somebody sent.
const maxBundle = 256 << 20

// diagnoseBundle judges an archive again.
func diagnoseBundle(name string) (diagnose.Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return diagnose.Report{}, usagef("give a file of `penstock diagnose bundle`", "%w", err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return diagnose.Report{}, usagef("give a file of `penstock diagnose bundle`", "%s: %w", name, err)
	}
	tr := tar.NewReader(io.LimitReader(zr, maxBundle))
	var st console.Status
	var records []*route.Record
	var extra []diagnose.Finding
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return diagnose.Report{}, failf("", "%s: %w", name, err)
		}
		raw, err := io.ReadAll(tr)
		if err != nil {
			return diagnose.Report{}, failf("", "%s: %w", name, err)
		}
		var rep diagnose.Report
		switch strings.TrimPrefix(h.Name, "penstock-bundle/") {
		case "status.json":
			err = json.Unmarshal(raw, &st)
		case "decisions.jsonl":
			for l := range bytes.Lines(raw) {
				rec := new(route.Record)
				if err = json.Unmarshal(l, rec); err != nil {
					break
				}
				records = append(records, rec)
			}
		case "lint.json", "start.json":
			if err = json.Unmarshal(raw, &rep); err == nil {
				extra = append(extra, rep.Findings...)
			}
		}
		if err != nil {
			return diagnose.Report{}, failf("", "%s: %s: %w", name, h.Name, err)
		}
	}
	rep := console.Judge(&st, records)
	rep.Findings = append(rep.Findings, extra...)
	diagnose.SortByHarm(rep.Findings)
	return rep, nil
}

// text reads a path that is not JSON.
func (c *client) text(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return "", err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return string(b), err
}

func safeName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, s)
}

// pseudonym replaces a name by one that is the same in the whole archive and tells
// nothing.
func pseudonym(kind, name string) string {
	if name == "" {
		return ""
	}
	h := sha256.Sum256([]byte("penstock-bundle:" + name))
	return kind + "-" + hex.EncodeToString(h[:4])
}

func scrubRecord(r *route.Record) {
	r.Request.Tenant = pseudonym("tenant", r.Request.Tenant)
	r.Why = headline(r.Why)
}

// scrubStatus removes texts that come from outside and credentials in addresses.
func scrubStatus(st *console.Status) {
	st.Config.Error = headline(st.Config.Error)
	st.Config.File = ""
	st.Config.Restart, st.Config.Inert = nil, nil
	st.Reason = headline(st.Reason)
	st.Journal.Dir = ""
	st.Journal.Error = headline(st.Journal.Error)
	for i := range st.Pools {
		st.Pools[i].Source = ""
		for j := range st.Pools[i].Replica {
			r := &st.Pools[i].Replica[j]
			r.Reason, r.ScrapeError, r.Notes = headline(r.Reason), headline(r.ScrapeError), nil
			if u, err := url.Parse(r.URL); err == nil {
				r.URL = u.Scheme + "://" + u.Host
			} else {
				r.URL = ""
			}
		}
	}
}

// headline keeps the beginning of a text: up to the first quote, address or value.
func headline(s string) string {
	if i := strings.IndexAny(s, "\"'`{=\n"); i >= 0 {
		s = s[:i]
	}
	if i := strings.Index(s, "http"); i >= 0 {
		s = s[:i]
	}
	if secretLike.MatchString(s) || len(s) > 120 {
		return "redacted"
	}
	return strings.TrimRight(s, " :,")
}

// secretLike matches what looks like a key: known prefixes, or long runs without a
// space that mix letters and digits.
var secretLike = regexp.MustCompile(`(?i)\b(sk|pk|hf|gh[pousr]|xox[abp]|glpat|bearer|eyj)[-_. ][a-z0-9._-]{6,}|[A-Za-z0-9+/_-]{32,}`)

// scrubFinding keeps what was computed and drops what was quoted.
func scrubFinding(f *diagnose.Finding) {
	kept := f.Evidence[:0]
	for _, ev := range f.Evidence {
		switch ev.Value.(type) {
		case nil, bool, int, float64, []int:
			ev.Age = ""
			kept = append(kept, ev)
		}
	}
	f.Evidence, f.File = kept, filepath.Base(f.File)
	if r, ok := diagnose.RuleOf(f.Code); ok {
		f.Message, f.Remedy = r.Title, r.Remedy
	} else {
		f.Message, f.Remedy = f.Code, ""
	}
}

// plainLabels are labels whose values are safe: names of models, ranks, reasons,
// buckets.
var plainLabels = map[string]bool{
	"model_name": true, "engine": true, "le": true, "quantile": true, "reason": true, "finished_reason": true, "version": true, "block_size": true,
	"num_gpu_blocks": true, "cache_dtype": true, "tp_rank": true, "dp_rank": true, "pp_rank": true, "method": true, "status": true, "handler": true, "generation": true,
	"max_lora": true, "kv_cache_block_type": true, "request_type": true, "sleep_state": true,
}

var labelPair = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"`)

// scrubMetrics keeps samples and types; label values that are not known to be safe
// are replaced, and help texts are left out.
func scrubMetrics(text string) []byte {
	var out strings.Builder
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "#") {
			if strings.HasPrefix(l, "# TYPE ") {
				out.WriteString(l)
			}
			continue
		}
		out.WriteString(labelPair.ReplaceAllStringFunc(l, func(p string) string {
			name, value, _ := strings.Cut(p, "=")
			if plainLabels[name] && !secretLike.MatchString(value) {
				return p
			}
			return name + `="redacted"`
		}))
	}
	return []byte(out.String())
}
