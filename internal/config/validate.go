// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// validate makes the checks that need more than one key.
func (d *decoder) validate(c *Config) {
	d.validateListen(c)
	names := map[string]string{}
	served := map[string]string{}
	for i := range c.Pools {
		p := &c.Pools[i]
		path := fmt.Sprintf("pools[%d]", i)
		d.unique(names, p.Name, path+".name", "pool")
		if !c.Spare(p.Name) {
			d.validateModels(p, path, served)
		}
		d.validateReplicas(p, path)
		if p.Replicas.Process.Keep && c.StateDir == "" {
			d.failPath(path+".replicas.process.keep", "to keep processes needs stateDir, where the next Penstock finds them")
		}
		if p.Scale.Min > p.Scale.Max {
			d.failPath(path+".scale.min", "min %d is more than max %d", p.Scale.Min, p.Scale.Max)
		}
		d.validateScale(c, p, path)
		d.validateFloors(p, path)
		if p.Route.Shadow != "" && p.Route.Shadow == p.Route.Policy {
			d.failPath(path+".route.shadow", "shadow is the same as policy, so it has nothing to compare")
		}
	}
	for i := range c.Pools {
		d.validateFallback(c, i, names)
	}
	d.validateTenants(c)
	d.validateRollouts(c, names)
	d.validateLogging(c)
	for i := range c.Tenants {
		for j, name := range c.Tenants[i].Pools {
			if _, ok := names[name]; !ok {
				d.failPath(fmt.Sprintf("tenants[%d].pools[%d]", i, j), "there is no pool %q", name)
			}
		}
	}
}

func (d *decoder) unique(seen map[string]string, name, path, what string) {
	if name == "" {
		return
	}
	if first, ok := seen[name]; ok {
		line := 0
		if n := d.at[first]; n != nil {
			line = n.Line
		}
		d.failPath(path, "%s %q is there twice; the first is in line %d", what, name, line)
		return
	}
	seen[name] = path
}

func (d *decoder) validateListen(c *Config) {
	l := c.Listen
	if l.HTTP == "" {
		d.failPath("listen.http", "http must not be empty: it is where clients connect")
	}
	if clash(l.HTTP, l.Admin) {
		d.failPath("listen.admin", "admin is the same address as http (%s)", l.HTTP)
	}
	if clash(l.EPP, l.HTTP) || clash(l.EPP, l.Admin) {
		d.failPath("listen.epp", "epp is the same address as another listener (%s)", l.EPP)
	}
	if l.Metrics != "" && c.Kube.Service == "" {
		d.failPath("kubernetes.service", "listen.metrics needs the Service in front of it, for its certificate")
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		d.failPath("tls", "cert and key come together")
	}
	if c.TLS.ClientCA != "" && c.TLS.Cert == "" {
		d.failPath("tls.clientCA", "clientCA needs cert and key")
	}
}

// clash reports whether two listeners ask for one port of one address.
func clash(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	ha, pa, _ := net.SplitHostPort(a)
	hb, pb, _ := net.SplitHostPort(b)
	return pa == pb && pa != "0" && (ha == hb || isAny(ha) || isAny(hb))
}

