// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/bench/proctree"
)

// soakStack is what a soak runs: four engines that stay, one that is killed and
// restarted, one that moves from port to port, and penstock in front of them.
type soakStack struct {
	lab      *lab
	churn    time.Duration
	list     string // file with the replicas
	steady   []string
	mortal   string // address of the engine that is killed
	moving   string // of the one that moves, "" while there is none
	victims  []*exec.Cmd
	subjects []*subject
}

const soakConf = `listen: {http: %[1]q, admin: %[2]q}
relay: {streams: %[3]s}
journal: {dir: %[4]q, maxBytes: 64MiB, memory: 2000}
pools:
  - name: chat
    models: [{name: bench}]
    replicas: {file: %[5]q}
`

func newSoakStack(ctx context.Context, penstock, dir, ways string, churn time.Duration) (*soakStack, error) {
	if _, err := os.Stat(penstock); err != nil {
		return nil, fmt.Errorf("%w (%s)", errAbsent, penstock)
	}
	l, err := newLab(ctx, settings{only: "none", penstock: penstock, dir: dir})
	if err != nil {
		return nil, err
	}
	k := &soakStack{lab: l, churn: churn, list: filepath.Join(dir, "replicas"), steady: l.engineAddr}
	if err := k.start(ctx, penstock, dir, ways); err != nil {
		l.stop()
		return nil, err
	}
	return k, nil
}

func (k *soakStack) start(ctx context.Context, penstock, dir, ways string) error {
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	k.mortal = addrs[0]
	if _, err := k.engine(k.mortal); err != nil {
		return err
	}
	if err := k.write(); err != nil {
		return err
	}
	for _, way := range strings.Split(ways, ",") {
		addrs, err := freeAddrs(2)
		if err != nil {
			return err
		}
		conf := filepath.Join(dir, way+".yaml")
		text := fmt.Sprintf(soakConf, addrs[0], addrs[1], way, filepath.Join(dir, "journal-"+way), k.list)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		cmd, err := k.lab.spawn("penstock-"+way, penstock, "serve", "--config", conf, "--log-level", "error")
		if err != nil {
			return err
		}
		c := &contender{name: way, addr: addrs[0], admin: addrs[1], cmd: cmd, ready: "http://" + addrs[0] + "/readyz"}
		k.lab.contenders = append(k.lab.contenders, c)
		if err := c.wait(ctx); err != nil {
			return fmt.Errorf("penstock does not serve: %w%s", err, k.lab.log("penstock-"+way))
		}
		k.subjects = append(k.subjects, &subject{name: way, c: c})
	}
	return nil
}

// engine starts a process with one fake engine.
func (k *soakStack) engine(addr string) (*exec.Cmd, error) {
	cmd, err := k.lab.spawn("engine-"+addr, self(), "role=engine", "-listen", addr)
	if err == nil {
		k.victims = append(k.victims, cmd)
	}
	return cmd, err
}

// end kills an engine and waits for it.
func (k *soakStack) end(cmd *exec.Cmd) {
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	for i, c := range k.victims {
		if c == cmd {
			k.victims = append(k.victims[:i], k.victims[i+1:]...)
			return
		}
	}
}

// write puts the replicas that there are into the file.
func (k *soakStack) write() error {
	all := append([]string{k.mortal}, k.steady...)
	if k.moving != "" {
		all = append(all, k.moving)
	}
	text := ""
	for _, a := range all {
		text += "http://" + a + "\n"
	}
	tmp := k.list + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, k.list)
}

// change lets replicas come and go until ctx ends: one is killed with what runs there
// and comes back at its address after 3 s; another comes under a new address each
// time, freezes for 6 s, is taken off the list and ends when nothing can run there any
// more.
func (k *soakStack) change(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, k.churn)
		if len(k.victims) == 0 || ctx.Err() != nil {
			return
		}
		k.end(k.victims[0])
		wait(ctx, 3*time.Second)
		back, err := k.engine(k.mortal)
		if err != nil {
			return
		}
		k.victims = []*exec.Cmd{back}
		wait(ctx, k.churn)
		addrs, err := freeAddrs(1)
		if err != nil {
			return
		}
		visitor, err := k.engine(addrs[0])
		if err != nil {
			return
		}
		k.moving = addrs[0]
		k.write()
		wait(ctx, k.churn/2)
		visitor.Process.Signal(syscall.SIGSTOP)
		wait(ctx, 6*time.Second)
		visitor.Process.Signal(syscall.SIGCONT)
		wait(ctx, k.churn/2)
		k.moving = ""
		k.write()
		wait(ctx, 25*time.Second) // the longest stream
		k.end(visitor)
	}
}

// settle ends the engines that came and went.
func (k *soakStack) settle() {
	for len(k.victims) > 0 {
		k.end(k.victims[0])
	}
}

// held is what the process holds at a moment.
type held struct {
	at                            time.Duration
	rss, heap                     float64 // MiB
	goroutines, descriptors, open float64
	inFlight                      float64 // at the door
	ledger                        float64 // what the pool says is at its replicas
	cpu                           float64 // seconds since the process began
}

// look asks the process what it holds.
func (u *subject) look(at time.Duration) held {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", u.c.pid))
	h := held{at: at, rss: proctree.ResidentMB(u.c.pid), descriptors: float64(len(fds)), cpu: proctree.CPUSeconds(u.c.pid)}
	res, err := http.Get("http://" + u.c.admin + "/metrics")
	if err != nil {
		u.fail(fmt.Errorf("the metrics cannot be read: %w", err))
		return h
	}
	defer res.Body.Close()
	pool, replicas := 0.0, 0.0 // two accounts of the same requests
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		line := lines.Text()
		v, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		family, _, _ := strings.Cut(line, "{")
		family, _, _ = strings.Cut(family, " ")
		switch family {
		case "go_goroutines":
			h.goroutines = v
		case "go_memstats_heap_inuse_bytes":
			h.heap = v / (1 << 20)
		case "penstock_gateway_in_flight":
			h.inFlight = v
		case "penstock_pool_in_flight_requests":
			pool += v
		case "penstock_replica_in_flight_requests":
			replicas += v
		case "penstock_gateway_upstream_connections":
			h.open += v
		}
	}
	h.ledger = max(pool, replicas)
	io.Copy(io.Discard, res.Body)
	return h
}
