// SPDX-License-Identifier: Apache-2.0

package promptlog

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

type keep struct{ all []Record }

func (k *keep) Take(r *Record) { k.all = append(k.all, *r) }
func (k *keep) Close()         {}

func TestRulesChoose(t *testing.T) {
	l := New(Options{Rules: []Rule{
		{Tenants: []string{"acme"}, Models: []string{"llama-*"}, Surfaces: []string{"chat"}, Level: Full, Sample: 1, Sinks: []string{"a"}},
		{Keys: []string{"k1"}, Level: Hash, Sample: 1, Sinks: []string{"b"}},
		{Tenants: []string{"half"}, Level: Metadata, Sample: .5, Sinks: []string{"a"}},
	}})
	for _, c := range []struct {
		who  Who
		most Level
		want Level
	}{
		{Who{"acme", "k9", "llama-3", "chat"}, Full, Full}, {Who{"acme", "k9", "llama-3", "chat"}, Redacted, Redacted}, {Who{"acme", "k9", "llama-3", "chat"}, None, None},
		{Who{"acme", "k9", "qwen", "chat"}, Full, None}, {Who{"acme", "k9", "llama-3", "messages"}, Full, None},
		{Who{"other", "k1", "x", "chat"}, Full, Hash}, {Who{"other", "k1", "x", "chat"}, Metadata, Metadata}, {Who{"other", "k2", "x", "chat"}, Full, None},
	} {
		if got, _ := l.Choose(&c.who, c.most, "id"); got != c.want {
			t.Errorf("%+v at most %s: %s, want %s", c.who, c.most, got, c.want)
		}
	}
	n := 0
	for i := range 1000 {
		if got, _ := l.Choose(&Who{Tenant: "half"}, Full, fmt.Sprint("id", i)); got != None {
			n++
		}
	}
	if n < 430 || n > 570 {
		t.Errorf("half of the requests are %d of 1000", n)
	}
	if ParseLevel("nonsense") != None || ParseLevel("full") != Full {
		t.Error("levels")
	}
	var none *Log
	if e := none.Begin(&Who{}, Full, "x", nil); e != nil {
		t.Error("no log, and an entry")
	}
}

const (
	secretMail = "ann.example@example.org"
	secretCard = "4111 1111 1111 1111"
	secretKey  = "psk_abcdefghij_abcdefghijkmnpqrstuvwxyz234567"
)

