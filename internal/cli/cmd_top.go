// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/route"
)

func topCmd(e *Env) *cobra.Command {
	c := grouped(groupSee, &cobra.Command{
		Use:   "top",
		Short: "Watch pools, replicas and decisions live",
		Long: `Watch pools, replicas and decisions of a running Penstock, live. The first line says
whether users are fine and what binds; the keys are those of k9s: j and k move, enter
opens, d shows decisions as they end, / filters, ? helps, q quits.

Where output is no terminal, one frame is printed. Only what changed is sent to the
terminal. NO_COLOR is respected; colour only repeats what words say.`,
		Example: `  penstock top
  penstock top --server http://10.0.0.5:9900
  penstock top | head -n 8
  penstock top -o json`,
		Args: noArgs,
	})
	out := outputFlag(c, "table", "json")
	ascii := c.Flags().Bool("ascii", false, "draw bars with # (default: where the locale is not UTF-8)")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		cl.http.Timeout = 0 // the stream has no end
		m := &topModel{server: cl.base, ascii: *ascii || !e.utf8()}
		tty, _ := e.Terminal()
		in, isFile := e.Stdin.(*os.File)
		if *out == "json" || !tty || !isFile || !term.IsTerminal(int(in.Fd())) {
			return e.topOnce(c.Context(), cl, m, *out == "json")
		}
		return e.topLoop(c.Context(), cl, m, in)
	}
	return c
}

// utf8 reports whether the locale says that the terminal knows block characters.
func (e *Env) utf8() bool {
	for _, k := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := e.Getenv(k); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// topOnce prints one frame.
func (e *Env) topOnce(ctx context.Context, cl *client, m *topModel, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var first *console.Live
	err := cl.follow(ctx, "/api/v1/live", func(event string, data []byte) bool {
		l := new(console.Live)
		if event != "tick" || json.Unmarshal(data, l) != nil {
			return true
		}
		first = l
		return false
	})
	if first == nil {
		if err == nil {
			err = cl.stranger()
		}
		return err
	}
	if asJSON {
		return printJSON(e.Stdout, first)
	}
	m.take(first, e.Now())
	n := 0
	for i := range first.Pools {
		n = max(n, len(first.Pools[i].Replicas))
	}
	tty, w := e.Terminal()
	if !tty {
		w = 120
	}
	s := m.draw(e, max(80, w), 14+n)
	for x := range s.w { // no keys work here
		s.cells[(s.h-1)*s.w+x] = cell{' ', inkPlain}
	}
	_, err = io.WriteString(e.Stdout, s.String())
	return err
}

// follow reads an event stream until it ends or each returns false. The error says
// why it could not be read.
func (c *client) follow(ctx context.Context, path string, each func(event string, data []byte) bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		return c.refused(res.StatusCode, b)
	}
	r := bufio.NewReaderSize(res.Body, 1<<16)
	event := ""
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return c.unreachable(err)
		}
		line = strings.TrimRight(line, "\r\n")
		if v, ok := strings.CutPrefix(line, "event: "); ok {
			event = v
		} else if v, ok := strings.CutPrefix(line, "data: "); ok && !each(event, []byte(v)) {
			return nil
		}
	}
}

// topNews is one message for the loop.
type topNews struct {
	live   *console.Live
	rows   []console.Row
	err    error
	record *route.Record
	key    string
}

