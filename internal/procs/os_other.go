// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package procs

import "syscall"

// attributes put a process into a group of its own. Only Linux tells a child that
// its parent died.
func attributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func killGroup(pid int, sig syscall.Signal) {
	if pid > 1 {
		_ = syscall.Kill(-pid, sig)
	}
}

// bornAt cannot be told here without cgo, so that no process is ever adopted.
func bornAt(int) uint64 { return 0 }

func bootID() string { return "" }