// Levels show what they say, and what is spread over the events of a stream is found.
func TestLevels(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"my mail is ` + secretMail + `, card ` + secretCard + `, caf\u00e9"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"api_key":"` + secretKey + `"}`
	var stream strings.Builder
	for _, piece := range strings.SplitAfter("write to "+secretMail+" or pay with "+secretCard+", thanks", "") {
		b, _ := json.Marshal(piece)
		stream.WriteString(`data: {"id":"c","choices":[{"delta":{"content":` + string(b) + `}}]}` + "\n\n")
	}
	stream.WriteString("data: [DONE]\n\n")
	for _, level := range []Level{Metadata, Hash, Redacted, Full} {
		k := &keep{}
		l := New(Options{Rules: []Rule{{Level: Full, Sample: 1, Sinks: []string{"k"}}}, Sinks: map[string]Sink{"k": k}})
		e := l.Begin(&Who{Tenant: "acme"}, level, "id", []byte(body))
		s := stream.String()
		for i := 0; i < len(s); i += 7 {
			e.Answer([]byte(s[i:min(i+7, len(s))]))
		}
		e.End(func(r *Record) { r.Status = 200 })
		b, _ := json.Marshal(k.all)
		text := string(b)
		for _, secret := range []string{secretMail, secretCard, secretKey} {
			if got := strings.Contains(text, secret); got && level != Full {
				t.Errorf("%s shows %q: %s", level, secret, text)
			}
		}
		r := &k.all[0]
		switch level {
		case Metadata:
			if r.Prompt != nil || r.Answer != nil {
				t.Error("metadata shows the text's size")
			}
		case Hash:
			if r.Prompt.HMAC == "" || r.Prompt.Text != "" || r.Answer.HMAC == "" || r.Answer.Bytes != int64(len(s)) {
				t.Errorf("%s", text)
			}
		case Redacted:
			if r.Answer.Text != "write to [email] or pay with [number], thanks" || !strings.Contains(r.Prompt.Text, "café") || !strings.Contains(r.Prompt.Text, "[media]") || !strings.Contains(r.Prompt.Text, "[key]") {
				t.Errorf("%+v %+v", r.Prompt, r.Answer)
			}
		case Full:
			if r.Prompt.Text != body || r.Answer.Text != s {
				t.Errorf("%+v", r)
			}
		}
	}
}

func TestRedactor(t *testing.T) {
	r := NewRedactor(nil)
	for _, secret := range []string{
		secretMail, secretCard, secretKey, "+49 (30) 1234-5678", "192.168.10.20", "sk-proj-abcdefghijklmnop", "eyJhbGciOi.eyJzdWIiOi.sig", "Bearer abcdefghijkl",
		"password: hunter22", "DE89 3704 0044 0532 0130 00", "fe80:0:0:0:1:2:3:4", "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", strings.Repeat("ab12", 10),
	} {
		if got := r.Redact("before " + secret + " after"); strings.Contains(got, secret) || !strings.HasPrefix(got, "before ") {
			t.Errorf("%q: %q", secret, got)
		}
	}
	if s := "The answer is 42, since 2026, in 3 steps."; r.Redact(s) != s {
		t.Errorf("%q", r.Redact(s))
	}
}

func TestAnswerText(t *testing.T) {
	for want, answer := range map[string]string{
		"hi":       `{"choices":[{"message":{"role":"assistant","content":"hi"}}]}`,
		"ab":       "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\ndata: {\"delta\":{\"text\":\"b\"}}\n\n",
		"xy":       "data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"y\"}\n\ndata: {\"type\":\"response.output_text.done\",\"text\":\"xy\"}\n\n",
		"":         "plain words that are no JSON",
		"done":     `{"output":[{"type":"message","content":[{"type":"output_text","text":"done"}]}]}`,
		"no model": `{"error":{"message":"no model"}}`,
	} {
		if got := answerText([]byte(answer)); got != want {
			t.Errorf("%s: %q, want %q", answer, got, want)
		}
	}
}

// No entry is kept longer than its time, and no more than its room.
func TestRetention(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	pass := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	f := &File{o: FileOptions{Dir: dir, MaxAge: 8 * time.Hour, MaxBytes: 20000, FileSize: 4000, Clock: clock}}
	if err := os.WriteFile(filepath.Join(dir, "other.txt"), []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := f.write([]byte(now.Format(time.RFC3339) + strings.Repeat("x", 200) + "\n")); err != nil {
			t.Fatal(err)
		}
		pass(30 * time.Minute)
		if err := f.expire(clock()); err != nil {
			t.Fatal(err)
		}
		f.w.Flush()
		for _, line := range lines(t, dir) {
			at, err := time.Parse(time.RFC3339, line[:20])
			if err != nil || clock().Sub(at) >= 8*time.Hour {
				t.Fatalf("%s is kept at %s", line[:20], clock())
			}
		}
	}
	if n := len(lines(t, dir)); n < 12 {
		t.Errorf("%d lines of 8 hours", n)
	}
	for range 200 {
		if err := f.write([]byte(clock().Format(time.RFC3339) + strings.Repeat("x", 500) + "\n")); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
	}
	f.finish()
	if err := f.expire(clock()); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	list, _ := os.ReadDir(dir)
	for _, d := range list {
		info, _ := d.Info()
		if d.Name() != "other.txt" {
			total += info.Size()
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", d.Name(), info.Mode())
			}
		}
	}
	if total > 20000 || total < 12000 {
		t.Errorf("%d bytes are kept", total)
	}
	if _, err := os.Stat(filepath.Join(dir, "other.txt")); err != nil {
		t.Error("a file of somebody else is gone")
	}
}

func lines(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	files, _ := filepath.Glob(filepath.Join(dir, filePrefix+"*"))
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(b), "\n") {
			if l != "" {
				out = append(out, l)
			}
		}
	}
	return out
}

func TestFileSink(t *testing.T) {
	dir := t.TempDir()
	f, err := NewFile(FileOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		f.Take(&Record{Schema: Schema, ID: fmt.Sprint(i)})
	}
	f.Close()
	if got := lines(t, dir); len(got) != 100 || f.Written.Load() != 100 {
		t.Errorf("%d lines", len(got))
	}
}

// What is written by hand is what encoding/json would write.
func TestAppendJSON(t *testing.T) {
	n, ms := 7, 1.25
	for _, r := range []Record{
		{Schema: Schema, ID: "x"},
		{Schema: Schema, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), ID: "a\"b\n", Level: "full", Tenant: "t", Key: "k", Model: "m", EngineModel: "e", Surface: "chat", Stream: true,
			Status: 200, Outcome: "ok", PromptTokens: &n, OutputTokens: &n, TTFTMS: &ms, E2EMS: 12.5, Prompt: &Text{Bytes: 3, HMAC: "ab", Text: "<é>\x01", Truncated: true}, Answer: &Text{}},
	} {
		want, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if err := json.Unmarshal(r.AppendJSON(nil), &a); err != nil {
			t.Fatalf("%v: %s", err, r.AppendJSON(nil))
		}
		if json.Unmarshal(want, &b); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%s\n%s", r.AppendJSON(nil), want)
		}
	}
}
