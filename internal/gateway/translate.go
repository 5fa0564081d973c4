// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/wire"
)

// How a pool's engines speak the Messages API.
const (
	MessagesAuto      = ""          // natively, until one answers that it has no such path
	MessagesNative    = "native"    // always
	MessagesTranslate = "translate" // never: in chat completions
)

// headerEstimated says that a count of tokens is our estimate.
const headerEstimated = "X-Penstock-Estimated"

// translation of the Messages API to chat completions, where the engine lacks it.
type translation struct {
	on     bool
	bad    *wire.BadRequest // why the body has no counterpart
	stream wire.MessagesStream
}

// Limits of an answer that is translated as a whole.
const (
	translatedBytes = 64 << 20
	translatedTime  = 15 * time.Minute
)

func (c *call) messages() bool {
	return c.route.surface == fleet.SurfaceMessages || c.route.surface == fleet.SurfaceCountTokens
}

// translates reports whether the pool's engines are known to lack the Messages API.
func (p *poolEntry) translates() bool {
	return p.Messages == MessagesTranslate || p.Messages == MessagesAuto && p.noMessages.Load()
}

// translate turns the request that the replica gets into one of chat completions.
func (c *call) translate() {
	o := &c.out
	body := o.Body[0]
	if len(o.Body[1]) > 0 {
		body = append(bytes.Clone(body), o.Body[1]...)
	}
	var out []byte
	var err error
	if c.route.surface == fleet.SurfaceCountTokens {
		o.Target = "/tokenize"
		out, err = wire.CountToTokenize(body)
	} else {
		o.Target = "/v1/chat/completions"
		out, err = wire.MessagesToChat(body)
	}
	c.translation.on, c.translation.bad = true, nil
	if err != nil {
		c.translation.bad = &wire.BadRequest{Message: "the body cannot be put in terms of chat completions", Code: wire.CodeInvalidValue}
		errors.As(err, &c.translation.bad)
		return
	}
	o.Header["Accept-Encoding"] = []string{"identity"}
	o.Body = [3][]byte{out}
}

// mustRead reports whether an answer with this status is read as a whole before
// anything is decided.
func (c *call) mustRead(status int) bool {
	switch {
	case c.translation.on:
		return status >= 400
	case c.messages() && c.target.pool.Messages == MessagesAuto && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented):
		return true
	}
	return status == http.StatusBadRequest && (c.quota.strip || len(c.target.pool.Fallback) > 0)
}

// lacksPath reports whether an answer says that the engine has no such path, and not
// that it has no such model.
func lacksPath(k *held) bool {
	switch k.status {
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	case http.StatusNotFound:
		return !bytes.Contains(bytes.ToLower(k.body), []byte("model"))
	}
	return false
}

// inOtherWords sends a request again in the terms of chat completions, after the
// engine said that it does not know the Messages API.
func (c *call) inOtherWords(k *held) bool {
	if !c.messages() || c.translation.on || c.target.pool.Messages != MessagesAuto || !lacksPath(k) {
		return false
	}
	c.address()
	c.translate()
	c.learn = &c.target.pool.noMessages
	return c.translation.bad == nil
}

// estimated answers a count of tokens that no engine can make with our own estimate.
func (c *call) estimated() {
	body := wire.CountTokens(c.req.PromptTokens)
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h[headerEstimated] = []string{"true"}
	c.outcome.Kind = fleet.OutcomeClientError // the engine did not know the path
	c.head(http.StatusOK, "")
	c.entry.Answer(body)
	if _, err := c.w.Write(body); err != nil {
		c.left()
	}
}

// translatedError puts an engine's error into the shape of the Messages API.
func (c *call) translatedError(k *held) {
	k.body = wire.ChatErrorToMessages(k.body, k.status, c.id)
	k.header["Content-Type"] = []string{"application/json"}
	k.header["Content-Length"] = []string{strconv.Itoa(len(k.body))}
	delete(k.header, "Content-Encoding")
}

// passTranslated answers with a whole answer of chat completions, or of /tokenize, in
// the terms of the Messages API.
func (c *call) passTranslated(a *relay.Answer, endpoint string, from time.Time) {
	h := http.Header{}
	a.CopyHeader(h)
	raw, err := a.ReadAll(translatedBytes, translatedTime)
	if c.ctx.Err() != nil {
		c.left()
	}
	c.over = time.Now()
	c.upstream += c.over.Sub(from)
	c.follow, c.phase = true, phaseAnswer
	c.answer.Reset(false, "")
	c.answer.Feed(raw)
	c.quota.bytes += int64(len(raw)) // for an engine that tells no usage
	c.status = a.Status
	c.judge(relay.EndComplete)
	var out []byte
	ok := err == nil
	if ok && c.route.surface == fleet.SurfaceCountTokens {
		out, ok = wire.TokenizeToCount(raw)
	} else if ok {
		out, ok = wire.ChatToMessages(raw, c.target.Name, c.id)
	}
	if !ok {
		c.outcome.Kind = fleet.OutcomeBroken
		c.refuse(&wire.Error{Status: http.StatusBadGateway, Code: wire.CodeBadAnswer, Message: "the replica's answer is not what it should be"})
		return
	}
	to := c.w.Header()
	for name, v := range h {
		to[name] = v
	}
	to["Content-Length"] = []string{strconv.Itoa(len(out))}
	c.head(a.Status, endpoint)
	c.entry.Answer(out)
	http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(refuseTime))
	if _, err := c.w.Write(out); err != nil {
		c.left()
	}
}
