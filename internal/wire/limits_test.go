// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

func check(t *testing.T, surface fleet.Surface, body string, l Limits) *BadRequest {
	t.Helper()
	var s Scan
	if err := ScanRequest(&s, surface, []byte(body), l); err != nil {
		t.Fatalf("%.80s: %v", body, err)
	}
	l = l.WithDefaults()
	return s.Check([]byte(body), &l)
}

func chatWith(members string) string { return `{"model":"m","messages":[],` + members + `}` }

func TestCeilings(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 60) + `{}` + strings.Repeat(`}}`, 60)
	tools := func(parameters string) string {
		return chatWith(`"tools":[{"type":"function","function":{"name":"f","parameters":` + parameters + `}}]`)
	}
	for _, c := range []struct {
		body, param string
		ok          bool
	}{
		{chatWith(`"max_tokens":1048576`), "", true},
		{chatWith(`"max_tokens":1048577`), "max_tokens", false},
		{chatWith(`"max_tokens":5,"max_completion_tokens":1e300`), "max_tokens", false},
		{chatWith(`"max_completion_tokens":5,"max_tokens":2000000`), "max_tokens", false},
		{chatWith(`"n":128`), "", true},
		{chatWith(`"n":129`), "n", false},
		{chatWith(`"best_of":2147483647`), "best_of", false},
		{chatWith(`"logprobs":true,"top_logprobs":20`), "", true},
		{chatWith(`"logprobs":10000`), "logprobs", false},
		{chatWith(`"top_logprobs":10000`), "logprobs", false},
		{chatWith(`"prompt_logprobs":-1`), "logprobs", false},
		{chatWith(`"prompt_logprobs":-1,"logprobs":5`), "logprobs", false},
		{tools(`{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"}}}`), "", true},
		{tools(`{"type":"object","properties":{"pattern":{"type":"string"}}}`), "", true},
		{tools(`{"pattern":"^(?!x)(a|b)\\1$"}`), "", true}, // of another dialect
		{tools(`{"pattern":"(("}`), "", false},
		{tools(`{"pattern":"(?!x)(("}`), "", false},
		{tools(`{"pattern":"*a"}`), "", false},
		{tools(`{"pattern":"[a"}`), "", false},
		{tools(`{"pattern":"a{1,100000}"}`), "", false},
		{tools(`{"p\u0061ttern":"[a"}`), "", false},
		{tools(`{"pattern":"` + strings.Repeat("a", 2000) + `"}`), "", false},
		{tools(deep), "", false},
		{chatWith(`"response_format":{"type":"json_schema","json_schema":{"schema":{"pattern":"("}}}`), "", false},
		{chatWith(`"guided_json":` + deep), "", false},
		{chatWith(`"structured_outputs":{"regex":"("}`), "", false},
		{chatWith(`"tools":[` + strings.TrimSuffix(strings.Repeat(`{},`, 513), ",") + `]`), "tools", false},
		{chatWith(`"tools":[{"x":"` + strings.Repeat("a", 1<<20) + `"}]`), "", false},
	} {
		bad := check(t, fleet.SurfaceChat, c.body, Limits{})
		if (bad == nil) != c.ok || bad != nil && bad.Param != c.param {
			t.Errorf("%.120s: %v (%+v)", c.body, bad == nil, bad)
		}
	}
	many := `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat(`"a",`, 2049), ",") + `]}`
	if bad := check(t, fleet.SurfaceCompletions, many, Limits{}); bad == nil || bad.Param != "prompt" {
		t.Errorf("%+v", bad)
	}
}

func TestMediaAddresses(t *testing.T) {
	part := func(u string) string {
		return `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + u + `"}}]}]}`
	}
	public := []string{
		"data:image/png;base64,iVBORw0KGgo=", "https://example.com/a.png", "HTTPS://EXAMPLE.com:8443/a?b=c", "http://93.184.216.34/x", "https://[2606:2800:220:1::1]/x",
	}
	inside := []string{
		"http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0x7f.0.0.1/", "http://017700000001/", "http://localhost:8000/", "http://LOCALHOST./",
		"http://169.254.169.254/latest/meta-data", "http://metadata.google.internal/", "http://10.0.0.1/", "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://[fd00::1]/",
		"http://[64:ff9b::a00:1]/", "http://100.64.0.1/", "http://vllm/", "http://vllm.ns.svc/", "http://vllm.ns.svc.cluster.local/", "file:///etc/passwd", "ftp://x.example/",
		"http://user@example.com/", "http://example.com\\\\@127.0.0.1/", "http:127.0.0.1", "http:/127.0.0.1/", "http://ⓛocalhost/", "http://1.2.3.4%00.example.com/",
		" http://127.0.0.1/", "\\thttp://127.0.0.1/", "\\nht\\ttp://127.0.0.1/", "ht\\u0074p://127.0.0.1/", "http://0/", "http://[fe80::1%25eth0]/", "gopher://x/", "javascript:1",
	}
	for _, u := range public {
		if bad := check(t, fleet.SurfaceChat, part(u), Limits{}); bad != nil {
			t.Errorf("%s: %v", u, bad)
		}
	}
	for _, u := range inside {
		if bad := check(t, fleet.SurfaceChat, part(u), Limits{}); bad == nil {
			t.Errorf("%s passed", u)
		}
	}
	for _, c := range []struct {
		policy []string
		url    string
		ok     bool
	}{
		{[]string{"data"}, "https://example.com/a", false}, {[]string{"data"}, "data:x", true}, {[]string{"any"}, "http://10.0.0.1/", true},
		{[]string{"any"}, "file:///x", false}, {[]string{"cdn.example.com"}, "https://cdn.example.com/a", true}, {[]string{"cdn.example.com"}, "https://example.com/a", false},
		{[]string{"*.example.com"}, "https://cdn.example.com/a", true}, {[]string{"*.example.com"}, "https://evilexample.com/a", false},
	} {
		if bad := check(t, fleet.SurfaceChat, part(c.url), Limits{Media: ParseMediaPolicy(c.policy)}); (bad == nil) != c.ok {
			t.Errorf("%v %s: %v", c.policy, c.url, bad)
		}
	}
	for surface, body := range map[fleet.Surface]string{
		fleet.SurfaceResponses: `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"http://10.0.0.1/x"}]}]}`,
		fleet.SurfaceMessages:  `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"http://10.0.0.1/x"}}]}]}]}`,
		fleet.SurfaceChat:      `{"model":"m","messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"http://10.0.0.1/x"}}]}]}`,
	} {
		if check(t, surface, body, Limits{}) == nil {
			t.Errorf("%s passed", body)
		}
	}
	sound := `{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"//uQxAAA","format":"mp3"}}]}]}`
	if bad := check(t, fleet.SurfaceChat, sound, Limits{}); bad != nil {
		t.Error(bad)
	}
	if check(t, fleet.SurfaceChat, part("data:"+strings.Repeat("a", 100)), Limits{MaxMediaBytes: 100}) == nil {
		t.Error("a large image passed")
	}
	if check(t, fleet.SurfaceChat, part("https://example.com/"+strings.Repeat("a", 60<<10)), Limits{}) == nil {
		t.Error("an endless address passed")
	}
	if bad := check(t, fleet.SurfaceChat, part("data:"+strings.Repeat("a", 100<<10)), Limits{}); bad != nil {
		t.Error(bad)
	}
}
