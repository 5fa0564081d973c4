// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cli

import (
	"context"
	"errors"
)

var errNoDrill = errors.New("this system cannot freeze a process; run the drill on Linux or macOS")

type foreignPicker struct {
	pid     int
	restart string
}

func (*foreignPicker) Terminate() error { return errNoDrill }
func (*foreignPicker) Kill() error      { return errNoDrill }
func (*foreignPicker) Freeze() error    { return errNoDrill }
func (*foreignPicker) Thaw() error      { return errNoDrill }
func (*foreignPicker) Start() error     { return errNoDrill }

func (d *drill) startLocal(context.Context, *drillFlags) (func(), error) {
	return func() {}, failf("", "%v", errNoDrill)
}