// topLoop shows the model until the user quits.
func (e *Env) topLoop(ctx context.Context, cl *client, m *topModel, in *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return failf("", "the terminal cannot be read key by key: %v", err)
	}
	defer func() { _ = term.Restore(int(in.Fd()), old) }()
	// The other screen, no cursor; both are undone at the end.
	fmt.Fprint(e.Stdout, "\x1b[?1049h\x1b[?25l")
	defer fmt.Fprint(e.Stdout, "\x1b[0m\x1b[?25h\x1b[?1049l")
	news := make(chan topNews, 16)
	send := func(n topNews) {
		select {
		case news <- n:
		case <-ctx.Done():
		}
	}
	go e.topStream(ctx, cl, send)
	go readKeys(in, func(k string) { send(topNews{key: k}) })
	var shown *screen
	clock := time.NewTicker(time.Second)
	defer clock.Stop()
	for {
		frame := e.topFrame(m, in)
		if _, err := io.WriteString(e.Stdout, frame.diff(shown, e.color())); err != nil {
			return nil // the terminal is gone
		}
		shown = frame
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		case n := <-news:
			switch m.hear(n, e.Now()) {
			case wishQuit:
				return nil
			case wishExplain:
				go func(id string) {
					rec := new(route.Record)
					err := cl.get(ctx, "/api/v1/decisions/"+url.PathEscape(id), rec)
					send(topNews{record: rec, err: err})
				}(m.selected)
			}
		}
	}
}

func (e *Env) topFrame(m *topModel, in *os.File) *screen {
	w, h, err := term.GetSize(int(in.Fd()))
	if err != nil || w < 20 || h < 5 {
		w, h = 80, 24
	}
	return m.draw(e, w, h)
}

// hear books one message and says what the loop should do.
func (m *topModel) hear(n topNews, now time.Time) topWish {
	switch {
	case n.key != "":
		return m.key(n.key)
	case n.record != nil:
		if n.err != nil {
			m.note = n.err.Error()
		} else if n.record.ID == m.selected {
			m.record = n.record
		}
	case n.err != nil:
		m.lost = n.err.Error()
	case n.live != nil:
		if !m.paused {
			m.take(n.live, now)
		}
	default:
		m.add(n.rows)
	}
	return wishNothing
}

// topStream follows the server, and finds it again when it was away.
func (e *Env) topStream(ctx context.Context, cl *client, send func(topNews)) {
	for ctx.Err() == nil {
		err := cl.follow(ctx, "/api/v1/live?decisions=1", func(event string, data []byte) bool {
			switch event {
			case "tick":
				l := new(console.Live)
				if json.Unmarshal(data, l) == nil {
					send(topNews{live: l})
				}
			case "decisions":
				var b struct {
					Rows []console.Row `json:"rows"`
				}
				if json.Unmarshal(data, &b) == nil {
					send(topNews{rows: b.Rows})
				}
			}
			return ctx.Err() == nil
		})
		if err != nil && ctx.Err() == nil {
			send(topNews{err: err})
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// color says whether the terminal may show colour.
func (e *Env) color() bool {
	return e.Getenv("NO_COLOR") == "" && e.Getenv("TERM") != "dumb"
}

// keyNames are the sequences that terminals send for keys without a character.
var keyNames = map[string]string{
	"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
	"\x1b[5~": "pgup", "\x1b[6~": "pgdn", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end",
	"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace", "\x03": "ctrl-c", "\x06": "ctrl-f", "\x02": "ctrl-b", "\x1b": "esc",
}

// readKeys reads keys until the input ends.
func readKeys(in io.Reader, each func(string)) {
	buf := make([]byte, 256)
	for {
		n, err := in.Read(buf)
		for _, k := range splitKeys(string(buf[:n])) {
			each(k)
		}
		if err != nil {
			each("ctrl-c")
			return
		}
	}
}

// splitKeys cuts what was read at once into keys.
func splitKeys(s string) []string {
	var out []string
	for s != "" {
		took := 0
		for l := min(4, len(s)); l > 0 && took == 0; l-- {
			if name, ok := keyNames[s[:l]]; ok && (l > 1 || s[0] != 0x1b || len(s) == 1 || s[1] != '[' && s[1] != 'O') {
				out, took = append(out, name), l
			}
		}
		if took == 0 {
			r := []rune(s)[0]
			took = len(string(r))
			if s[0] == 0x1b { // an unknown sequence: drop it whole
				took = len(s)
			} else if r >= ' ' {
				out = append(out, string(r))
			}
		}
		s = s[took:]
	}
	return out
}
