// SPDX-License-Identifier: Apache-2.0

// Package wholefile replaces a file as a whole or not at all: who reads it finds the
// old contents or the new, also after a crash in between.
package wholefile

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Write puts data in the place of the file at path, with these permissions. It writes
// a file of a name nobody can foresee in the same folder, which must exist, and renames
// it. It is safe for concurrent use: the last rename wins.
func Write(path string, data []byte, perm fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // nothing is left to remove after the rename
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Chmod(perm)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
