// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// requestWithKey posts a body with the key of a file until the status is the one
// that is wanted (a minute at most): httpkey KEYFILE URL BODY STATUS.
func requestWithKey(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: httpkey KEYFILE URL BODY STATUS")
	}
	key, got := strings.TrimSpace(ts.ReadFile(args[0])), ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		req, err := http.NewRequest("POST", args[1], strings.NewReader(ts.ReadFile(args[2])))
		ts.Check(err)
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		ts.Check(err)
		_, err = io.Copy(io.Discard, res.Body) // who leaves before its end is another case
		ts.Check(err)
		res.Body.Close()
		if got = fmt.Sprint(res.StatusCode); got == args[3] {
			return
		}
	}
	ts.Fatalf("status %s, want %s", got, args[3])
}

// keyCommand runs a subcommand of penstock key on the id in the file id.
func keyCommand(ts *testscript.TestScript, neg bool, args []string) {
	id := strings.Fields(ts.ReadFile("id"))
	if neg || len(id) != 1 || len(args) == 0 {
		ts.Fatalf("usage: withid SUBCOMMAND FLAG..., with one id in the file id; it holds %q", id)
	}
	ts.Check(ts.Exec("penstock", append([]string{"key", args[0], id[0]}, args[1:]...)...))
}
