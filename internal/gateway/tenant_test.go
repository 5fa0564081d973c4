// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/wire"
)

// byKey takes the tenant and the user from a test's own header value.
type byKey map[string]entry.Identity

func (b byKey) Authenticate(r *http.Request) (entry.Identity, *wire.Error) {
	return b[r.Header.Get("X-Api-Key")], nil
}

func TestCacheSalt(t *testing.T) {
	var mu sync.Mutex
	var last string
	u := scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		var b struct {
			Salt string `json:"cache_salt"`
		}
		json.Unmarshal(body, &b)
		mu.Lock()
		last = b.Salt
		mu.Unlock()
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	who := byKey{}
	for _, n := range []string{"shared", "tenant", "user"} {
		who[n+"-1"] = entry.Identity{Tenant: n, Key: "k1", Scopes: &identity.Scopes{}}
		who[n+"-2"] = entry.Identity{Tenant: n, Key: "k2", Scopes: &identity.Scopes{}}
	}
	who["ann"] = entry.Identity{Tenant: "user", Key: "jwt:ann", User: "ann"}
	who["bob"] = entry.Identity{Tenant: "user", Key: "jwt:bob", User: "bob"}
	f := newFixture(t, setup{options: Options{Auth: who}}, u.url)
	f.h.SetTenants(map[string]entry.TenantPolicy{"tenant": {CacheSalt: "tenant"}, "user": {CacheSalt: "user"}})
	salt := func(key, more string) string {
		t.Helper()
		if res, b := f.chat(strings.TrimSuffix(chatBody, "}")+more+"}", "X-Api-Key", key); res.StatusCode != 200 {
			t.Fatal(res.StatusCode, b)
		}
		mu.Lock()
		defer mu.Unlock()
		return last
	}
	if s := salt("shared-1", ""); s != "" {
		t.Errorf("shared got %q", s)
	}
	if s := salt("shared-1", `,"cache_salt":"mine"`); s != "mine" {
		t.Errorf("shared got %q", s)
	}
	one := salt("tenant-1", "")
	if one == "" || one != salt("tenant-2", "") || one != salt("tenant-1", `,"user":"x"`) {
		t.Error("a tenant shares with itself")
	}
	// A client cannot choose another tenant's salt.
	if s := salt("user-1", `,"cache_salt":"`+one+`"`); s == one {
		t.Error("a client chose its salt")
	}
	if one == salt("tenant-1", `,"cache_salt":"x"`) {
		t.Error("a client may part its own requests")
	}
	seen := map[string]string{}
	for _, c := range [][2]string{{"user-1", `,"user":"a"`}, {"user-1", `,"user":"b"`}, {"user-2", `,"user":"a"`}, {"ann", ""}, {"bob", ""}, {"tenant-1", ""}} {
		s := salt(c[0], c[1])
		if old, ok := seen[s]; ok {
			t.Errorf("%v shares with %s", c, old)
		}
		seen[s] = c[0] + c[1]
	}
	if salt("ann", `,"user":"bob"`) != salt("ann", "") {
		t.Error("a body changed who a token is for")
	}
}

func TestModelsOfTenants(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	who := byKey{"a": {Tenant: "a"}, "b": {Tenant: "b"}}
	f := newFixture(t, setup{options: Options{Auth: who}, models: []Model{{Name: "m", Aliases: []string{"alias"}, Adapters: []string{"lora"}, Tenants: []string{"a"}}}}, u.url)
	for _, name := range []string{"m", "alias", "lora"} {
		body := strings.Replace(chatBody, `"m"`, `"`+name+`"`, 1)
		if res, _ := f.chat(body, "X-Api-Key", "a"); res.StatusCode != 200 {
			t.Errorf("a, %s: %d", name, res.StatusCode)
		}
		if res, _ := f.chat(body, "X-Api-Key", "b"); res.StatusCode != 404 {
			t.Errorf("b, %s: %d", name, res.StatusCode)
		}
	}
}

// A tenant with a full queue is refused at once; another one is not.
func TestQueueCap(t *testing.T) {
	who := byKey{"a": {Tenant: "a"}, "b": {Tenant: "b"}}
	f := newFixture(t, setup{options: Options{Auth: who}, dispatch: dispatch.Options{HoldFor: time.Minute}})
	f.h.SetTenants(map[string]entry.TenantPolicy{"a": {QueueCap: 2}, "b": {QueueCap: 2}})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, key := range []string{"a", "a", "b"} {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(chatBody))
			req.Header.Set("X-Api-Key", key)
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		})
	}
	f.waitFor("three waiting requests", func() bool { return f.flow.Stats().Totals.Held == 3 })
	res, _ := f.chat(chatBody, "X-Api-Key", "a")
	if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
		t.Errorf("the third of a got %d", res.StatusCode)
	}
	cancel()
	wg.Wait()
	f.settled()
	f.observe(fleet.PhaseReady, says(t, jsonAnswer(200, okBody)).url)
	if res, _ := f.chat(chatBody, "X-Api-Key", "a"); res.StatusCode != 200 {
		t.Errorf("after the queue emptied: %d", res.StatusCode)
	}
}
