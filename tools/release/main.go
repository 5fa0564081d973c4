// SPDX-License-Identifier: Apache-2.0

// Command release builds what a release of Penstock consists of: static binaries,
// manual pages, completions, deb and rpm packages, an OCI image, a list of components
// and checksums. The same commit and the same Go give the same bytes, wherever and
// whenever it runs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	top := flag.String("top", ".", "root folder of the source")
	out := flag.String("out", "build/release", "folder of the results; it is emptied first")
	arch := flag.String("arch", "amd64,arm64", "architectures, comma-separated")
	flag.Parse()
	if err := run(*top, *out, strings.Split(*arch, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one release on its way: what all its parts have in common.
type release struct {
	top, out string
	version  string    // as the binaries say it
	revision string    // of the source; "" where it has no history
	epoch    time.Time // time of everything that carries one
}

// run builds everything into out.
func run(top, out string, archs []string) error {
	epoch, err := epochOf(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	r := &release{top: top, out: out, epoch: epoch}
	if r.out, err = filepath.Abs(out); err != nil {
		return err
	}
	// Only what is known to be a former result is removed.
	if entries, err := os.ReadDir(r.out); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(r.out, sumsName)); err != nil {
			return fmt.Errorf("%s is not empty and has no %s of a former release; remove it or name another folder", r.out, sumsName)
		}
		if err := os.RemoveAll(r.out); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	// An unfinished release can be recognised and removed by the next run.
	if err := os.WriteFile(filepath.Join(r.out, sumsName), nil, 0o644); err != nil {
		return err
	}
	var bins []binary
	for _, a := range archs {
		b, err := r.build(a)
		if err != nil {
			return err
		}
		bins = append(bins, b)
	}
	r.version, r.revision = bins[0].version(), bins[0].revision()
	for _, step := range []func([]binary) error{r.pages, r.packages, r.image, r.components, r.sums} {
		if err := step(bins); err != nil {
			return err
		}
	}
	fmt.Printf("penstock %s for %s in %s\n", r.version, strings.Join(archs, ", "), out)
	return nil
}

// epochOf reads SOURCE_DATE_EPOCH: seconds since 1970.
func epochOf(s string) (time.Time, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, errors.New("SOURCE_DATE_EPOCH must be the time of the commit in seconds; scripts/release.sh sets it")
	}
	return time.Unix(n, 0).UTC(), nil
}
