// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// AuditSchema is the schema name of the lines of an audit log.
const AuditSchema = "penstock/audit/v1"

// AuditEntry is one change of what a server does, or an attempt at one. It never holds
// a secret.
type AuditEntry struct {
	Schema string    `json:"schema"`
	Time   time.Time `json:"time"`
	Who    string    `json:"who"`            // id of a key, subject of a token, "local", "guard", "file"
	Role   string    `json:"role,omitempty"` // that who acted in
	From   string    `json:"from,omitempty"` // address
	Action string    `json:"action"`         // such as drain, rollout.promote, config.reload, keys.reload
	Target string    `json:"target,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Status int       `json:"status,omitempty"` // HTTP status of the answer
	OK     bool      `json:"ok"`
	Error  string    `json:"error,omitempty"`
}

// auditMemory is how many entries are kept in memory.
const auditMemory = 1000

// Audit keeps the changes that were made. It is safe for concurrent use; a nil *Audit
// keeps nothing.
type Audit struct {
	log *slog.Logger

	mu   sync.Mutex
	ring []AuditEntry
	file *os.File
}

// OpenAudit appends to audit.jsonl in dir; "" keeps entries in memory only. The file
// is never deleted by us: an audit log that forgets is none.
func OpenAudit(dir string, log *slog.Logger) (*Audit, error) {
	a := &Audit{log: log}
	if dir == "" {
		return a, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "audit.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	a.file = f
	return a, nil
}

// Note keeps an entry: in memory, in the file, and as a line of the log.
func (a *Audit) Note(e AuditEntry) {
	if a == nil {
		return
	}
	e.Schema = AuditSchema
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	if a.log != nil {
		a.log.Info("audit", "who", e.Who, "role", e.Role, "from", e.From, "action", e.Action, "target", e.Target, "detail", e.Detail, "ok", e.OK, "error", e.Error)
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line) // ends the line
	enc.SetEscapeHTML(false)
	err := enc.Encode(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.ring) >= auditMemory {
		a.ring = slices.Delete(a.ring, 0, auditMemory/10)
	}
	a.ring = append(a.ring, e)
	if a.file == nil || err != nil {
		return
	}
	// One write for a line, so that a crash leaves whole lines; on disk before the
	// change is told to have been made.
	if _, err = a.file.Write(line.Bytes()); err == nil {
		err = a.file.Sync()
	}
	if err != nil && a.log != nil {
		a.log.Error("the audit log cannot be written", "error", fmt.Sprint(err))
	}
}

// Last returns the latest n entries, newest first.
func (a *Audit) Last(n int) []AuditEntry {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.Clone(a.ring[max(0, len(a.ring)-n):])
	slices.Reverse(out)
	return out
}

// Close closes the file.
func (a *Audit) Close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file != nil {
		a.file.Close()
		a.file = nil
	}
}
