// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/engine"
)

// maxBody bounds a request body. The real server has no limit; memory has.
const maxBody = 256 << 20

// longestToken is how many characters the engine takes a token to have at most when it
// refuses a prompt by its length alone; the value is that of a small byte-level
// vocabulary.
const longestToken = 12

// call is a parsed request, whatever API it came through.
type call struct {
	model        string // as asked for; answers repeat it
	adapter      string
	salt         string
	tokens       []uint32
	maxTokens    int // after the rules of the API; at least 1
	explicit     bool
	outputTokens int
	start        int // where the answer begins in the filler
	cut          int // bytes of the answer that are sent; -1: all
	stopped      string
	reason       string // finish reason once it is whole: stop or length
	stream       bool
	usage        bool // stream_options.include_usage
	continuous   bool // stream_options.continuous_usage_stats
}

// params are the fields that the OpenAI surfaces share.
type params struct {
	Model               string         `json:"model"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	MinTokens           int            `json:"min_tokens"`
	N                   *int           `json:"n"`
	Temperature         *float64       `json:"temperature"`
	TopP                *float64       `json:"top_p"`
	Stop                jsontext.Value `json:"stop"`
	KeepStop            bool           `json:"include_stop_str_in_output"`
	IgnoreEOS           bool           `json:"ignore_eos"`
	Seed                *int64         `json:"seed"`
	CacheSalt           *string        `json:"cache_salt"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats"`
}

// message is one message of a conversation; content is a string, a list of parts or
// null.
type message struct {
	Role      string         `json:"role"`
	Content   jsontext.Value `json:"content"`
	Name      string         `json:"name"`
	ToolCalls jsontext.Value `json:"tool_calls"`
}

var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// readBody decodes the JSON body of r into v.
func readBody(r *http.Request, v any) *apiError {
	if ct, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); ct != "" && !strings.EqualFold(strings.TrimSpace(ct), "application/json") {
		return invalidBody("", "Unsupported Media Type: Only 'application/json' is allowed")
	}
	var buf bytes.Buffer
	buf.Grow(int(min(max(r.ContentLength, 0), maxBody)) + bytes.MinRead)
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, maxBody+1)); err != nil {
		return invalidBody("", "reading the body: %v", err)
	}
	data := buf.Bytes()
	if len(data) > maxBody {
		return &apiError{http.StatusRequestEntityTooLarge, "Request Entity Too Large", "", fmt.Sprintf("the body is longer than %d bytes", maxBody)}
	}
	err := json.Unmarshal(data, v, lenient)
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return invalidBody(fmt.Sprintf("body.%d", syntax.ByteOffset), "JSON decode error at byte %d: %v", syntax.ByteOffset, syntax.Err)
	case errors.As(err, &semantic):
		at := "body" + strings.ReplaceAll(string(semantic.JSONPointer), "/", ".")
		return invalidBody(at, "Input should be a valid %v at %s", semantic.GoType, at)
	default:
		return invalidBody("body", "%v", err)
	}
}

// finish turns the shared parameters and the prompt's tokens into a call that can run.
func (s *Server) finish(c *call, p *params) *apiError {
	c.model = p.Model
	switch {
	case p.Model == "":
		c.model = s.models[0]
	case !s.serves(p.Model):
		if !s.adapters.has(p.Model) {
			return notFound("model", "The model `%s` does not exist.", p.Model)
		}
		c.adapter = p.Model
	}
	if err := p.check(); err != nil {
		return err
	}
	if p.CacheSalt != nil {
		c.salt = *p.CacheSalt
	}
	if p.StreamOptions != nil && p.Stream {
		c.usage, c.continuous = p.StreamOptions.IncludeUsage, p.StreamOptions.Continuous
	}
	c.stream = p.Stream
	prompt, limit := len(c.tokens), s.profile.MaxModelLen
	if prompt*tokenBytes > longestToken*limit {
		// The engine counts characters before it makes tokens of them.
		return badRequest("input_text", "This model's maximum context length is %d tokens. However, your prompt contains more than %d characters. Please reduce the length of the input prompt.", limit, longestToken*limit)
	}
	if prompt >= limit {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens, but the request has %d input tokens. Please shorten the prompt.", limit, prompt)
	}
	most := p.MaxTokens
	if p.MaxCompletionTokens != nil {
		most = p.MaxCompletionTokens
	}
	c.maxTokens = limit - prompt
	if most != nil {
		if c.explicit = true; *most > c.maxTokens {
			return badRequest("max_tokens", "'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens and the request has %d input tokens.", *most, limit, prompt)
		}
		c.maxTokens = *most
	}
	return c.plan(s.opt.OutputMean, p)
}