func isAny(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

// validateModels makes sure that a name leads to one pool: models, aliases and
// adapters share one name space, since clients put any of them into "model".
func (d *decoder) validateModels(p *Pool, path string, served map[string]string) {
	for j := range p.Models {
		m := &p.Models[j]
		at := fmt.Sprintf("%s.models[%d]", path, j)
		d.unique(served, m.Name, at+".name", "model")
		for k, a := range m.Aliases {
			d.unique(served, a, fmt.Sprintf("%s.aliases[%d]", at, k), "model")
		}
		for k, a := range m.Adapters {
			d.unique(served, a, fmt.Sprintf("%s.adapters[%d]", at, k), "model")
		}
	}
}

func (d *decoder) validateReplicas(p *Pool, path string) {
	r := &p.Replicas
	var have []string
	add := func(ok bool, key string) {
		if ok {
			have = append(have, key)
		}
	}
	add(len(r.Static) > 0, "static")
	add(r.File != "", "file")
	add(r.DNS != "", "dns")
	add(d.set[path+".replicas.selector"], "selector")
	add(r.InferencePool != "", "inferencePool")
	add(d.set[path+".replicas.process"], "process")
	switch {
	case len(have) == 0 && !d.failedBelow(path+".replicas"):
		d.failPath(path+".replicas", "pool %q has no replicas; write replicas: {static: [http://127.0.0.1:8000]}", p.Name)
	case len(have) > 1:
		d.failPath(path+".replicas."+have[1], "replicas has both %s; one source a pool", strings.Join(have, " and "))
	}
	if d.set[path+".replicas.selector"] && len(r.Selector.Labels) == 0 {
		d.failPath(path+".replicas.selector", "selector needs labels, such as [app=vllm]")
	}
	if d.set[path+".replicas.process"] && len(r.Process.Command) == 0 {
		d.failPath(path+".replicas.process", "process needs a command")
	}
	if len(r.Process.Command) > 0 {
		d.validateProcess(p, path)
	}
	seen := map[string]string{}
	for i, u := range r.Static {
		d.unique(seen, strings.TrimSuffix(u, "/"), fmt.Sprintf("%s.replicas.static[%d]", path, i), "replica")
	}
}

// validateProcess makes sure that a pool of processes can start them and can be asked
// for while there is none.
func (d *decoder) validateProcess(p *Pool, path string) {
	if !strings.Contains(strings.Join(p.Replicas.Process.Command, " "), "{port}") {
		d.failPath(path+".replicas.process.command", "the command does not say {port}: each process gets a port of its own")
	}
	if len(p.Models) == 0 {
		d.failPath(path+".models", "a pool of processes needs models: nobody can be asked for them while none runs")
	}
	if p.Scale.Min > p.Replicas.Process.Max {
		d.failPath(path+".scale.min", "min %d is more than process.max %d", p.Scale.Min, p.Replicas.Process.Max)
	}
}

func (d *decoder) failedBelow(path string) bool {
	for _, e := range d.errs {
		if strings.HasPrefix(e.Path, path) {
			return true
		}
	}
	return false
}

func (d *decoder) validateFallback(c *Config, i int, names map[string]string) {
	p := &c.Pools[i]
	seen := map[string]string{}
	for j, f := range p.Fallback {
		at := fmt.Sprintf("pools[%d].fallback[%d]", i, j)
		d.unique(seen, f, at, "pool")
		if f == p.Name {
			d.failPath(at, "pool %q cannot fall back to itself", f)
			continue
		}
		if _, ok := names[f]; ok {
			continue
		}
		all := make([]string, 0, len(c.Pools))
		for k := range c.Pools {
			all = append(all, c.Pools[k].Name)
		}
		msg := fmt.Sprintf("there is no pool %q", f)
		if near := suggest(f, all); near != "" {
			msg += fmt.Sprintf("; did you mean %q?", near)
		}
		d.failPath(at, "%s", msg)
	}
}

func (d *decoder) validateTenants(c *Config) {
	names := map[string]string{}
	for i := range c.Tenants {
		t := &c.Tenants[i]
		path := fmt.Sprintf("tenants[%d]", i)
		d.unique(names, t.Name, path+".name", "tenant")
		for j := range t.Limits {
			d.validateLimit(&t.Limits[j], fmt.Sprintf("%s.limits[%d]", path, j), len(c.Prices) > 0)
		}
	}
	priced := map[string]string{}
	for i := range c.Prices {
		d.unique(priced, c.Prices[i].Model, fmt.Sprintf("prices[%d].model", i), "price for model")
	}
	issuers := map[string]string{}
	for i := range c.Auth.JWT {
		d.unique(issuers, c.Auth.JWT[i].Issuer, fmt.Sprintf("auth.jwt[%d].issuer", i), "issuer")
	}
}

func (d *decoder) validateLimit(l *Limit, path string, priced bool) {
	metered := l.Tokens > 0 || l.PromptTokens > 0 || l.OutputTokens > 0 || l.Requests > 0 || l.Budget > 0
	switch {
	case !metered && l.Concurrent == 0:
		d.failPath(path, "a limit needs tokens, promptTokens, outputTokens, requests, concurrent or budget")
	case l.Per != 0 && l.Every != "":
		d.failPath(path, "per and every exclude each other")
	case metered && l.Every == "" && l.Per < time.Second:
		d.failPath(path, "a limit needs per, at least 1s, or every")
	case l.Budget > 0 && !priced:
		d.failPath(path, "a budget needs prices")
	}
}

// Inert returns a line for every key of the file that is accepted and checked but has
// no effect beside the others, in the order of the file.
func (c *Config) Inert() []string {
	var out []string
	for i := range c.Tenants {
		switch c.Tenants[i].Logging {
		case "hash", "redacted", "full":
			if len(c.Logging.Rules) == 0 {
				out = append(out, fmt.Sprintf("tenants[%d].logging: %s allows what no rule of logging.rules records", i, c.Tenants[i].Logging))
			}
		}
	}
	return out
}

// MissingFiles returns a line for every file that the configuration names and
// that cannot be read now. It is a warning, not an error: a secret may be mounted
// later.
func (c *Config) MissingFiles() []string {
	var out []string
	look := func(path, file string) {
		if file == "" {
			return
		}
		f, err := os.Open(file)
		if err != nil {
			out = append(out, path+": "+err.Error())
			return
		}
		f.Close()
	}
	look("tls.cert", c.TLS.Cert)
	look("tls.key", c.TLS.Key)
	look("tls.clientCA", c.TLS.ClientCA)
	look("auth.keysFile", c.Auth.KeysFile)
	for i := range c.Auth.JWT {
		look(fmt.Sprintf("auth.jwt[%d].loginSecretFile", i), c.Auth.JWT[i].LoginSecretFile)
	}
	look("logging.hashKeyFile", c.Logging.HashKeyFile)
	look("share.secretFile", c.Share.SecretFile)
	look("share.redisPasswordFile", c.Share.RedisPasswordFile)
	look("share.redisCA", c.Share.RedisCA)
	look("telemetry.authorizationFile", c.Telemetry.AuthorizationFile)
	for i := range c.Pools {
		p := &c.Pools[i]
		at := fmt.Sprintf("pools[%d].", i)
		look(at+"replicas.file", p.Replicas.File)
		look(at+"engine.tls.ca", p.Engine.TLS.CA)
		look(at+"engine.apiKeyFile", p.Engine.APIKeyFile)
	}
	return out
}
