// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// components writes a CycloneDX list of what is in each binary: the modules that the
// linker noted in it, the standard library, and the packages of the console's pages.
func (r *release) components(bins []binary) error {
	for _, b := range bins {
		bom, err := r.bom(b)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(r.out, "penstock-linux-"+b.arch+".cdx.json"))
		if err != nil {
			return err
		}
		err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
		if err != nil {
			f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// bom lists one binary.
func (r *release) bom(b binary) (*cdx.BOM, error) {
	data, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	main := goModule(b.info.Main.Path, b.version(), "")
	main.Type = cdx.ComponentTypeApplication
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	list := []cdx.Component{goModule("std", strings.TrimPrefix(b.info.GoVersion, "go"), "")}
	for _, d := range b.info.Deps {
		list = append(list, goModule(replaced(d)))
	}
	web, err := r.consolePackages()
	if err != nil {
		return nil, err
	}
	list = append(list, web...)
	bom := cdx.NewBOM()
	// The same binary has the same number (RFC 9562, version 8: of one's own making).
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
	bom.Metadata = &cdx.Metadata{Timestamp: r.epoch.Format(time.RFC3339), Component: &main}
	bom.Components = &list
	return bom, nil
}

// replaced returns the module that was compiled in place of d.
func replaced(d *debug.Module) (path, version, sum string) {
	if d.Replace != nil {
		d = d.Replace
	}
	return d.Path, d.Version, d.Sum
}

// goModule describes a Go module. Its h1 sum is one of a list of files and not of a
// file, hence a property and not a hash.
func goModule(path, version, sum string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: sum}}
	}
	return c
}

// consolePackages lists the npm packages whose code is in the pages of the console,
// none where the pages were not built.
func (r *release) consolePackages() ([]cdx.Component, error) {
	if _, err := os.Stat(filepath.Join(r.top, "internal", "console", "ui", "dist", "index.html")); err != nil {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(r.top, "web", "package-lock.json"))
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]struct {
			Version string `json:"version"`
			License string `json:"license"`
			Dev     bool   `json:"dev"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(data, &lock); err != nil {
		return nil, err
	}
	var list []cdx.Component
	for path, p := range lock.Packages {
		name, ok := strings.CutPrefix(path, "node_modules/")
		if !ok || p.Dev {
			continue
		}
		purl := "pkg:npm/" + strings.ReplaceAll(name, "@", "%40") + "@" + p.Version
		c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name, Version: p.Version, PackageURL: purl}
		if p.License != "" {
			c.Licenses = &cdx.Licenses{{Expression: p.License}}
		}
		list = append(list, c)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].BOMRef < list[j].BOMRef })
	return list, nil
}
