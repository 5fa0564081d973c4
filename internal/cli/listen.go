// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/config"
)

// listen opens a listener, or takes the one that this process was given for the
// address. A port in use is reported with who has it, as far as
// this machine tells, and with what to do.
func listen(what, flag, addr string) (net.Listener, error) {
	l, err := net.Listener(nil), error(nil)
	if l = inheritedListener(addr); l == nil {
		l, err = net.Listen("tcp", addr)
	}
	if err == nil {
		keepListener(l)
		return l, nil
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		_, port, _ := net.SplitHostPort(addr)
		who := ""
		if p := portOwner(port); p != "" {
			who = " by " + p
		}
		return nil, &Fault{Code: ExitFailed, Err: fmt.Errorf("%s cannot listen on %s: the port is in use%s", what, addr, who),
			Hint: fmt.Sprintf("stop that process, or choose another port with %s HOST:PORT", flag)}
	case errors.Is(err, syscall.EACCES):
		return nil, &Fault{Code: ExitFailed, Err: fmt.Errorf("%s cannot listen on %s: not permitted", what, addr),
			Hint: fmt.Sprintf("ports below 1024 need a privilege; choose a higher one with %s", flag)}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, &Fault{Code: ExitFailed, Err: fmt.Errorf("%s cannot listen on %s: this machine does not have that address", what, addr),
			Hint: fmt.Sprintf("choose an address of this machine with %s", flag)}
	}
	return nil, failf("", "%s cannot listen on %s: %v", what, addr, err)
}

// portOwner names the process that listens on a TCP port, "" where it cannot be
// told: on other systems than Linux, or for processes of other users.
func portOwner(port string) string {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return ""
	}
	inodes := map[string]bool{}
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			c := strings.Fields(line)
			// local address, state (0A is LISTEN) and inode
			if len(c) > 9 && c[3] == "0A" && strings.HasSuffix(c[1], fmt.Sprintf(":%04X", n)) {
				inodes["socket:["+c[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && inodes[to] {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return ""
}

// serverTLS returns the TLS configuration of the gateway; nil where it is off. The
// certificate is read again when its file changes, so that a renewed one needs no
// restart.
func serverTLS(t config.TLS) (*tls.Config, error) {
	if t.Cert == "" {
		return nil, nil
	}
	c := &certFile{cert: t.Cert, key: t.Key}
	if _, err := c.get(nil); err != nil {
		return nil, failf("tls.cert and tls.key name PEM files", "%v", err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
	if t.ClientCA != "" {
		pool, err := certPool(t.ClientCA)
		if err != nil {
			return nil, err
		}
		out.ClientCAs, out.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return out, nil
}

// engineTLS returns how the replicas of a pool are trusted; nil: the system's
// roots.
func engineTLS(t config.EngineTLS) (*tls.Config, error) {
	if t.CA == "" {
		return nil, nil
	}
	pool, err := certPool(t.CA)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}, nil
}

func certPool(file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, failf("", "%v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, failf("", "%s holds no PEM certificate", file)
	}
	return pool, nil
}

// certFile is a key pair that follows its files.
type certFile struct {
	cert, key string

	mu     sync.Mutex
	pair   *tls.Certificate
	stamp  time.Time // of the certificate file that pair was read from
	looked time.Time
}

func (c *certFile) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != nil && time.Since(c.looked) < 10*time.Second {
		return c.pair, nil
	}
	c.looked = time.Now()
	info, err := os.Stat(c.cert)
	if err == nil && c.pair != nil && info.ModTime().Equal(c.stamp) {
		return c.pair, nil
	}
	pair, perr := tls.LoadX509KeyPair(c.cert, c.key)
	if perr != nil {
		if c.pair != nil {
			return c.pair, nil // half-written: keep the old one until the next look
		}
		return nil, perr
	}
	c.pair = &pair
	if err == nil {
		c.stamp = info.ModTime()
	}
	return c.pair, nil
}
