// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cli

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
)

// fullDiskDir tells the process that has a disk of its own where it is.
const fullDiskDir = "PENSTOCK_TEST_FULL_DISK"

// TestFullDiskOfTheJournal fills a real file system of 256 KiB under the journal while
// clients ask. Nobody notices: requests are answered, what could not be written is
// counted, and writing goes on when there is room again. The file system is mounted in
// a namespace of its own, where this test starts itself again.
func TestFullDiskOfTheJournal(t *testing.T) {
	dir := os.Getenv(fullDiskDir)
	if dir == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFullDiskOfTheJournal$", "-test.v")
		cmd.Env = append(os.Environ(), fullDiskDir+"="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		out, err := cmd.CombinedOutput()
		if cmd.Process == nil || strings.Contains(string(out), "--- SKIP") {
			t.Skipf("no file system can be mounted here: %v %s", err, out)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip(err)
	}
	e := newEngine(t)
	s, stop := runServer(t, func(c *config.Config) { c.Journal.Dir = filepath.Join(dir, "journal") }, e.URL)
	some := func(n int) {
		t.Helper()
		for range n {
			res, err := ask(http.DefaultClient, s.GatewayURL(), false)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			if res.Body.Close(); res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); some(10) {
			if time.Now().After(end) {
				t.Fatalf("%s: %+v", what, s.journal.Stats())
			}
		}
	}
	some(5)
	until("the disk is not full", func() bool { return s.journal.Stats().Dropped > 0 })
	if st := s.journal.Stats(); !strings.Contains(st.Error, "no space left") || st.Written == 0 {
		t.Errorf("%+v", st)
	}
	some(50)
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	before := s.journal.Stats().Written
	until("writing does not go on", func() bool { st := s.journal.Stats(); return st.Written > before && st.Error == "" })
	if err := stop(); err != nil {
		t.Error(err)
	}
}
