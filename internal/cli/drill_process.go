// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/extproc"
)

// foreignPicker is a process that somebody else started.
type foreignPicker struct {
	pid     int
	restart string
}

func (p *foreignPicker) signal(s syscall.Signal) error { return syscall.Kill(p.pid, s) }

func (p *foreignPicker) Terminate() error { return p.signal(syscall.SIGTERM) }
func (p *foreignPicker) Kill() error      { return p.signal(syscall.SIGKILL) }
func (p *foreignPicker) Freeze() error    { return p.signal(syscall.SIGSTOP) }
func (p *foreignPicker) Thaw() error      { return p.signal(syscall.SIGCONT) }

// Start runs the command of the user, which may print the new process id.
func (p *foreignPicker) Start() error {
	if p.restart == "" {
		return nil
	}
	out, err := exec.Command("sh", "-c", p.restart).Output()
	if err != nil {
		return fmt.Errorf("--restart-command: %w", err)
	}
	var pid int
	if n, _ := fmt.Sscan(string(out), &pid); n == 1 && pid > 1 {
		p.pid = pid
	}
	return nil
}

// child is a process of the drill.
type child struct {
	args []string
	log  *os.File
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
}

// Start starts it, after the end of the process that it was before: a picker that
// drains keeps its ports.
func (c *child) Start() error {
	if c.gone != nil {
		select {
		case <-c.gone:
		case <-time.After(time.Minute):
			return errors.New("the picker that was told to end still runs")
		}
	}
	c.cmd = exec.Command(c.args[0], c.args[1:]...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		return err
	}
	gone, cmd := make(chan struct{}), c.cmd
	c.gone = gone
	go func() {
		_ = cmd.Wait() // it is told to end
		close(gone)
	}()
	return nil
}

func (c *child) Terminate() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
func (c *child) Kill() error      { return c.cmd.Process.Kill() }
func (c *child) Freeze() error    { return c.cmd.Process.Signal(syscall.SIGSTOP) }
func (c *child) Thaw() error      { return c.cmd.Process.Signal(syscall.SIGCONT) }

// drillModel is what the replicas of a local drill serve.
const drillModel = "drill"

// localPool are the processes of a local drill.
type localPool struct {
	dir, self string
	children  []*child
	outsider  net.Listener
}

func (l *localPool) stop() {
	for _, c := range l.children {
		if c.gone != nil {
			_ = c.Thaw() // it may have ended, which is as good
			_ = c.Kill()
			<-c.gone
		}
		c.log.Close()
	}
	if l.outsider != nil {
		l.outsider.Close()
	}
	os.RemoveAll(l.dir)
}

// start starts a process; its output goes to a file.
func (l *localPool) start(name string, args ...string) (*child, error) {
	log, err := os.Create(filepath.Join(l.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	c := &child{args: args, log: log}
	l.children = append(l.children, c)
	return c, c.Start()
}

// startLocal starts replicas, a picker and two Envoys. stop ends them, also after
// an error.
func (d *drill) startLocal(ctx context.Context, f *drillFlags) (stop func(), err error) {
	l := &localPool{}
	if l.dir, err = os.MkdirTemp("", "penstock-drill-"); err != nil {
		return func() {}, err
	}
	if l.self, err = os.Executable(); err != nil {
		return l.stop, err
	}
	if l.outsider, d.hits, err = listenOutsider(); err != nil {
		return l.stop, err
	}
	d.forbidden, d.model, d.cluster = l.outsider.Addr().String(), drillModel, "picker"
	addrs, err := freeAddrs(9)
	if err != nil {
		return l.stop, err
	}
	picker := []string{l.self, "epp", "--epp", addrs[0], "--admin", addrs[1], "--scrape-interval", "300ms", "--model", drillModel}
	endpoints := addrs[2:5]
	for i, a := range endpoints {
		if _, err := l.start(fmt.Sprintf("replica-%d", i), l.self, "replica", "--model", drillModel, "--listen", a); err != nil {
			return l.stop, err
		}
		picker = append(picker, "--replica", "http://"+a)
	}
	p, err := l.start("picker", picker...)
	if err != nil {
		return l.stop, err
	}
	d.picker = p
	for i, open := range []bool{false, true} {
		e, args, err := localEnvoy(l.dir, f.local, extproc.Bootstrap{Listen: addrs[5+2*i], Admin: addrs[6+2*i],
			Pickers: addrs[:1], Endpoints: endpoints, FailOpen: open, IdleTimeout: cmp.Or(f.idle, 4*time.Second)})
		if err != nil {
			return l.stop, err
		}
		if _, err := l.start(e.name, args...); err != nil {
			return l.stop, failf("--local takes the path of an Envoy binary", "%v", err)
		}
		d.envoys = append(d.envoys, e)
	}
	return l.stop, ctx.Err()
}

func localEnvoy(dir, binary string, b extproc.Bootstrap) (*drillEnvoy, []string, error) {
	e := &drillEnvoy{name: mode(b.FailOpen), url: "http://" + b.Listen, admin: "http://" + b.Admin, failOpen: b.FailOpen, idle: b.IdleTimeout}
	y, err := b.YAML()
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(dir, e.name+".yaml")
	if err := os.WriteFile(file, y, 0o600); err != nil {
		return nil, nil, err
	}
	return e, []string{binary, "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"}, nil
}

// listenOutsider is a server outside of the pool that counts who reaches it.
func listenOutsider() (net.Listener, func() int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	var n atomic.Int64
	s := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1) })}
	go func() {
		if err := s.Serve(l); errors.Is(err, http.ErrServerClosed) {
			return
		}
	}()
	return l, func() int { return int(n.Load()) }, nil
}

// freeAddrs are addresses of this machine whose ports are free now. All are held until
// each is known: one that was given back may be given again.
func freeAddrs(n int) ([]string, error) {
	out := make([]string, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}
