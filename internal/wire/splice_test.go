// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

func TestAskUsage(t *testing.T) {
	for _, c := range [][2]string{
		{`{"messages":[],"stream":true}`, `{"stream_options":{"include_usage":true},"messages":[],"stream":true}`},
		{`{"messages":[],"stream_options":null}`, `{"messages":[],"stream_options":{"include_usage":true}}`},
		{`{"messages":[],"stream_options":{}}`, `{"messages":[],"stream_options":{"include_usage":true}}`},
		{`{"messages":[],"stream_options": {"include_usage" : false , "x":1.0}}`, `{"messages":[],"stream_options": {"include_usage" : true , "x":1.0}}`},
		{`{"messages":[],"stream_options":{"continuous_usage_stats":true}}`, `{"messages":[],"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		{` { "messages":[]}`, ` {"stream_options":{"include_usage":true}, "messages":[]}`},
		{`{"messages":[],"stream_options":{"include_usage":null}}`, `{"messages":[],"stream_options":{"include_usage":true}}`},
	} {
		var s Scan
		if err := ScanRequest(&s, fleet.SurfaceChat, []byte(c[0]), Limits{}); err != nil {
			t.Fatal(err)
		}
		head, tail := Splice([]byte(c[0]), []Edit{s.AskUsage()})
		if got := string(head) + string(tail); got != c[1] {
			t.Errorf("%s became %s, want %s", c[0], got, c[1])
		}
	}
}

func TestSetSalt(t *testing.T) {
	for _, c := range [][2]string{
		{`{"messages":[]}`, `{"cache_salt":"s\"","messages":[]}`},
		{`{"messages":[],"cache_salt":"theirs"}`, `{"messages":[],"cache_salt":"s\""}`},
		{`{"cache_salt": null,"messages":[]}`, `{"cache_salt": "s\"","messages":[]}`},
	} {
		var s Scan
		if err := ScanRequest(&s, fleet.SurfaceChat, []byte(c[0]), Limits{}); err != nil {
			t.Fatal(err)
		}
		head, tail := Splice([]byte(c[0]), []Edit{s.SetSalt(`s"`)})
		if got := string(head) + string(tail); got != c[1] {
			t.Errorf("%s became %s, want %s", c[0], got, c[1])
		}
	}
}

// Whatever stream_options a client sends, what comes out is valid, asks for usage
// and keeps every other member.
func TestSplicesAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := rapid.SampledFrom([]string{"", `"stream_options":null,`, `"stream_options":{},`, `"stream_options":{"include_usage":false},`,
			`"stream_options":{"a":[1,{"include_usage":false}],"include_usage":false},`, `"stream_options":true,`}).Draw(t, "options")
		salt := rapid.SampledFrom([]string{"", `"cache_salt":"x",`, `"cache_salt":17,`}).Draw(t, "salt")
		body := "{" + opts + salt + `"model":"m","messages":[{"role":"user","content":"\"stream_options\":{} "}]}`
		var s Scan
		if err := ScanRequest(&s, fleet.SurfaceChat, []byte(body), Limits{}); err != nil {
			t.Fatal(err)
		}
		head, tail := Splice([]byte(body), []Edit{s.AskUsage(), {s.ModelSpan, `"other"`}, s.SetSalt("mine")})
		var got struct {
			Model    string
			Salt     string         `json:"cache_salt"`
			Options  map[string]any `json:"stream_options"`
			Messages []struct{ Content string }
		}
		out := append(head, tail...)
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if got.Model != "other" || got.Salt != "mine" || got.Options["include_usage"] != true || got.Messages[0].Content != `"stream_options":{} ` {
			t.Fatalf("%s", out)
		}
		if bytes.Count(out, []byte(`"cache_salt"`)) != 1 {
			t.Fatalf("%s", out)
		}
	})
}

// TestStripIsInvisible builds a stream as an engine writes it without usage, adds
// what include_usage adds, cuts it anywhere and finds the first one again.
func TestStripIsInvisible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		end := rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "line end")
		usageAt := rapid.IntRange(0, 2).Draw(t, "where usage stands")
		var plain, asked strings.Builder
		both := func(s string) { plain.WriteString(s + end + end); asked.WriteString(s + end + end) }
		for range rapid.IntRange(0, 8).Draw(t, "events") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				both(": keep-alive")
			case 1:
				both(`data: {"choices":[{"delta":{"content":"the \"usage\":null of {\"usage\":{\"prompt_tokens\":1}} ☃"}}]}`)
			case 2:
				both("event: x" + end + `data: {"prompt_filter_results":[],"choices":[]}`)
			case 3:
				both(`data: {"id":"c","choices":[{"delta":{},"finish_reason":"stop"}],"x_usage":{"usage":null}}`)
			default:
				before, after := `{"id":"c",`, `"choices":[{"delta":{"content":"x"}}]}`
				plain.WriteString("data: " + before + after + end + end)
				switch usageAt {
				case 0:
					asked.WriteString("data: " + before + `"usage":null,` + after + end + end)
				case 1:
					asked.WriteString("data: " + before + after[:len(after)-1] + `,"usage":null}` + end + end)
				default:
					asked.WriteString(`data: {"usage": null,` + before[1:] + after + end + end)
				}
			}
		}
		asked.WriteString(`data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":null}}` + end + end)
		both("data: [DONE]")
		in := []byte(asked.String())
		var s UsageStripper
		var got []byte
		for len(in) > 0 {
			n := rapid.IntRange(1, len(in)).Draw(t, "cut")
			got = append(got, s.Feed(in[:n])...)
			in = in[n:]
		}
		got = append(got, s.Rest()...)
		if string(got) != plain.String() {
			t.Fatalf("got  %q\nwant %q", got, plain.String())
		}
	})
}

func TestStripLeavesTheRest(t *testing.T) {
	for _, in := range []string{
		`data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}` + "\n\n", // merged: the engine always does
		`data: {"usage":` + "\n\n", `{"error":{"message":"usage \"usage\""}}`, "data: \"usage\"\n\n", "data: [\"usage\"]\n\n",
		"data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("y", 2*maxEvent) + "\"}}],\"usage\":null}\n\ndata: [DONE]\n\n",
	} {
		var s UsageStripper
		got := string(s.Feed([]byte(in)))
		if got += string(s.Rest()); got != in {
			t.Errorf("%.80q became %.80q", in, got)
		}
	}
}

func FuzzUsageStripper(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n"), 7)
	f.Add([]byte("data: {\"usage\":null}\r\n\r\n\r\r\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		var one, two UsageStripper
		a := append([]byte(nil), one.Feed(in)...)
		a = append(a, one.Rest()...)
		cut = max(1, cut%64)
		var b []byte
		for rest := in; len(rest) > 0; {
			n := min(cut, len(rest))
			b = append(b, two.Feed(rest[:n])...)
			rest = rest[n:]
		}
		b = append(b, two.Rest()...)
		if !bytes.Equal(a, b) {
			t.Fatalf("cuts matter: %q, %q", a, b)
		}
		if !bytes.Contains(in, usageName) && !bytes.Equal(a, in) {
			t.Fatalf("%q became %q", in, a)
		}
	})
}
