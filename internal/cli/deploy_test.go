// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/config"
)

// TestManifestsHoldConfigurations: what the chart writes into its ConfigMap is a
// configuration that `penstock serve` takes.
func TestManifestsHoldConfigurations(t *testing.T) {
	files, err := filepath.Glob("../../deploy/manifests/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var o struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Data     map[string]string
			}
			if err := dec.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if o.Kind != "ConfigMap" {
				continue
			}
			found++
			c, err := config.Parse(file, []byte(o.Data["penstock.yaml"]), configOptions())
			if err == nil {
				err = checkServable(c)
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		if found != 1 {
			t.Errorf("%s: %d ConfigMaps, want 1", file, found)
		}
	}
}
