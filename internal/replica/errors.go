// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is a refusal in the engine's words: its type, the parameter at fault and
// the status, which the body repeats as code.
type apiError struct {
	status int
	typ    string
	param  string // "" becomes null
	msg    string
}

func (e *apiError) Error() string { return e.msg }

func badRequest(param, format string, a ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", param, fmt.Sprintf(format, a...)}
}

// invalidBody is a body that does not parse or lacks a field. The engine writes that
// type with a space and names the place as body.X.
func invalidBody(param, format string, a ...any) *apiError {
	return &apiError{http.StatusBadRequest, "Bad Request", param, fmt.Sprintf(format, a...)}
}

func notFound(param, format string, a ...any) *apiError {
	return &apiError{http.StatusNotFound, "NotFoundError", param, fmt.Sprintf(format, a...)}
}

var (
	errDraining = &apiError{http.StatusInternalServerError, "InternalServerError", "", "cannot schedule new futures after shutdown"}
	errEngine   = &apiError{http.StatusInternalServerError, "InternalServerError", "", "EngineCore encountered an issue. See stack trace (above) for the root cause."}
	errBusy     = &apiError{http.StatusServiceUnavailable, "Service Unavailable", "", "The engine is currently busy and takes no further requests, please try again later."}
)

// body is the error as OpenAI clients read it.
func (e *apiError) body() []byte {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	in := inner{Message: e.msg, Type: e.typ, Code: e.status}
	if e.param != "" {
		in.Param = &e.param
	}
	b, err := json.Marshal(struct {
		Error inner `json:"error"`
	}{in})
	if err != nil {
		return []byte(`{"error":{"message":"unprintable","type":"InternalServerError","param":null,"code":500}}`)
	}
	return b
}

// anthropicBody is the error as Anthropic clients read it. The engine names its own
// types there, too.
func (e *apiError) anthropicBody() []byte {
	type inner struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	b, err := json.Marshal(struct {
		Type  string `json:"type"`
		Error inner  `json:"error"`
	}{"error", inner{e.typ, e.msg}})
	if err != nil {
		return []byte(`{"type":"error","error":{"type":"InternalServerError","message":"unprintable"}}`)
	}
	return b
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// writeValue writes v as a JSON answer with status 200.
func writeValue(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, errEngine.body())
		return
	}
	writeJSON(w, http.StatusOK, b)
}
