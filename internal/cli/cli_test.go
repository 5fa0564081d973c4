// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/penstock-project/penstock/internal/testinput"
)

// TestMain lets the scripts run this binary as penstock.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"penstock": func() { os.Exit(Main(OS())) },
	})
}

// TestScripts runs testdata/script/*.txtar. Beside the commands of testscript they
// have:
//
//	freeport VAR...          put an unused loopback port into each variable
//	waitfor URL [TEXT]       ask until the answer is 200 and holds TEXT (a minute at most)
//	http METHOD URL [FILE]   one request; body to stdout, "status N" and headers to stderr
//	httpkey, withid          see keys_script_test.go
//	field FILE PATH [WANT]   a value of a JSON file (stdout: of the last command); PATH is a.0.b
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("NO_COLOR", "1")
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"freeport": freePort, "waitfor": waitFor, "http": request, "field": jsonField,
			"httpkey": requestWithKey, "withid": keyCommand,
		},
	})
}

func freePort(ts *testscript.TestScript, _ bool, names []string) {
	for _, n := range names {
		port, err := testinput.FreePort()
		ts.Check(err)
		ts.Setenv(n, strconv.Itoa(port))
	}
}

func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: waitfor URL [TEXT]")
	}
	text := ""
	if len(args) > 1 {
		text = args[1]
	}
	last := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		res, err := http.Get(args[0])
		if err != nil {
			last = err.Error()
			continue
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusOK && strings.Contains(string(b), text) {
			return
		}
		last = fmt.Sprintf("%d %.300s", res.StatusCode, b)
	}
	ts.Fatalf("no good answer from %s: %s", args[0], last)
}

func request(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: http METHOD URL [FILE]")
	}
	var body io.Reader
	if len(args) == 3 {
		body = strings.NewReader(ts.ReadFile(args[2]))
	}
	req, err := http.NewRequest(args[0], args[1], body)
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer res.Body.Close()
	_, err = io.Copy(ts.Stdout(), res.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stderr(), "status %d\n", res.StatusCode)
	_ = res.Header.Write(ts.Stderr())
	if ok := res.StatusCode < 400; ok == neg {
		ts.Fatalf("status %d", res.StatusCode)
	}
}

func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: field FILE PATH [WANT]")
	}
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	dec.UseNumber()
	var v any
	ts.Check(dec.Decode(&v))
	for _, k := range strings.Split(args[1], ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[k]
		case []any:
			i, err := strconv.Atoi(k)
			ts.Check(err)
			if i >= len(x) {
				ts.Fatalf("%s: there are %d elements", args[1], len(x))
			}
			v = x[i]
		default:
			v = nil
		}
	}
	got := fmt.Sprint(v)
	if _, scalar := v.(map[string]any); scalar || isList(v) {
		b, err := json.Marshal(v)
		ts.Check(err)
		got = string(b)
	}
	fmt.Fprintln(ts.Stdout(), got)
	if len(args) == 3 && (got == args[2]) == neg {
		ts.Fatalf("%s is %s, want %s", args[1], got, args[2])
	}
}

func isList(v any) bool { _, ok := v.([]any); return ok }

// run runs a command line in-process and returns what it printed.
func run(t *testing.T, tty bool, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &Env{
		Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }, Now: func() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) },
		Context: t.Context(), Terminal: func() (bool, int) { return tty, 80 },
	}
	code = Main(e)
	return code, out.String(), errs.String()
}
