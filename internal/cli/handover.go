// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A process that is told SIGUSR2 starts the binary that now lies at its own path with
// the listeners that it holds, waits until that one is ready, and drains. Both accept
// from the same sockets meanwhile, so no connection is refused and none is lost in a
// backlog. Listeners that systemd opened are taken the same way.
const (
	fdsEnv   = "PENSTOCK_LISTEN_FDS" // how many listeners follow standard error
	readyEnv = "PENSTOCK_READY_FD"   // where the new process writes a byte once it is ready
	// handoverWait is how long the new process may take to become ready before it is
	// ended and the old one goes on.
	handoverWait = time.Minute
)

// listeners is what this process has open and what it was given: a socket belongs to
// the process and not to a server, hence the one place for all.
var listeners struct {
	sync.Mutex
	parsed bool
	taken  bool           // some were given
	given  []net.Listener // nobody asked for yet
	open   []*net.TCPListener
}

// inheritedListener returns the listener that was handed to this process for addr, nil
// where there is none.
func inheritedListener(addr string) net.Listener {
	listeners.Lock()
	defer listeners.Unlock()
	if !listeners.parsed {
		listeners.parsed = true
		listeners.given = givenListeners()
		listeners.taken = len(listeners.given) > 0
	}
	want, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil
	}
	for i, l := range listeners.given {
		if l == nil {
			continue
		}
		at, ok := l.Addr().(*net.TCPAddr)
		if ok && at.Port == want.Port && (at.IP.Equal(want.IP) || at.IP.IsUnspecified() && (want.IP == nil || want.IP.IsUnspecified())) {
			listeners.given[i] = nil
			return l
		}
	}
	return nil
}

// tookOver reports whether somebody else may still accept from this process's
// sockets, or keeps what comes in their backlog.
func tookOver() bool {
	listeners.Lock()
	defer listeners.Unlock()
	return listeners.taken
}

// givenListeners reads what the parent or systemd left, and removes it from the
// environment so that no child takes it for its own.
func givenListeners() []net.Listener {
	n, _ := strconv.Atoi(os.Getenv(fdsEnv))
	if pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID")); n == 0 && pid == os.Getpid() {
		n, _ = strconv.Atoi(os.Getenv("LISTEN_FDS"))
	}
	for _, k := range []string{fdsEnv, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(k)
	}
	var out []net.Listener
	for fd := 3; fd < 3+min(n, 64); fd++ {
		f := os.NewFile(uintptr(fd), "listener")
		if l, err := net.FileListener(f); err == nil {
			out = append(out, l)
		}
		f.Close() // FileListener made a copy
	}
	return out
}

// keepListener notes a listener for a later handover.
func keepListener(l net.Listener) {
	if t, ok := l.(*net.TCPListener); ok {
		listeners.Lock()
		listeners.open = append(listeners.open, t)
		listeners.Unlock()
	}
}

// followHandover hands over on SIGUSR2 and then calls drain. A handover that fails is
// logged, and this process goes on as if it had not been asked.
func followHandover(ctx context.Context, log *slog.Logger, refuse func() string, drain func()) {
	usr2 := make(chan os.Signal, 1)
	signal.Notify(usr2, syscall.SIGUSR2)
	defer signal.Stop(usr2)
	for {
		select {
		case <-ctx.Done():
			return
		case <-usr2:
		}
		if why := refuse(); why != "" {
			log.Error("no handover", "why", why)
			continue
		}
		pid, err := handover(log)
		if err != nil {
			log.Error("no handover: this process goes on", "error", err)
			continue
		}
		log.Info("handed over; draining", "to_pid", pid)
		notifySystemd(fmt.Sprintf("MAINPID=%d\nREADY=1", pid))
		drain()
		return
	}
}

// handover starts the successor and waits until it is ready; it returns its pid.
func handover(log *slog.Logger) (int, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	files, err := listenerFiles()
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		w.Close()
		return 0, err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = append(files, w)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", fdsEnv, len(files)), fmt.Sprintf("%s=%d", readyEnv, 3+len(files)))
	err = cmd.Start()
	w.Close()
	if err != nil {
		return 0, err
	}
	log.Info("handing over", "binary", path, "pid", cmd.Process.Pid, "listeners", len(files))
	if err := r.SetReadDeadline(time.Now().Add(handoverWait)); err != nil {
		log.Debug("handover", "error", err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 1 {
		_ = cmd.Process.Kill() // it may be gone already
		_ = cmd.Wait()
		return 0, fmt.Errorf("the new process did not become ready: %v", err)
	}
	return cmd.Process.Pid, nil
}

// listenerFiles returns copies of all open listeners.
func listenerFiles() ([]*os.File, error) {
	listeners.Lock()
	defer listeners.Unlock()
	var files []*os.File
	for _, l := range listeners.open {
		f, err := l.File()
		if err != nil {
			if strings.Contains(err.Error(), "use of closed") {
				continue
			}
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// tellReady tells whoever started this process that it serves: the process that it
// follows, or systemd.
func tellReady() {
	if fd, err := strconv.Atoi(os.Getenv(readyEnv)); err == nil {
		os.Unsetenv(readyEnv)
		f := os.NewFile(uintptr(fd), "ready")
		_, _ = f.Write([]byte{1}) // the old process may have given up
		f.Close()
		return
	}
	notifySystemd("READY=1")
}

// notifySystemd sends a state to the service manager; without one it does nothing.
func notifySystemd(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state)) // a manager that does not listen loses nothing
}
