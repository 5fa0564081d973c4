// SPDX-License-Identifier: Apache-2.0

// Package arch holds the rules that keep the house in order and the tests that
// enforce them: who may import whom and why not, what a core package may not do,
// and which marks every file and package carries.
package arch

// Row is one storey of the house. A package may import packages of lower rows
// only; within a row packages meet through interfaces that the consumer declares
// and the command line wires.
type Row struct {
	Name     string
	Packages []string
	// Core rows hold the functional core: values in, values out.
	Core bool
	// SameRow lists imports inside the row that are part of the design.
	SameRow map[string][]string
}

// Rows is the house, lowest storey first.
var Rows = []Row{
	{Name: "vocabulary", Core: true, Packages: []string{"fleet"}},
	{Name: "models", Core: true, Packages: []string{"engine", "prefix"}},
	{Name: "decisions", Core: true, Packages: []string{"admit", "route", "scale", "rollout"}},
	{Name: "pool", Core: true, Packages: []string{"dispatch", "workload"}},
	{Name: "judgement", Core: true, Packages: []string{"sim", "scalesim", "diagnose"},
		SameRow: map[string][]string{"diagnose": {"sim", "scalesim"}}},
	{Name: "formats", Packages: []string{"wholefile", "config", "wire", "journal", "manifest", "policyfile", "migrate"},
		SameRow: map[string][]string{"migrate": {"config"}}},
	// identity stands here and not in the gateway, because the admin API asks it, too.
	{Name: "live", Packages: []string{"flow", "share", "identity", "h1", "relay", "observe", "promptlog", "telemetry"}},
	{Name: "entry", Packages: []string{"entry"}},
	{Name: "servers", Packages: []string{"gateway", "extproc", "eppcheck", "kube", "metricsapi", "kedascaler", "procs", "replica", "load", "console"}},
	{Name: "command line", Packages: []string{"cli"}},
}

// Ban is an import that is forbidden although its row would allow it.
type Ban struct {
	From, To string // package names under internal, or a module path for To
	Why      string
}

// Bans are checked by path prefix, so a banned module bans all its packages.
var Bans = []Ban{
	{"gateway", "dispatch", "the gateway reaches a pool through flow only, which owns the lock"},
	{"extproc", "dispatch", "the endpoint picker reaches a pool through flow only, which owns the lock"},
	{"gateway", "engine", "what a request costs is the picker's business"},
	{"diagnose", "workload", "diagnosis judges records that exist; it never invents traffic except through sim"},
	{"relay", "prefix", "the relay copies bytes and must not know why a replica was chosen"},
	{"relay", "route", "the relay copies bytes and must not know why a replica was chosen"},
	{"wire", "route", "formats know nothing of decisions"},
	{"config", "route", "a file is read before anything is decided"},
	{"observe", "dispatch", "an observer reports; it never decides"},
	{"replica", "route", "a simulated replica must not know the router that judges it"},
	{"replica", "dispatch", "a simulated replica must not know the router that judges it"},
	{"load", "flow", "a load generator sees only what any client sees"},
	{"load", "gateway", "a load generator sees only what any client sees"},
}

// CoreImports are the only packages outside the module that a core package may
// import, besides the standard library minus CoreStdBans.
var CoreImports = map[string]string{
	"github.com/zeebo/xxh3": "the block hash",
}

// CoreStdBans are standard packages that a core package may not import, each with
// the reason.
var CoreStdBans = map[string]string{
	"os":           "a core does no I/O; the shell reads files and passes values in",
	"net":          "a core does no I/O",
	"net/http":     "a core does no I/O",
	"os/exec":      "a core starts nothing",
	"log":          "a core returns what happened instead of logging it",
	"log/slog":     "a core returns what happened instead of logging it",
	"sync":         "a core is single-threaded; the shell owns the lock",
	"sync/atomic":  "a core is single-threaded; the shell owns the lock",
	"math/rand":    "randomness comes from a seed in the arguments: use math/rand/v2 with an explicit source",
	"context":      "a core does not wait, so nothing can cancel it",
	"unsafe":       "a core must be readable",
	"encoding/gob": "records have a published schema",
}

// Unplaced tells why a package stands in no row.
var Unplaced = map[string]string{
	"arch":      "rules and their tests, imported by nobody",
	"testinput": "finds inputs for tests only",
	"doctest":   "keeps the documentation true, imported by nobody",
}
