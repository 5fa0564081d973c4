// SPDX-License-Identifier: Apache-2.0

// Command penstock is an AI gateway, inference router and autoscaler for fleets
// of self-hosted model servers. Everything it does lives in internal/cli.
package main

import (
	"os"

	"github.com/penstock-project/penstock/internal/cli"
)

func main() {
	os.Exit(cli.Main(cli.OS()))
}
