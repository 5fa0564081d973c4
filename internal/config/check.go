// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

var (
	nameRE = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	// The shape that an adapter name may have: what an engine could take for a
	// path ("..", a leading slash, an escape) never becomes one.
	adapterRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?$`)
)

func checkName(s string) error {
	if !nameRE.MatchString(s) {
		return fmt.Errorf("%q is not a name; use letters, digits, '.', '_' and '-', at most 63", s)
	}
	return nil
}

func checkAdapter(s string) error {
	if !adapterRE.MatchString(s) || strings.Contains(s, "..") {
		return fmt.Errorf("%q is not an adapter name", s)
	}
	return nil
}

func checkAddr(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if !strings.Contains(s, ":") {
			return fmt.Errorf("%q has no port; write %s:8080", s, s)
		}
		return fmt.Errorf("%q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("%q has no valid port; ports are 0 to 65535", s)
	}
	if strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%q is not host:port", s)
	}
	return nil
}

// CheckReplicaURL reports what is wrong with a base URL of a replica.
func CheckReplicaURL(s string) error { return checkURL(s) }

func checkURL(s string) error {
	if s == "" {
		return errors.New("is empty; write http://127.0.0.1:8000")
	}
	u, err := url.Parse(s)
	switch {
	case strings.Contains(s, "@"):
		return errors.New("carries credentials; put the key into a file and name it in engine.apiKeyFile")
	case !strings.Contains(s, "://"):
		return fmt.Errorf("%q has no scheme; write http://%s", s, s)
	case err != nil:
		return errors.New("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q has scheme %q; use http or https", s, u.Scheme)
	case u.Host == "" || u.Hostname() == "":
		return fmt.Errorf("%q has no host", s)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q is not a base URL: drop what follows the path", s)
	case strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/v1"):
		return fmt.Errorf("%q ends in /v1; give the base URL without it", s)
	}
	return checkURLPort(s, u)
}

// checkOptionalURL accepts nothing, too.
func checkOptionalURL(s string) error {
	if s == "" {
		return nil
	}
	return checkURL(s)
}

func checkURLPort(s string, u *url.URL) error {
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q has no valid port", s)
		}
	}
	return nil
}

func checkDNS(s string) error {
	if s == "" {
		return nil
	}
	if err := checkURL(s); err != nil {
		return err
	}
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	srv := strings.HasPrefix(u.Hostname(), "_")
	switch {
	case srv && u.Port() != "":
		return fmt.Errorf("%q has a port, but an SRV record brings its own", s)
	case !srv && u.Port() == "":
		return fmt.Errorf("%q has no port; write %s:8000", s, strings.TrimSuffix(s, "/"))
	}
	return nil
}

func checkHTTPS(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%q is not a URL", s)
	}
	if u.Scheme != "https" && !isLoopbackHost(u.Hostname()) {
		return fmt.Errorf("%q must use https", s)
	}
	return nil
}

func checkLabel(s string) error {
	if k, _, ok := strings.Cut(s, "="); !ok || k == "" {
		return fmt.Errorf("%q is not key=value", s)
	}
	return nil
}

// checkPoolName wants namespace/name.
func checkPoolName(s string) error {
	ns, name, ok := strings.Cut(s, "/")
	if s != "" && (!ok || ns == "" || name == "" || strings.Contains(name, "/")) {
		return fmt.Errorf("%q is not namespace/name", s)
	}
	return nil
}

// checkKVEvents wants auto, off or a ZMQ endpoint over TCP.
func checkKVEvents(s string) error {
	if s == "" || s == "auto" || s == "off" {
		return nil
	}
	a, ok := strings.CutPrefix(s, "tcp://")
	if !ok {
		return fmt.Errorf("%q is none of auto, off and tcp://host:port", s)
	}
	return checkAddr(strings.NewReplacer("{host}", "host", "*", "host").Replace(a))
}

// checkAdapterPath wants a path, or the name of a repository, that differs by adapter.
func checkAdapterPath(s string) error {
	if s != "" && !strings.Contains(s, "{name}") {
		return fmt.Errorf("%q does not contain {name}, so that all adapters would be the same", s)
	}
	return nil
}

// checkPeers wants auto, off, or host:port and dns:host:port, comma-separated.
func checkPeers(s string) error {
	if s == "" || s == "auto" || s == "off" {
		return nil
	}
	for _, p := range strings.Split(s, ",") {
		if err := checkAddr(strings.TrimPrefix(strings.TrimSpace(p), "dns:")); err != nil {
			return err
		}
	}
	return nil
}

func checkRedis(s string) error {
	if s == "" {
		return nil
	}
	if !strings.Contains(s, "://") {
		return checkAddr(s)
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || (u.Scheme != "redis" && u.Scheme != "rediss") {
		return errors.New("is not a redis:// URL")
	}
	if u.User != nil {
		return errors.New("carries credentials; secrets are given by file only")
	}
	return nil
}

// IsLoopback reports whether a host:port can be reached from this machine only.
// An empty host means every interface and is not loopback.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	return isLoopbackHost(host)
}

func isLoopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
