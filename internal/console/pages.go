// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// The pages are built from web/ into ui/dist, which is not committed. Without it
// the fallback says what is missing.
//
//go:embed all:ui
var ui embed.FS

const (
	distDir      = "ui/dist"
	fallbackPage = "ui/fallback.html"
	whatifPage   = distDir + "/whatif.html"
)

// pagePaths are the addresses of the console; one document serves them all.
var pagePaths = []string{
	"/{$}", "/decisions", "/decisions/{id}", "/scale", "/scale/{pool}", "/incident", "/whatif", "/tenants", "/models", "/rollout",
}

// contentPolicy lets a page load what this listener serves, and nothing else. There
// is no inline script and no inline style sheet.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// WhatIfPage returns the what-if page as one file that works offline, false where
// this program was built without the console.
func WhatIfPage() ([]byte, bool) {
	b, err := ui.ReadFile(whatifPage)
	return b, err == nil
}

// Built reports whether this program holds the console.
func Built() bool {
	_, err := fs.Stat(ui, distDir+"/index.html")
	return err == nil
}

// partsOf names the optional parts of the API that are registered, so that a page
// asks for nothing that is not there.
func partsOf(mux *http.ServeMux) []string {
	out := []string{}
	for _, name := range []string{"scale", "tenants", "rollout", "peers"} {
		r, err := http.NewRequest(http.MethodGet, "/api/v1/"+name, nil)
		if err != nil {
			continue
		}
		if _, pattern := mux.Handler(r); pattern != "" && pattern != "/" {
			out = append(out, name)
		}
	}
	return out
}

// styleSheet is the address of the style sheet, "" where there is none.
func styleSheet() string {
	if l, err := fs.Glob(ui, distDir+"/assets/*.css"); err == nil && len(l) > 0 {
		return "/assets/" + path.Base(l[0])
	}
	return ""
}

// pages registers the documents and their assets.
func (s *Server) pages(mux *http.ServeMux) {
	for _, p := range pagePaths {
		mux.HandleFunc("GET "+p, s.page)
	}
	mux.HandleFunc("GET /assets/{name}", s.asset)
	mux.HandleFunc("GET /favicon.svg", s.asset)
}

func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	if b, err := ui.ReadFile(distDir + "/index.html"); err == nil {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		deliver(w, r, "index.html", b, "no-cache")
		return
	}
	b, _ := ui.ReadFile(fallbackPage)
	w.Header().Set("Content-Security-Policy", strings.Replace(contentPolicy, "style-src 'self'", "style-src 'unsafe-inline'", 1))
	deliver(w, r, "fallback.html", b, "no-cache")
}

// asset serves a file of the build. Names carry a hash of the content, so that they
// never change.
func (s *Server) asset(w http.ResponseWriter, r *http.Request) {
	name := path.Base(r.URL.Path)
	file := distDir + "/" + name
	cache := "no-cache"
	if strings.HasPrefix(r.URL.Path, "/assets/") {
		file, cache = distDir+"/assets/"+name, "public, max-age=31536000, immutable"
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		if b, err := ui.ReadFile(file + ".gz"); err == nil {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Vary", "Accept-Encoding")
			deliver(w, r, name, b, cache)
			return
		}
	}
	b, err := ui.ReadFile(file)
	if err != nil {
		s.notFound(w, r)
		return
	}
	deliver(w, r, name, b, cache)
}

func deliver(w http.ResponseWriter, r *http.Request, name string, b []byte, cache string) {
	sum := sha256.Sum256(b)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	h := w.Header()
	h.Set("Cache-Control", cache)
	h.Set("ETag", tag)
	h.Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = bytes.NewReader(b).WriteTo(w)
}
