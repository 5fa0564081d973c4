// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"crypto/sha256"
	"os"
	"time"
)

// Watch calls changed whenever the content of path differs from what it was, until
// ctx ends. It reads the file every interval instead of asking the kernel for
// events: mounted ConfigMaps are swapped through links, and network file systems
// send no events at all. A file that cannot be read counts as unchanged.
func Watch(ctx context.Context, path string, interval time.Duration, changed func()) {
	last, _ := digest(path)
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if d, ok := digest(path); ok && d != last {
			last = d
			changed()
		}
	}
}

func digest(path string) ([sha256.Size]byte, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return [sha256.Size]byte{}, false
	}
	return sha256.Sum256(b), true
}

// Digest returns a short fingerprint of the effective configuration, for logs and
// for `status`.
func (c *Config) Digest() string {
	sum := sha256.Sum256(tree(rootObject, c))
	const hex = "0123456789abcdef"
	var b [8]byte
	for i := range 4 {
		b[2*i], b[2*i+1] = hex[sum[i]>>4], hex[sum[i]&15]
	}
	return string(b[:])
}
