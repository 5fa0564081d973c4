// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/manifest"
)

func TestValidateAFix(t *testing.T) {
	said := func(list ...kube.Trial) []kube.Trial { return list }
	for _, c := range []struct {
		name          string
		before, after []kube.Trial
		err           error
		want, stderr  string
	}{
		{"accepted", nil, said(kube.Trial{Object: "HPA a/h"}), nil, "", "would take it (dry run): HPA a/h"},
		{"refused", nil, said(kube.Trial{Object: "HPA a/h", Refused: "spec: bad"}), nil, "would refuse the fix: f.yaml: HPA a/h: spec: bad", ""},
		{"refused before", said(kube.Trial{Object: "HPA a/h", Refused: "spec: bad"}), said(kube.Trial{Object: "HPA a/h", Refused: "spec: bad"}), nil, "", "with and without the fix"},
		{"refused for another reason", said(kube.Trial{Object: "HPA a/h", Refused: "old"}), said(kube.Trial{Object: "HPA a/h", Refused: "new"}), nil, "HPA a/h: new", ""},
		{"unknown kind", nil, said(kube.Trial{Object: "X y", Unknown: "no X"}), nil, "", "X y is not validated: no X"},
		{"away", nil, nil, errors.New("refused to connect"), "refused to connect", ""},
	} {
		var out bytes.Buffer
		l := &linter{env: &Env{Stderr: &out}, inputs: []manifest.Input{{Name: "f.yaml", Data: []byte("after")}, {Name: "same.yaml", Data: []byte("same")}}}
		err := l.judge(context.Background(), func(_ context.Context, text []byte) ([]kube.Trial, error) {
			switch string(text) {
			case "after":
				return c.after, c.err
			case "before":
				return c.before, nil
			}
			t.Errorf("%s: asked about %q", c.name, text)
			return nil, nil
		}, []string{"before", "same"})
		if got := errText(err); (c.want == "") != (err == nil) || !strings.Contains(got, c.want) || !strings.Contains(out.String(), c.stderr) {
			t.Errorf("%s: error %q, stderr %q", c.name, got, out.String())
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
