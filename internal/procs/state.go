// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/wholefile"
)

// stateSchema names the form of the state file.
const stateSchema = "penstock/process-pool/v1"

// saved is the state file: enough for another Penstock to find the processes again
// and to be sure that they are the ones.
type saved struct {
	Schema  string      `json:"schema"`
	Pool    string      `json:"pool"`
	Boot    string      `json:"boot"` // of the machine: process ids mean nothing after the next
	Owner   int         `json:"owner"`
	Born    uint64      `json:"owner_born"`
	Next    int         `json:"next"`
	Want    int         `json:"want"`
	Command []string    `json:"command"`
	Model   string      `json:"model"`
	Procs   []savedProc `json:"processes"`
}

type savedProc struct {
	ID      string    `json:"id"`
	PID     int       `json:"pid"`
	Born    uint64    `json:"born"`
	Port    int       `json:"port"`
	URL     string    `json:"url"`
	Log     string    `json:"log"`
	Started time.Time `json:"started"`
	Ready   bool      `json:"ready"`
	State   string    `json:"state"`
}

func (p *Pool) stateFile() string { return filepath.Join(p.o.Dir, "state.json") }

// save writes the state file where something changed.
func (p *Pool) save() {
	p.mu.Lock()
	if !p.dirty || p.temp {
		p.dirty = false
		p.mu.Unlock()
		return
	}
	p.dirty = false
	s := saved{Schema: stateSchema, Pool: p.o.Pool, Boot: bootID(), Next: p.next, Want: p.want, Command: p.o.Command, Model: p.o.Model, Procs: []savedProc{}}
	if p.running {
		s.Owner = os.Getpid()
		s.Born = bornAt(s.Owner)
	}
	for _, r := range p.procs {
		s.Procs = append(s.Procs, savedProc{ID: r.id, PID: r.pid, Born: r.born, Port: r.port, URL: r.url, Log: r.logPath, Started: r.started.UTC(),
			Ready: r.was, State: r.state.String()})
		p.trim(r)
	}
	p.mu.Unlock()
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = wholefile.Write(p.stateFile(), b, 0o640)
	}
	if err != nil {
		p.log.Error("cannot write the state of the processes; after a crash they will not be found again", "error", err)
	}
}

// adopt reads what an earlier Penstock left: processes of the same command become
// ours, others are ended. A directory that a running Penstock uses is refused.
func (p *Pool) adopt() error {
	if err := ours(p.o.Dir, false); err != nil {
		return err
	}
	err := ours(p.stateFile(), true)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := os.ReadFile(p.stateFile())
	if err != nil {
		return err
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil || s.Schema != stateSchema {
		return fmt.Errorf("%s is not a state file of a process pool; move it away", p.stateFile())
	}
	if s.Boot != bootID() {
		p.next = s.Next
		return nil // the machine was started again: nothing of it is left
	}
	if s.Owner != os.Getpid() && s.Owner > 0 && s.Born != 0 && bornAt(s.Owner) == s.Born {
		return fmt.Errorf("process %d uses %s; give each Penstock a directory of its own", s.Owner, p.o.Dir)
	}
	p.next = s.Next
	same := slices.Equal(s.Command, p.o.Command) && s.Model == p.o.Model
	for _, x := range s.Procs {
		// Where it listens and logs follows from what it is: the file does not send
		// traffic elsewhere, or have another file read and cut.
		r := &proc{id: x.ID, port: x.Port, url: urlOf(x.Port), pid: x.PID, born: x.Born, started: x.Started, adopted: true, logPath: p.logOf(x.ID),
			was: x.Ready, phase: fleet.PhaseLoading}
		if x.PID <= 1 || !p.named(x.ID) || x.Port < 1 || x.Port > 65535 || !alive(r) {
			continue
		}
		p.procs = append(p.procs, r)
		switch {
		case !same:
			p.log.Info("ending a process of another command", "replica", r.id, "pid", r.pid)
			p.enter(r, stateStopping, "another command is configured", time.Now())
			r.signal(syscall.SIGTERM)
		case x.State == stateStopping.String():
			p.enter(r, stateStopping, "it was being ended", time.Now())
			r.signal(syscall.SIGTERM)
		default:
			// One that drained is taken back: nobody knows any more why it should go.
			p.log.Info("replica process adopted", "replica", r.id, "pid", r.pid, "url", r.url, "started", r.started.Format(time.RFC3339))
		}
	}
	p.want = min(max(s.Want, p.live()), p.o.Max)
	if !same {
		p.want = 0
	}
	p.dirty = true
	return nil
}

// ours refuses a file or directory that others may write: its state names processes
// that get signals, and ports that get prompts.
func ours(path string, file bool) error {
	st, err := os.Lstat(path)
	if !file {
		st, err = os.Stat(path) // a directory may be behind a link
	}
	if err != nil {
		return err
	}
	if file && !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could name any process in it; give the pool a directory of its own", path, sys.Uid)
	}
	if st.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("everybody may write %s, and name any process in it; take that right away (chmod o-w)", path)
	}
	return nil
}

// named reports whether an id is one that this pool gives.
func (p *Pool) named(id string) bool {
	n, ok := strings.CutPrefix(id, p.o.Pool+"-")
	_, err := strconv.ParseUint(n, 10, 31)
	return ok && err == nil
}

// signal sends a signal to the group of a process, unless the pid is another process's
// by now: then no member of the group is left.
func (r *proc) signal(sig syscall.Signal) {
	if b := bornAt(r.pid); b != 0 && b != r.born {
		return
	}
	killGroup(r.pid, sig)
}

// alive reports whether the process is there and is the one that was started.
func alive(r *proc) bool {
	if r.done != nil {
		select {
		case <-r.done:
			return false
		default:
			return true
		}
	}
	return r.born != 0 && bornAt(r.pid) == r.born
}

// statusOf cuts the name, which may hold anything, off a line of /proc/PID/stat.
func statusOf(line string) []string {
	i := strings.LastIndexByte(line, ')')
	if i < 0 {
		return nil
	}
	return strings.Fields(line[i+1:])
}
