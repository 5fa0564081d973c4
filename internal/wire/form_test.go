// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

const formType = "multipart/form-data; boundary=b"

// formBody is a form of parts that are given as head and content.
func formBody(parts ...string) string {
	var b strings.Builder
	for i := 0; i < len(parts); i += 2 {
		b.WriteString("--b\r\nContent-Disposition: form-data; " + parts[i] + "\r\n\r\n" + parts[i+1] + "\r\n")
	}
	return b.String() + "--b--\r\n"
}

const soundPart = `name="file"; filename="a.wav"`

func TestScanForm(t *testing.T) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	w.WriteField("model", "whisper")
	w.WriteField("stream", "true")
	w.WriteField("prompt", "names: Ada")
	f, _ := w.CreateFormFile("file", "a.wav")
	f.Write(bytes.Repeat([]byte{0, 1, 2, '\r', '\n', '-'}, 1000))
	w.Close()
	var s Scan
	if err := ScanForm(&s, fleet.SurfaceTranscriptions, w.FormDataContentType(), b.Bytes(), Limits{}); err != nil {
		t.Fatal(err)
	}
	if string(s.Model) != "whisper" || !s.Stream || s.Media != 1 || s.TextBytes != len("names: Ada") {
		t.Errorf("%+v", s)
	}
	head, tail := Splice(b.Bytes(), []Edit{s.ModelEdit("another-name")})
	var again Scan
	if err := ScanForm(&again, fleet.SurfaceTranscriptions, w.FormDataContentType(), append(head, tail...), Limits{}); err != nil || string(again.Model) != "another-name" {
		t.Errorf("%q %v", again.Model, err)
	}
}

func TestScanFormRefuses(t *testing.T) {
	good := formBody(`name="model"`, "m", soundPart, "x")
	for _, c := range []struct{ name, kind, body, param string }{
		{"no boundary", "multipart/form-data", good, ""},
		{"another type", "multipart/mixed; boundary=b", good, ""},
		{"a long boundary", "multipart/form-data; boundary=" + strings.Repeat("b", 71), good, ""},
		{"an odd boundary", "multipart/form-data; boundary=\"b;\\\"\"", good, ""},
		{"a preamble", formType, "x\r\n" + good, ""},
		{"an epilogue", formType, good + "x", ""},
		{"no end", formType, strings.TrimSuffix(good, "--b--\r\n"), ""},
		{"two models", formType, formBody(`name="model"`, "m", `name="model"`, "n", soundPart, "x"), "model"},
		{"another case", formType, formBody(`name="Model"`, "m", soundPart, "x"), "model"},
		{"two names", formType, formBody(`name="x"; name*=utf-8''model`, "m", soundPart, "x"), ""},
		{"two dispositions", formType, "--b\r\nContent-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n", ""},
		{"a transfer encoding", formType, "--b\r\nContent-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64\r\n\r\nbQ==\r\n--b--\r\n", ""},
		{"a folded head", formType, "--b\r\nContent-Disposition: form-data;\r\n name=\"model\"\r\n\r\nm\r\n--b--\r\n", ""},
		{"a quoted stream", formType, formBody(`name="stream"`, "yes", soundPart, "x"), "stream"},
		{"no file", formType, formBody(`name="model"`, "m"), "file"},
		{"a file as model", formType, formBody(`name="model"; filename="x"`, "m", soundPart, "x"), "model"},
		{"many parts", formType, formBody(append(strings.Split(strings.Repeat(`name="x",y,`, 70), ",")[:140], soundPart, "x")...), ""},
		{"a long head", formType, formBody(`name="`+strings.Repeat("x", 5000)+`"`, "m", soundPart, "x"), ""},
	} {
		var s Scan
		var bad *BadRequest
		if err := ScanForm(&s, fleet.SurfaceTranscriptions, c.kind, []byte(c.body), Limits{}); !errors.As(err, &bad) || bad.Param != c.param {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func FuzzScanForm(f *testing.F) {
	f.Add(formBody(`name="model"`, "m", soundPart, "x"))
	f.Add("--b\r\n\r\n--b--")
	f.Add("--b\r\nContent-Disposition: form-data; name=model\r\n\r\n\r\n--b--\r\n")
	f.Fuzz(func(t *testing.T, body string) {
		var s Scan
		if ScanForm(&s, fleet.SurfaceTranscriptions, formType, []byte(body), Limits{}) != nil {
			return
		}
		// Whatever we accept, the standard library reads the same model in.
		r := multipart.NewReader(strings.NewReader(body), "b")
		form, err := r.ReadForm(1 << 20)
		if err != nil {
			t.Fatalf("%q is no form to the standard library: %v", body, err)
		}
		if v := form.Value["model"]; len(v) > 1 || len(v) == 1 && v[0] != string(s.Model) {
			t.Fatalf("%q: model %q and %q", body, s.Model, v)
		}
	})
}
