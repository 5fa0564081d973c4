// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"mime"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Limits of a multipart body beside Limits.MaxParts.
const (
	maxBoundary  = 70 // RFC 2046, section 5.1.1
	maxPartHead  = 4 << 10
	maxFormValue = 64 << 10 // of a field that is read
)

// ScanForm reads a multipart/form-data body, the way an upload of sound comes, and
// fills s like ScanRequest. It is as strict: what two parsers could read differently
// is refused. The error is a *BadRequest.
func ScanForm(s *Scan, surface fleet.Surface, contentType string, body []byte, lim Limits) error {
	s.reset(surface)
	s.Form = true
	lim = lim.WithDefaults()
	mark, bad := boundaryOf(contentType)
	if bad != nil {
		return bad
	}
	f := form{s: s, b: body, mark: mark}
	for n := 0; ; n++ {
		more := f.next(n == 0)
		switch {
		case f.bad != nil:
			return f.bad
		case !more:
			if s.Media == 0 {
				return &BadRequest{Param: "file", Message: "file is missing", Code: CodeMissing}
			}
			return nil
		case n >= lim.MaxParts:
			return &BadRequest{Message: "the body must have at most " + strconv.Itoa(lim.MaxParts) + " parts", Offset: f.i, Code: CodeInvalidValue}
		}
		if f.part(); f.bad != nil {
			return f.bad
		}
	}
}

// boundaryOf returns what stands before each part.
func boundaryOf(contentType string) ([]byte, *BadRequest) {
	kind, params, err := mime.ParseMediaType(contentType)
	b := params["boundary"]
	switch {
	case err != nil || kind != "multipart/form-data":
		return nil, &BadRequest{Message: "the body must be multipart/form-data", Code: CodeInvalidType}
	case b == "" || len(b) > maxBoundary || b[len(b)-1] == ' ':
		return nil, &BadRequest{Message: "the boundary of the body must have 1 to 70 characters", Code: CodeInvalidValue}
	}
	for i := 0; i < len(b); i++ {
		if c := b[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("'()+_,-./:=? ", c) >= 0) {
			return nil, &BadRequest{Message: "the boundary of the body has a character that none may have", Code: CodeInvalidValue}
		}
	}
	return []byte("\r\n--" + b), nil
}

// form walks over the parts of a body.
type form struct {
	s    *Scan
	b    []byte
	mark []byte // CR, LF, two hyphens, the boundary
	i    int
	seen [4]bool
	bad  *BadRequest
}

func (f *form) fail(msg string) {
	if f.bad == nil {
		f.bad = &BadRequest{Message: "the body is no valid form: " + msg, Offset: f.i, Code: CodeInvalidValue}
	}
}

// next steps over a boundary and reports whether a part follows. Nothing may stand
// before the first one.
func (f *form) next(first bool) bool {
	mark := f.mark
	if first {
		mark = mark[2:]
	}
	if !bytes.HasPrefix(f.b[f.i:], mark) {
		f.fail("a boundary is missing")
		return false
	}
	f.i += len(mark)
	rest := f.b[f.i:]
	switch {
	case bytes.HasPrefix(rest, []byte("\r\n")):
		f.i += 2
		return true
	case string(rest) == "--" || string(rest) == "--\r\n":
		return false
	}
	f.fail("it goes on after a boundary")
	return false
}

// part reads the head of a part and its content.
func (f *form) part() {
	// The next boundary first: a head that does not end must not reach into another.
	end := bytes.Index(f.b[f.i:], f.mark)
	if end < 0 {
		f.fail("a part does not end")
		return
	}
	end += f.i
	n := bytes.Index(f.b[f.i:end], []byte("\r\n\r\n"))
	if n < 0 || n > maxPartHead {
		f.fail("the head of a part does not end")
		return
	}
	name, file := f.head(string(f.b[f.i : f.i+n]))
	content := Span{f.i + n + 4, end}
	f.i = end
	if f.bad == nil {
		f.take(name, file, content)
	}
}

// head returns the name of a part and whether it is a file.
func (f *form) head(text string) (name string, file bool) {
	found := false
	for _, line := range strings.Split(text, "\r\n") {
		key, value, ok := strings.Cut(line, ":")
		switch {
		case !ok || key == "" || strings.ContainsAny(line, "\r\n\x00") || key[0] == ' ' || key[0] == '\t':
			f.fail("the head of a part is broken")
			return "", false
		case strings.EqualFold(key, "Content-Transfer-Encoding"):
			f.fail("a part has a transfer encoding")
			return "", false
		case !strings.EqualFold(key, "Content-Disposition"):
			continue
		case found || strings.Contains(value, "name*"):
			f.fail("a part has two names")
			return "", false
		}
		found = true
		kind, params, err := mime.ParseMediaType(value)
		if err != nil || kind != "form-data" || params["name"] == "" {
			f.fail("a part has no name")
			return "", false
		}
		_, file = params["filename"]
		name = params["name"]
	}
	if !found {
		f.fail("a part has no name")
	}
	return name, file
}

// Fields of a form that are read.
var formFields = [...]string{"model", "stream", "file", "user"}

func (f *form) take(name string, file bool, at Span) {
	id := -1
	for i, known := range formFields {
		if strings.EqualFold(name, known) {
			id = i
			if name != known {
				f.bad = &BadRequest{Param: known, Message: known + " is given in another case; it must have one meaning", Offset: at.Start, Code: CodeInvalidValue}
				return
			}
		}
	}
	if id < 0 {
		if at.Len() <= maxFormValue && !file {
			f.s.TextBytes += at.Len()
		}
		return
	}
	if f.seen[id] {
		f.bad = &BadRequest{Param: name, Message: name + " is given twice; it must have one meaning", Offset: at.Start, Code: CodeInvalidValue}
		return
	}
	f.seen[id] = true
	value := f.b[at.Start:at.End]
	if name == "file" {
		f.s.Media++
		return
	}
	if file || len(value) > maxFormValue {
		f.bad = &BadRequest{Param: name, Message: name + " must be text", Offset: at.Start, Code: CodeInvalidType}
		return
	}
	switch name {
	case "model":
		f.s.Model, f.s.ModelSpan = value, at
	case "stream":
		switch string(value) {
		case "true", "True":
			f.s.Stream = true
		case "false", "False", "":
		default:
			f.bad = &BadRequest{Param: name, Message: "stream must be true or false", Offset: at.Start, Code: CodeInvalidType}
		}
	case "user":
		f.s.User = hashOf(value)
	}
}

// ModelEdit is the edit that names another model.
func (s *Scan) ModelEdit(name string) Edit {
	if s.Form {
		return Edit{s.ModelSpan, name}
	}
	return Edit{s.ModelSpan, string(AppendString(nil, name))}
}
