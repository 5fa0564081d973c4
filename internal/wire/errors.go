// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Codes of our own errors: what a client may switch on. An engine's codes pass
// unchanged and are not listed here.
const (
	CodeInvalidJSON   = "invalid_json"
	CodeInvalidType   = "invalid_type"
	CodeInvalidValue  = "invalid_value"
	CodeMissing       = "missing_required_parameter"
	CodeModelNotFound = "model_not_found"
	CodeNotFound      = "not_found"
	CodeMethod        = "method_not_allowed"
	CodeTooLarge      = "request_too_large"
	CodeEncoding      = "unsupported_content_encoding"
	CodeUnauthorized  = "invalid_api_key"
	CodeForbidden     = "permission_denied"
	CodeRateLimited   = "rate_limit_exceeded"
	CodeNoReplica     = "no_replica"
	CodeOverloaded    = "overloaded"
	CodeUnreachable   = "replica_unreachable"
	CodeBroken        = "replica_connection_lost"
	CodeBadAnswer     = "replica_bad_answer"
	CodeTimeout       = "replica_timeout"
	CodeSlowUpload    = "request_timeout"
	CodeTruncated     = "stream_truncated"
	CodeInternal      = "internal_error"
	CodeDeadline      = "deadline_exceeded"
	CodeClientClosed  = "client_closed_request"
)

// StatusClientClosed is what logs and metrics say of a client that left; it is
// never sent.
const StatusClientClosed = 499

// BadRequest is why a body was refused: always the client's fault, never with
// content of the body in it.
type BadRequest struct {
	Param   string // the member at fault; "" for the body as a whole
	Message string
	Code    string
	Offset  int // in bytes, where the scan stopped
}

func (e *BadRequest) Error() string {
	return fmt.Sprintf("%s (at byte %d)", e.Message, e.Offset)
}

// Error is an answer of our own in place of an engine's.
type Error struct {
	Status     int // HTTP status
	Code       string
	Param      string        // member of the request at fault; ""
	Message    string        // for people; no content of prompts, no addresses
	RetryAfter time.Duration // 0: no Retry-After
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// StatusCode returns the HTTP status.
func (e *Error) StatusCode() int { return e.Status }

// FromBadRequest makes the answer to a refused body.
func FromBadRequest(b *BadRequest) *Error {
	return &Error{Status: http.StatusBadRequest, Code: b.Code, Param: b.Param, Message: b.Error()}
}

// Family is a group of surfaces whose errors have one shape.
type Family uint8

// Families.
const (
	FamilyOpenAI Family = iota
	FamilyAnthropic
	FamilyResponses // OpenAI's shape for whole answers, own events in streams
)

// FamilyOf returns the family of a surface. Engines answer rerank, score and
// tokenize with OpenAI's shape of errors.
func FamilyOf(s fleet.Surface) Family {
	switch s {
	case fleet.SurfaceMessages, fleet.SurfaceCountTokens:
		return FamilyAnthropic
	case fleet.SurfaceResponses:
		return FamilyResponses
	}
	return FamilyOpenAI
}

// openAIType is the "type" that OpenAI gives to errors of a status.
func openAIType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusServiceUnavailable:
		return "service_unavailable"
	case status < 500:
		return "invalid_request_error"
	}
	return "server_error"
}

// anthropicType is the "type" that Anthropic gives to errors of a status.
func anthropicType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusNotFound:
		return "not_found_error"
	case status == http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusServiceUnavailable:
		return "overloaded_error"
	case status == http.StatusGatewayTimeout:
		return "timeout_error"
	case status < 500:
		return "invalid_request_error"
	}
	return "api_error"
}

// AppendBody appends the JSON body of e in the shape of family.
func (e *Error) AppendBody(dst []byte, family Family, requestID string) []byte {
	if family == FamilyAnthropic {
		dst = append(dst, `{"type":"error","error":{"type":`...)
		dst = AppendString(dst, anthropicType(e.Status))
		dst = append(dst, `,"message":`...)
		dst = AppendString(dst, e.Message)
		dst = append(dst, `,"code":`...)
		dst = AppendString(dst, e.Code)
		dst = append(dst, `},"request_id":`...)
		dst = AppendString(dst, requestID)
		return append(dst, '}')
	}
	dst = append(dst, `{"error":{"message":`...)
	dst = AppendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, openAIType(e.Status))
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = AppendString(dst, e.Param)
	}
	dst = append(dst, `,"code":`...)
	dst = AppendString(dst, e.Code)
	return append(dst, `}}`...)
}

// Headers of our own errors.
const (
	HeaderRequestID   = "X-Request-Id"
	HeaderErrorSource = "X-Penstock-Error-Source"
)

// Write answers with e in the shape of family. It sets the headers that tell our
// own errors from an engine's.
func (e *Error) Write(w http.ResponseWriter, family Family, requestID string) {
	h := w.Header()
	body := e.AppendBody(make([]byte, 0, 256+len(e.Message)), family, requestID)
	body = append(body, '\n')
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(HeaderErrorSource, "gateway")
	if requestID != "" {
		h.Set(HeaderRequestID, requestID)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	w.WriteHeader(e.Status)
	w.Write(body) // the client may have left; there is nobody to tell
}

// AppendEvent appends e as the last event of a stream whose status line is gone
// already. responseID is the id of the response in the Responses API, "" unknown.
func (e *Error) AppendEvent(dst []byte, family Family, requestID, responseID string) []byte {
	switch family {
	case FamilyAnthropic:
		dst = append(dst, "event: error\ndata: "...)
		dst = e.AppendBody(dst, family, requestID)
		return append(dst, "\n\n"...)
	case FamilyResponses:
		dst = append(dst, "event: response.failed\ndata: "...)
		dst = append(dst, `{"type":"response.failed","response":{"id":`...)
		dst = AppendString(dst, responseID)
		dst = append(dst, `,"object":"response","status":"failed","error":{"code":"server_error","message":`...)
		dst = AppendString(dst, e.Code+": "+e.Message)
		return append(dst, "}}}\n\n"...)
	}
	dst = append(dst, "data: "...)
	dst = e.AppendBody(dst, family, requestID)
	return append(dst, "\n\ndata: [DONE]\n\n"...)
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are no UTF-8 become the
// replacement character.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, s[from:i]...)
				dst = append(dst, `\ufffd`...)
				from = i + n
			}
			i += n
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		default:
			dst = append(dst, `\u00`...)
			dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
