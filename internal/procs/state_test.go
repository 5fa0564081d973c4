// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// victim is a process in a group of its own that no pool started.
func victim(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("/bin/sleep", "300")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func stateOf(t *testing.T, dir, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte(body), 0o640); err != nil {
		t.Fatal(err)
	}
}

// TestReusedPIDIsSpared: the pid of a process that ended is another one's by now.
func TestReusedPIDIsSpared(t *testing.T) {
	if bootID() == "" {
		t.Skip("this system does not tell when a process began")
	}
	c := victim(t)
	p, err := New(Options{Pool: "chat", Command: []string{"x"}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := &proc{id: "chat-0", pid: c.Process.Pid, born: bornAt(c.Process.Pid) - 1, adopted: true, started: time.Now()}
	p.procs = []*proc{r}
	p.reap(time.Now())
	r.signal(syscall.SIGKILL)
	time.Sleep(50 * time.Millisecond)
	if len(p.procs) != 0 || bornAt(c.Process.Pid) == 0 {
		t.Errorf("%d processes are kept; the stranger lives: %v", len(p.procs), bornAt(c.Process.Pid) != 0)
	}
}

// TestStateSendsNobodyElsewhere: the state file does not choose where traffic goes and
// what is read as a log.
func TestStateSendsNobodyElsewhere(t *testing.T) {
	if bootID() == "" {
		t.Skip("this system does not tell when a process began")
	}
	dir, c := t.TempDir(), victim(t)
	one := `{"id":%q,"pid":%d,"born":%d,"port":%d,"url":"http://evil.example:80","log":"/etc/passwd","state":"running"}`
	pid, born := c.Process.Pid, bornAt(c.Process.Pid)
	stateOf(t, dir, fmt.Sprintf(`{"schema":%q,"pool":"chat","boot":%q,"command":["x"],"model":"","processes":[`+one+","+one+","+one+`]}`, stateSchema, bootID(),
		"chat-0", pid, born, 4000, "../../etc/x", pid, born, 4000, "chat-1", pid, born, 400000))
	p, err := New(Options{Pool: "chat", Command: []string{"x"}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l := p.List()
	if len(l) != 1 || l[0].URL != "http://127.0.0.1:4000" || l[0].Log != filepath.Join(dir, "chat-0.log") {
		t.Errorf("%+v", l)
	}
}

// TestStateOfOthersIsRefused: who may write the state could have any process ended.
func TestStateOfOthersIsRefused(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"a directory for everybody": func(dir string) error { return os.Chmod(dir, 0o777) },
		"a file for everybody":      func(dir string) error { return os.Chmod(filepath.Join(dir, "state.json"), 0o666) },
		"a link": func(dir string) error {
			f := filepath.Join(dir, "state.json")
			if err := os.Rename(f, f+".other"); err != nil {
				return err
			}
			return os.Symlink(f+".other", f)
		},
	} {
		dir := t.TempDir()
		stateOf(t, dir, fmt.Sprintf(`{"schema":%q}`, stateSchema))
		if _, err := New(Options{Pool: "chat", Command: []string{"x"}, Dir: dir}); err != nil {
			t.Errorf("%s: refused before: %v", name, err)
		}
		if err := prepare(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Options{Pool: "chat", Command: []string{"x"}, Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