// check validates the sampling parameters.
func (p *params) check() *apiError {
	switch {
	case p.N != nil && *p.N < 1:
		return badRequest("", "n must be at least 1, got %d.", *p.N)
	case p.N != nil && *p.N > 1:
		return badRequest("n", "the simulated replica answers with one choice, got n=%d.", *p.N)
	case p.Temperature != nil && *p.Temperature < 0:
		return badRequest("temperature", "temperature must be non-negative, got %v.", *p.Temperature)
	case p.TopP != nil && (*p.TopP <= 0 || *p.TopP > 1):
		return badRequest("top_p", "top_p must be in (0, 1], got %v.", *p.TopP)
	case p.MaxTokens != nil && *p.MaxTokens < 1:
		return badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *p.MaxTokens)
	case p.MaxCompletionTokens != nil && *p.MaxCompletionTokens < 1:
		return badRequest("max_completion_tokens", "max_completion_tokens must be at least 1, got %d.", *p.MaxCompletionTokens)
	case p.StreamOptions != nil && !p.Stream:
		return invalidBody("body.stream_options", "Stream options can only be defined when `stream=True`.")
	case p.CacheSalt != nil && *p.CacheSalt == "":
		return badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	return nil
}

// plan settles in advance what the answer will be: the prompt decides where in the
// filler it begins and how long the model would go on; limits and stop strings cut it.
func (c *call) plan(mean float64, p *params) *apiError {
	stops, err := parseStops(p.Stop)
	if err != nil {
		return err
	}
	seed := uint64(0)
	if p.Seed != nil {
		seed = uint64(*p.Seed)
	}
	tail := c.tokens[max(0, len(c.tokens)-64):]
	h := xxh3.HashSeed(appendBytes(nil, tail), seed+uint64(len(c.tokens)))
	c.start, c.cut = fillerStart(h), -1
	c.outputTokens, c.reason = c.maxTokens, "length"
	if !p.IgnoreEOS {
		if n := max(naturalLength(h, mean), p.MinTokens); n < c.maxTokens {
			c.outputTokens, c.reason = n, "stop"
		}
	}
	if len(stops) == 0 {
		return nil
	}
	text := string(appendFiller(nil, c.start, 0, c.outputTokens))
	first, which := -1, ""
	for _, st := range stops {
		from := max(0, min(len(text), p.MinTokens*tokenBytes)-len(st)+1)
		if i := strings.Index(text[from:], st); i >= 0 && (first < 0 || from+i+len(st) < first+len(which)) {
			first, which = from+i, st
		}
	}
	if first < 0 {
		return nil
	}
	c.reason, c.stopped, c.cut = "stop", which, first
	c.outputTokens = (first + len(which) + tokenBytes - 1) / tokenBytes
	if p.KeepStop {
		c.cut = first + len(which)
	}
	return nil
}

func parseStops(v jsontext.Value) ([]string, *apiError) {
	var one string
	var many []string
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return nil, nil
	case v.Kind() == '"':
		if json.Unmarshal(v, &one, lenient) == nil {
			many = []string{one}
		}
	default:
		if json.Unmarshal(v, &many, lenient) != nil {
			return nil, invalidBody("body.stop", "Input should be a valid string or list of strings at body.stop")
		}
	}
	for _, s := range many {
		if s == "" {
			return nil, badRequest("stop", "stop cannot contain an empty string.")
		}
	}
	return many, nil
}

func appendBytes(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		dst = append(dst, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
	}
	return dst
}

// text returns the answer's bytes of tokens [from, to), without what a stop string
// cuts off.
func (c *call) text(dst []byte, from, to int) []byte {
	n := len(dst)
	dst = appendFiller(dst, c.start, from, to)
	if c.cut >= 0 {
		if room := max(0, c.cut-from*tokenBytes); len(dst)-n > room {
			dst = dst[:n+room]
		}
	}
	return dst
}

// job makes what the engine schedules. The chain of block hashes covers the answer
// too, since it is known: the next turn of the conversation finds it cached.
func (s *Server) job(c *call) *job {
	all := c.tokens
	if c.cut < 0 {
		all = appendTokens(all, string(appendFiller(nil, c.start, 0, c.outputTokens)))
	}
	blocks := appendBlocks(make([]uint64, 0, len(all)/s.profile.BlockTokens), chainSeed(c.adapter, c.salt), all, s.profile.BlockTokens)
	j := &job{
		seq:    engine.Seq{Blocks: blocks, PromptTokens: max(1, len(c.tokens)), OutputTokens: c.outputTokens, Adapter: c.adapter},
		stream: c.stream, notify: make(chan struct{}, 1), reason: c.reason, maxTokens: c.maxTokens,
	}
	if s.opt.KVEvents != "" {
		j.tokens, j.salt = all, c.salt
	}
	return j
}
