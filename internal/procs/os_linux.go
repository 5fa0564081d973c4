// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// attributes put a process into a group of its own. mortal ones get SIGTERM when
// this program dies: SIGKILL would leave the workers of an engine behind.
func attributes(mortal bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if mortal {
		a.Pdeathsig = syscall.SIGTERM
	}
	return a
}

func killGroup(pid int, sig syscall.Signal) {
	if pid > 1 {
		_ = syscall.Kill(-pid, sig)
	}
}

// bornAt is when the kernel says that a process began, in ticks since the boot; 0
// where there is none or where it is a zombie. Together with the pid it names a
// process for the time of one boot: field 22 of proc(5)'s stat.
func bornAt(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := statusOf(string(b))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0
	}
	n, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
