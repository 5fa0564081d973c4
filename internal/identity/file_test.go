// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"strings"
	"testing"
)

// A directory stands for all that is no file; a pipe would make the start wait.
func TestReadFileTakesFilesOnly(t *testing.T) {
	if _, err := ReadFile(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is no regular file") {
		t.Error(err)
	}
}
