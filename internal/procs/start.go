// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// serveStarts runs on one thread that lives as long as the pool: the kernel sends
// the signal of a parent's death when the thread ends that started the child.
func serveStarts(starts <-chan func(), stop <-chan struct{}) {
	runtime.LockOSThread()
	for {
		select {
		case f := <-starts:
			f()
		case <-stop:
			runtime.UnlockOSThread() // or the thread ends here
			return
		}
	}
}

// start starts one process and reports whether that worked.
func (p *Pool) start(now time.Time) bool {
	p.mu.Lock()
	starter := p.starter
	r := &proc{id: fmt.Sprintf("%s-%d", p.o.Pool, p.next), started: now, since: now, phase: fleet.PhaseLoading}
	p.next++
	p.mu.Unlock()
	err := p.place(r)
	var cmd *exec.Cmd
	if err == nil {
		done := make(chan struct{})
		starter <- func() {
			defer close(done)
			cmd, err = p.spawn(r)
		}
		<-done
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirty = true
	if err != nil {
		p.failures++
		p.lastFail = err.Error()
		p.retryAt = now.Add(p.o.pause(p.failures))
		p.log.Error("cannot start a replica", "replica", r.id, "failures", p.failures, "error", err)
		return false
	}
	r.pid = cmd.Process.Pid
	r.born = bornAt(r.pid)
	r.done = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		r.exit = exitText(cmd.ProcessState)
		close(r.done)
		p.kick()
	}()
	p.procs = append(p.procs, r)
	p.publish()
	p.log.Info("replica started", "replica", r.id, "pid", r.pid, "url", r.url, "log", r.logPath)
	return true
}

// place gives a process its port, URL and log.
func (p *Pool) place(r *proc) error {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("no free port: %w", err)
	}
	r.port = ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	r.url, r.logPath = urlOf(r.port), p.logOf(r.id)
	return nil
}

func urlOf(port int) string { return fmt.Sprintf("http://%s:%d", host, port) }

func (p *Pool) logOf(id string) string { return filepath.Join(p.o.Dir, id+".log") }

// spawn starts the process of r. Its output goes to a file and not through a pipe, so
// that it can outlive this program.
func (p *Pool) spawn(r *proc) (*exec.Cmd, error) {
	f, err := os.OpenFile(r.logPath, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	argv := p.fill(r)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = attributes(p.temp)
	return cmd, cmd.Start()
}

const (
	logMost  = 64 << 20 // bytes of a log before it begins again
	logRead  = 1 << 20  // bytes of a log that are analysed
	tailRead = 8 << 10
)

// stages reads where a starting process is from its log.
func (p *Pool) stages(r *proc) {
	st, err := os.Stat(r.logPath)
	if err != nil || p.o.Analyse == nil || st.Size() == r.logSize {
		return
	}
	r.logSize = st.Size()
	s := p.o.Analyse(readHead(r.logPath, logRead))
	if s.Phase == fleet.PhaseLoading || s.Phase == fleet.PhaseWarming {
		r.phase = s.Phase
	}
	r.stage = s.Stage
}

// verdict says why a process ended: what the analysis of its log finds, else its last
// line.
func (p *Pool) verdict(r *proc) string {
	how := r.exit
	if how == "" {
		how = "ended"
	}
	if p.o.Analyse != nil && !r.was {
		if s := p.o.Analyse(readHead(r.logPath, logRead)); s.Fault != "" {
			return how + ": " + s.Fault
		}
	}
	if line := lastLine(r.logPath); line != "" {
		return how + ": " + line
	}
	return how
}

func readHead(name string, most int64) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return b
}

// lastLine is the last line of a log that says something, shortened.
func lastLine(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(st.Size(), tailRead))
	n, _ := f.ReadAt(b, max(0, st.Size()-tailRead))
	lines := bytes.Split(bytes.TrimSpace(b[:n]), []byte("\n"))
	line := strings.TrimSpace(string(lines[len(lines)-1]))
	if len(line) > 240 {
		line = line[:240] + "..."
	}
	return line
}

// trim lets a log that has grown too large begin again; the process appends, so it
// goes on at the new end.
func (p *Pool) trim(r *proc) {
	if st, err := os.Stat(r.logPath); err == nil && st.Size() > logMost {
		_ = os.Truncate(r.logPath, 0)
	}
}
