// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"
)

// adapterSet is the LoRA adapters that the server has loaded. It has its own lock,
// since every request asks it.
type adapterSet struct {
	mu     sync.RWMutex
	loaded []adapter
	errors map[string]apiError // made to fail through the control API
}

type adapter struct {
	name, path string
	created    int64
}

func (a *adapterSet) reset(names []string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.loaded = nil
	for _, n := range names {
		name, path, ok := strings.Cut(n, "=")
		if !ok {
			path = "/adapters/" + name
		}
		a.loaded = append(a.loaded, adapter{name, path, now.Unix()})
	}
}

func (a *adapterSet) has(name string) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.ContainsFunc(a.loaded, func(x adapter) bool { return x.name == name })
}

func (a *adapterSet) list() []adapter {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Clone(a.loaded)
}

// load adds an adapter; the error is what the engine would say.
func (a *adapterSet) load(name, path string, inplace bool, now time.Time) *apiError {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.errors[name]; ok {
		return &e
	}
	i := slices.IndexFunc(a.loaded, func(x adapter) bool { return x.name == name })
	switch {
	case i >= 0 && !inplace:
		return &apiError{http.StatusBadRequest, "InvalidUserInput", "", fmt.Sprintf("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", name)}
	case i >= 0:
		a.loaded[i].path = path
	default:
		a.loaded = append(a.loaded, adapter{name, path, now.Unix()})
	}
	return nil
}

func (a *adapterSet) unload(name string) *apiError {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.loaded, func(x adapter) bool { return x.name == name })
	if i < 0 {
		return notFound("", "The lora adapter '%s' cannot be found.", name)
	}
	a.loaded = slices.Delete(a.loaded, i, i+1)
	return nil
}

func (s *Server) serves(model string) bool { return slices.Contains(s.models, model) }

// modelCard is an entry of /v1/models.
type modelCard struct {
	ID          string        `json:"id"`
	Object      string        `json:"object"`
	Created     int64         `json:"created"`
	OwnedBy     string        `json:"owned_by"`
	Root        string        `json:"root"`
	Parent      *string       `json:"parent"`
	MaxModelLen *int          `json:"max_model_len"`
	Permission  [1]permission `json:"permission"`
}

// permission is what the engine says of everybody's rights; it enforces none of it.
type permission struct {
	ID       string  `json:"id"`
	Object   string  `json:"object"`
	Created  int64   `json:"created"`
	Create   bool    `json:"allow_create_engine"`
	Sampling bool    `json:"allow_sampling"`
	Logprobs bool    `json:"allow_logprobs"`
	Search   bool    `json:"allow_search_indices"`
	View     bool    `json:"allow_view"`
	Tune     bool    `json:"allow_fine_tuning"`
	Org      string  `json:"organization"`
	Group    *string `json:"group"`
	Blocking bool    `json:"is_blocking"`
}

func permissionOf(name string, created int64) [1]permission {
	return [1]permission{{ID: fmt.Sprintf("modelperm-%016x", xxh3.HashString(name)), Object: "model_permission", Created: created,
		Sampling: true, Logprobs: true, View: true, Org: "*"}}
}

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	created := s.born.Unix()
	s.mu.Unlock()
	cards := []modelCard{}
	for _, m := range s.models {
		cards = append(cards, modelCard{m, "model", created, "vllm", s.profile.Model, nil, &s.profile.MaxModelLen, permissionOf(m, created)})
	}
	for _, a := range s.adapters.list() {
		cards = append(cards, modelCard{a.name, "model", a.created, "vllm", a.path, &s.models[0], nil, permissionOf(a.name, a.created)})
	}
	writeValue(w, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", cards})
}

type loraRequest struct {
	Name    string         `json:"lora_name"`
	Path    string         `json:"lora_path"`
	IntID   jsontext.Value `json:"lora_int_id"`
	Inplace bool           `json:"load_inplace"`
}

func (s *Server) loadLoRA(w http.ResponseWriter, r *http.Request) {
	var req loraRequest
	err := readBody(r, &req)
	switch {
	case err != nil:
	case s.profile.LoRASlots == 0:
		err = badRequest("", "LoRA is not enabled on this engine.")
	case req.Name == "" || req.Path == "":
		err = &apiError{http.StatusBadRequest, "InvalidUserInput", "", "Both 'lora_name' and 'lora_path' must be provided."}
	default:
		if err = s.gate(); err == nil {
			time.Sleep(min(time.Duration(s.profile.LoRALoad/s.opt.Speed*1e9), 10*time.Second))
			err = s.adapters.load(req.Name, req.Path, req.Inplace, time.Now())
		}
	}
	if err != nil {
		writeJSON(w, err.status, err.body())
		return
	}
	writeText(w, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", req.Name))
}

func (s *Server) unloadLoRA(w http.ResponseWriter, r *http.Request) {
	var req loraRequest
	err := readBody(r, &req)
	switch {
	case err != nil:
	case req.Name == "":
		err = &apiError{http.StatusBadRequest, "InvalidUserInput", "", "'lora_name' needs to be provided to unload a LoRA adapter."}
	default:
		err = s.adapters.unload(req.Name)
	}
	if err != nil {
		writeJSON(w, err.status, err.body())
		return
	}
	writeText(w, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", req.Name))
}

// writeText answers with a text that the engine gives no type.
func writeText(w http.ResponseWriter, text string) {
	w.Header()["Content-Type"] = nil
	_, _ = w.Write([]byte(text)) // the client may be gone
}

type tokenizeRequest struct {
	Model      string         `json:"model"`
	Prompt     *string        `json:"prompt"`
	Special    *bool          `json:"add_special_tokens"`
	Messages   []message      `json:"messages"`
	Tools      jsontext.Value `json:"tools"`
	Generation *bool          `json:"add_generation_prompt"`
	WithText   bool           `json:"return_token_strs"`
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req tokenizeRequest
	err := readBody(r, &req)
	var tokens []uint32
	switch {
	case err != nil:
	case req.Model != "" && !s.serves(req.Model) && !s.adapters.has(req.Model):
		err = notFound("model", "The model `%s` does not exist.", req.Model)
	case req.Prompt != nil:
		if req.Special == nil || *req.Special {
			tokens = append(tokens, tokBegin)
		}
		tokens = appendTokens(tokens, *req.Prompt)
	case req.Messages != nil:
		tokens, err = renderChat(req.Messages, req.Tools, req.Generation == nil || *req.Generation)
	default:
		err = invalidBody("body.prompt", "Field required at body.prompt")
	}
	if err != nil {
		writeJSON(w, err.status, err.body())
		return
	}
	out := struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []uint32 `json:"tokens"`
		Text        []string `json:"token_strs"`
	}{Count: len(tokens), MaxModelLen: s.profile.MaxModelLen, Tokens: tokens}
	if out.Tokens == nil {
		out.Tokens = []uint32{}
	}
	if req.WithText {
		for _, t := range tokens {
			out.Text = append(out.Text, string(appendText(nil, t)))
		}
	}
	writeValue(w, out)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Tokens *[]uint32 `json:"tokens"`
	}
	err := readBody(r, &req)
	if err == nil && req.Tokens == nil {
		err = invalidBody("body.tokens", "Field required at body.tokens")
	}
	if err != nil {
		writeJSON(w, err.status, err.body())
		return
	}
	var text []byte
	for _, t := range *req.Tokens {
		if t != tokBegin {
			text = appendText(text, t)
		}
	}
	writeValue(w, map[string]string{"prompt": string(text)})
}
