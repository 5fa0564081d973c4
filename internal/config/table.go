// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"time"
)

// kind is the shape of a value in the file.
type kind uint8

const (
	kindString kind = iota
	kindInt
	kindFloat
	kindDuration
	kindBytes
	kindRatio
	kindBool
	kindStrings
	kindObject  // a mapping
	kindObjects // a list of mappings
)

// field is one key: everything that decoder, schema, view and diff know of it.
type field struct {
	key      string
	doc      string
	kind     kind
	enum     []string               // allowed values; empty: any
	known    func(Options) []string // allowed values that the caller supplies
	def      string                 // default, as one would write it
	check    func(string) error     // extra check of a string or of each list element
	min, max float64                // bounds of numbers and lengths in seconds; both 0: none
	required bool                   // must be there and not empty
	live     bool                   // a reload applies a change; otherwise it needs a restart
	obj      *object                // of kindObject and kindObjects
	at       func(parent any) any   // pointer to the Go value
	grow     func(list any) any     // kindObjects: append an element, return a pointer to it
	each     func(list any) []any   // kindObjects: pointers to the elements
	example  string                 // shown in the schema
}

// object is one mapping: its keys in the order of the reference.
type object struct {
	name   string // for messages: "a pool"
	id     string // key that names an element of a list; "" by position
	fields []field
}

func (o *object) field(key string) *field {
	for i := range o.fields {
		if o.fields[i].key == key {
			return &o.fields[i]
		}
	}
	return nil
}

type option func(*field)

func ref[P, V any](k kind, key, doc string, at func(*P) *V, opts ...option) field {
	f := field{key: key, doc: doc, kind: k, at: func(p any) any { return at(p.(*P)) }}
	for _, o := range opts {
		o(&f)
	}
	return f
}

func text[P any](key, doc string, at func(*P) *string, o ...option) field {
	return ref(kindString, key, doc, at, o...)
}

func texts[P any](key, doc string, at func(*P) *[]string, o ...option) field {
	return ref(kindStrings, key, doc, at, o...)
}

func integer[P any](key, doc string, at func(*P) *int, o ...option) field {
	return ref(kindInt, key, doc, at, o...)
}

func length[P any](key, doc string, at func(*P) *time.Duration, o ...option) field {
	return ref(kindDuration, key, doc, at, o...)
}

func mapping[P, V any](key, doc string, obj *object, at func(*P) *V, o ...option) field {
	f := ref(kindObject, key, doc, at, o...)
	f.obj = obj
	return f
}

func mappings[P, V any](key, doc string, obj *object, at func(*P) *[]V, o ...option) field {
	f := ref(kindObjects, key, doc, at, o...)
	f.obj = obj
	f.grow = func(list any) any {
		l := list.(*[]V)
		*l = append(*l, *new(V))
		return &(*l)[len(*l)-1]
	}
	f.each = func(list any) []any {
		l := *list.(*[]V)
		out := make([]any, len(l))
		for i := range l {
			out[i] = &l[i]
		}
		return out
	}
	return f
}

func def(v string) option                    { return func(f *field) { f.def = v } }
func oneOf(v ...string) option               { return func(f *field) { f.enum = v } }
func among(fn func(Options) []string) option { return func(f *field) { f.known = fn } }
func checked(fn func(string) error) option   { return func(f *field) { f.check = fn } }
func within(lo, hi float64) option           { return func(f *field) { f.min, f.max = lo, hi } }
func example(v string) option                { return func(f *field) { f.example = v } }
func required() option                       { return func(f *field) { f.required = true } }
func live() option                           { return func(f *field) { f.live = true } }

var rootObject = &object{name: "the file", fields: []field{
	mapping("listen", "Listeners.", listenObject, func(c *Config) *Listen { return &c.Listen }),
	mapping("tls", "Certificate of the gateway.", tlsObject, func(c *Config) *TLS { return &c.TLS }),
	mapping("relay", "How answers are carried from replicas to clients.", relayObject, func(c *Config) *Relay { return &c.Relay }),
	mapping("limits", "What one request may ask for, and what one client may hold.", limitsObject, func(c *Config) *Limits { return &c.Limits }),
	mappings("pools", "Pools of interchangeable replicas.", poolObject, func(c *Config) *[]Pool { return &c.Pools }),
	mapping("auth", "Who may enter. Without it the gateway is anonymous and binds loopback only.", authObject,
		func(c *Config) *Auth { return &c.Auth }),
	mappings("tenants", "Tenants, their share and their limits.", tenantObject, func(c *Config) *[]Tenant { return &c.Tenants }),
	mappings("rollouts", "Two versions behind one name.", rolloutObject, func(c *Config) *[]Rollout { return &c.Rollouts }, live()),
	mapping("logging", "What of prompts and answers is recorded, and where.", loggingObject, func(c *Config) *Logging { return &c.Logging }),
	mappings("prices", "What tokens cost, for budgets.", priceObject, func(c *Config) *[]Price { return &c.Prices }, live()),
	mapping("share", "What routers tell each other.", shareObject, func(c *Config) *Share { return &c.Share }),
	mapping("accelerators", "What the replicas of all pools share.", acceleratorsObject, func(c *Config) *Accelerators { return &c.Accelerators }),
	text("stateDir", "Directory for what a restart should find again: the prefix index and the key of its hashes, and pauses and pins of the scaler; empty: nothing.",
		func(c *Config) *string { return &c.StateDir }),
	mapping("journal", "Records of decisions.", journalObject, func(c *Config) *Journal { return &c.Journal }),
	mapping("telemetry", "Export of traces and metrics.", telemetryObject, func(c *Config) *Telemetry { return &c.Telemetry }),
	mapping("kubernetes", "What Penstock keeps and serves in a cluster.", kubernetesObject, func(c *Config) *Kubernetes { return &c.Kube }),
}}

var listenObject = &object{name: "listen", fields: []field{
	text("http", "Gateway, host:port.", func(l *Listen) *string { return &l.HTTP }, def("127.0.0.1:8080"), checked(checkAddr)),
	text("admin", "Admin API and console, host:port; empty turns it off.", func(l *Listen) *string { return &l.Admin },
		def("127.0.0.1:9900"), checked(checkAddr)),
	texts("adminHosts", "Names that the admin API may be called by where it is not on loopback, beside its address.",
		func(l *Listen) *[]string { return &l.AdminHosts }, example("penstock.example.com")),
	text("epp", "Endpoint picker, host:port; empty turns it off.", func(l *Listen) *string { return &l.EPP },
		checked(checkAddr)),
	text("prometheus", "/metrics, /healthz, /readyz and the metrics of replicas, host:port, any address; empty: on the admin listener only.",
		func(l *Listen) *string { return &l.Prometheus }, checked(checkAddr)),
	text("metrics", "Aggregated metrics API for HorizontalPodAutoscalers, host:port; empty turns it off.", func(l *Listen) *string { return &l.Metrics },
		checked(checkAddr)),
	text("keda", "External scaler for KEDA (gRPC), host:port; empty turns it off.", func(l *Listen) *string { return &l.KEDA },
		checked(checkAddr)),
	ref(kindBool, "kedaPlaintext", "Let the external scaler listen beyond loopback without TLS: whoever reaches it reads how busy the pools are. For a network where only KEDA does.",
		func(l *Listen) *bool { return &l.KEDAPlaintext }),
}}

var relayObject = &object{name: "relay", fields: []field{
	text("streams", "How plaintext HTTP/1.1 clients are served. epoll: in a loop of our own, their streams in an epoll set; where there is none it is portable. portable: by net/http, with a goroutine for each stream.",
		func(r *Relay) *string { return &r.Streams }, def("epoll"), oneOf("epoll", "portable")),
	length("firstByte", "Longest wait for the first byte of an answer. It is never retried elsewhere.",
		func(r *Relay) *time.Duration { return &r.FirstByte }, def("15m")),
	length("idle", "Longest silence within an answer; the stream then ends with an error.",
		func(r *Relay) *time.Duration { return &r.Idle }, def("5m")),
}}

var tlsObject = &object{name: "tls", fields: []field{
	text("cert", "PEM file with the certificate chain. Read again when it changes.", func(t *TLS) *string { return &t.Cert }),
	text("key", "PEM file with the private key.", func(t *TLS) *string { return &t.Key }),
	text("clientCA", "PEM file; when set, clients must present a certificate signed by it.", func(t *TLS) *string { return &t.ClientCA }),
}}

var poolObject = &object{name: "a pool", id: "name", fields: []field{
	text("name", "Name of the pool, unique.", func(p *Pool) *string { return &p.Name }, required(), checked(checkName), example("chat")),
	mappings("models", "Models of the pool. Empty: whatever the replicas list.", modelObject, func(p *Pool) *[]Model { return &p.Models }, live()),
	mapping("replicas", "Where the replicas are found: exactly one of the keys.", replicasObject, func(p *Pool) *Replicas { return &p.Replicas }),
	mapping("engine", "The model server that the replicas run.", engineObject, func(p *Pool) *Engine { return &p.Engine }),
	mapping("slo", "What users are promised.", sloObject, func(p *Pool) *SLO { return &p.SLO }),
	mapping("route", "How requests are spread.", routeObject, func(p *Pool) *Route { return &p.Route }),
	mapping("scale", "How many replicas there should be.", scaleObject, func(p *Pool) *Scale { return &p.Scale }),
	texts("fallback", "Pools to try in order, only before the first byte.", func(p *Pool) *[]string { return &p.Fallback }, live()),
	length("fallbackWait", "Longest predicted wait for a first token that is not worth a fallback; 0: only where the pool takes nothing, or the prompt is too long for it.",
		func(p *Pool) *time.Duration { return &p.FallbackWait }, within(0, 3600), live()),
}}

var modelObject = &object{name: "a model", id: "name", fields: []field{
	text("name", "Name of the model as the engines list it.", func(m *Model) *string { return &m.Name }, required(), example("llama-3.1-8b")),
	texts("aliases", "Other names that clients may use; the gateway writes the real one into the request.",
		func(m *Model) *[]string { return &m.Aliases }, live()),
	texts("adapters", "LoRA adapters on this model. Clients ask for one as the model.",
		func(m *Model) *[]string { return &m.Adapters }, checked(checkAdapter), live()),
	texts("tenants", "Tenants that may see and use the model, its aliases and adapters; empty: everybody.",
		func(m *Model) *[]string { return &m.Tenants }, live()),
}}

var replicasObject = &object{name: "replicas", fields: []field{
	texts("static", "Base URLs, without /v1.", func(r *Replicas) *[]string { return &r.Static },
		checked(checkURL), live(), example("http://127.0.0.1:8000")),
	text("file", "File with one replica a line, or a YAML or JSON list; read again when it changes.",
		func(r *Replicas) *string { return &r.File }, live()),
	text("dns", "URL whose host is looked up again and again, such as http://vllm.example:8000. A host that starts with _ is an SRV name.",
		func(r *Replicas) *string { return &r.DNS }, checked(checkDNS), live()),
	mapping("selector", "Kubernetes pods by label.", selectorObject, func(r *Replicas) *Selector { return &r.Selector }, live()),
	text("inferencePool", "namespace/name of an InferencePool.", func(r *Replicas) *string { return &r.InferencePool }, checked(checkPoolName), live(), example("models/llama")),
	mapping("process", "Replicas that Penstock starts on this machine.", processObject, func(r *Replicas) *Process { return &r.Process }),
}}

var selectorObject = &object{name: "selector", fields: []field{
	text("namespace", "Namespace of the pods; empty: that of the kubeconfig or of the pod.", func(s *Selector) *string { return &s.Namespace }, live()),
	texts("labels", "Labels that a pod must carry, key=value.", func(s *Selector) *[]string { return &s.Labels }, checked(checkLabel), live()),
	integer("port", "Port of the model server.", func(s *Selector) *int { return &s.Port }, within(1, 65535), def("8000"), live()),
}}

var processObject = &object{name: "process", fields: []field{
	texts("command", "Command and arguments; {port}, {host}, {url}, {model}, {pool} and {id} stand for what the replica is given.",
		func(p *Process) *[]string { return &p.Command }),
	integer("max", "Most processes at a time, draining ones included.", func(p *Process) *int { return &p.Max }, within(1, 1024), def("8")),
	ref(kindBool, "keep", "Leave the processes running when Penstock stops, for the next one to adopt; needs stateDir.", func(p *Process) *bool { return &p.Keep }),
	length("stopGrace", "How long a process may take to end after SIGTERM.", func(p *Process) *time.Duration { return &p.StopGrace }, def("30s"), within(0.1, 3600)),
}}

var engineObject = &object{name: "engine", fields: []field{
	text("profile", "Engine profile: a name, a file, or auto.", func(e *Engine) *string { return &e.Profile }, def("auto"),
		among(func(o Options) []string { return o.Profiles })),
	mapping("tls", "How replicas are trusted.", engineTLSObject, func(e *Engine) *EngineTLS { return &e.TLS }),
	text("kvEvents", "Events of the replicas' KV caches: auto, where they tell of them; off; tcp://{host}:5557, {host} being the replica's; or tcp://*:5557 where the replicas dial.",
		func(e *Engine) *string { return &e.KVEvents }, def("auto"), checked(checkKVEvents)),
	text("tokens", "text: prompts are known by their text. exact: by the token ids that the replicas' /tokenize tells, as KV events are.",
		func(e *Engine) *string { return &e.Tokens }, def("text"), oneOf("text", "exact")),
	text("apiKeyFile", "File with the key that the replicas ask for.", func(e *Engine) *string { return &e.APIKeyFile }),
	text("loadAdapters", "Load the adapters of models at every replica that does not list them, through /v1/load_lora_adapter: the path of an adapter as replicas see it, {name} standing for its name. Empty: never.",
		func(e *Engine) *string { return &e.LoadAdapters }, checked(checkAdapterPath), live(), example("/adapters/{name}")),
	text("messages", "The Messages API of Anthropic: auto passes it on until an engine does not know it, native always, translate never; what is not passed on is put in terms of chat completions.",
		func(e *Engine) *string { return &e.Messages }, def("auto"), oneOf("auto", "native", "translate")),
}}

var engineTLSObject = &object{name: "engine.tls", fields: []field{
	text("ca", "PEM file with the CA of the replicas; empty: the system's.", func(t *EngineTLS) *string { return &t.CA }),
}}

var sloObject = &object{name: "slo", fields: []field{
	length("ttft", "Time to the first token.", func(s *SLO) *time.Duration { return &s.TTFT }, def("2s"), within(0.001, 86400)),
	length("itl", "Time between tokens.", func(s *SLO) *time.Duration { return &s.ITL }, def("100ms"), within(0.001, 3600)),
}}

var routeObject = &object{name: "route", fields: []field{
	text("policy", "How a replica is picked.", func(r *Route) *string { return &r.Policy }, def("penstock"),
		among(func(o Options) []string { return o.Policies }), live()),
	text("shadow", "A second policy that decides without effect; status tells how often it agrees and what it is predicted to gain.",
		func(r *Route) *string { return &r.Shadow }, among(shadows), live()),
	texts("sessionHeaders", "Headers that name a session where the body has no prompt_cache_key: a guess where the prompt was cached, no more.",
		func(r *Route) *[]string { return &r.SessionHeaders }, example("x-session-id")),
	text("queue", "The router's own queue: on holds what replicas would only make wait, and sends it in a better order; off sends everything at once. Weights and classes of tenants need it.",
		func(r *Route) *string { return &r.Queue }, def("on"), oneOf("on", "off")),
	length("queueMost", "How much longer the queue may hold a request than first come first served would have; three times as long is always allowed, over 8 times and 1 s never. Once several tenants came the last alone holds.",
		func(r *Route) *time.Duration { return &r.QueueMost }, def("1m"), within(0.1, 3600)),
	length("holdFor", "How long a request may wait while no replica is ready or takes it; 0s refuses at once, or, in a pool that wakes, waits longer than a start-up takes.",
		func(r *Route) *time.Duration { return &r.HoldFor }, def("0s")),
	integer("holdMax", "Most requests that wait while no replica is ready, in a pool that is scaled.", func(r *Route) *int { return &r.HoldMax },
		def("1000"), within(1, 1e6), live()),
	length("heartbeat", "While a request waits, an event stream gets a comment this often, from the first interval on; 0s: never.",
		func(r *Route) *time.Duration { return &r.Heartbeat }, def("10s"), within(0, 3600), live()),
}}

// shadows are the policies, and none.
func shadows(o Options) []string {
	if len(o.Policies) == 0 {
		return nil
	}
	return append([]string{""}, o.Policies...)
}

var scaleObject = &object{name: "scale", fields: append([]field{
	text("mode", "recommend says how many replicas there should be, act sets it. A pool of processes acts unless this says recommend.",
		func(s *Scale) *string { return &s.Mode }, def("recommend"), oneOf("recommend", "act"), live()),
	integer("min", "Fewest replicas; 0 lets the pool go to zero.", func(s *Scale) *int { return &s.Min }, def("1"), within(0, 10000), live()),
	integer("max", "Most replicas.", func(s *Scale) *int { return &s.Max }, def("8"), within(1, 10000), live()),
	ref(kindRatio, "attainment", "Share of requests that must meet the SLO.", func(s *Scale) *Ratio { return &s.Attainment }, def("99%"), live()),
	text("hand", "What sets the number of replicas.", func(s *Scale) *string { return &s.Hand },
		def("auto"), oneOf("auto", "process", "scale", "hpa", "keda")),
	length("startUp", "Start-up time of a replica before any was seen; 0s: the engine profile's.", func(s *Scale) *time.Duration { return &s.StartUp },
		def("0s"), within(0, 86400), live()),
	length("idleAfter", "How long nothing may come before a pool with min 0 may go to zero; never shorter than a start-up. It goes once the delay of every step down has passed as well: 1m, or 15 start-ups where that is less, or a quarter of one where that is more.",
		func(s *Scale) *time.Duration { return &s.IdleAfter }, def("5m"), within(1, 31*86400), live()),
	length("clientTimeout", "How long clients wait for an answer that is held; what waits longer is no demand.",
		func(s *Scale) *time.Duration { return &s.ClientTimeout }, def("1m"), within(1, 86400), live()),
	integer("stepUp", "Most replicas added at a time; 0: no bound.", func(s *Scale) *int { return &s.StepUp }, within(0, 10000), live()),
	integer("stepDown", "Most replicas taken away at a time; 0: no bound.", func(s *Scale) *int { return &s.StepDown }, within(0, 10000), live()),
	integer("startsPerMinute", "Most replicas started in any minute; 0: no bound.", func(s *Scale) *int { return &s.StartsPerMinute }, within(0, 10000), live()),
	integer("reversals", "Most changes of direction an hour; 0: no bound.", func(s *Scale) *int { return &s.Reversals }, def("6"), within(0, 1000), live()),
	length("sleepFor", "How long a replica that is not needed sleeps, its weights off the accelerator, before it is ended; 0s: it is ended at once. Processes only.",
		func(s *Scale) *time.Duration { return &s.SleepFor }, def("0s"), within(0, 31*86400)),
	mapping("target", "The Kubernetes object that runs the replicas.", scaleTargetObject, func(s *Scale) *ScaleTarget { return &s.Target }),
	text("wake", "Who moves the object out of zero with the hands hpa and keda: owner leaves it to them, scale does it through /scale.",
		func(s *Scale) *string { return &s.Wake }, def("owner"), oneOf("owner", "scale")),
	length("drainFor", "Longest wait for requests in flight on a replica that is to go.", func(s *Scale) *time.Duration { return &s.DrainFor },
		def("5m"), within(0, 86400)),
}, scaleBounds...)}

var authObject = &object{name: "auth", fields: []field{
	text("keysFile", "File with the hashes of the keys.", func(a *Auth) *string { return &a.KeysFile }),
	mappings("jwt", "Issuers of tokens.", jwtObject, func(a *Auth) *[]JWT { return &a.JWT }),
	text("epp", "Of requests behind a proxy: required refuses one without a credential, optional lets it in without a tenant, where the proxy has asked already.",
		func(a *Auth) *string { return &a.EPP }, def("required"), oneOf("required", "optional")),
	text("admin", "Who may use the admin API: local, whoever reaches it, on loopback only; keys, whose key or token has a role (read, operate, admin).",
		func(a *Auth) *string { return &a.Admin }, def("local"), oneOf("local", "keys")),
	ref(kindBool, "endStreams", "End requests under way within 2 s when their key of keysFile is revoked or expires, streams with an error event, behind Envoy by a cut connection. Else they finish.",
		func(a *Auth) *bool { return &a.EndStreams }),
}}

var jwtObject = &object{name: "a jwt issuer", id: "issuer", fields: []field{
	text("issuer", "URL of the OIDC issuer.", func(j *JWT) *string { return &j.Issuer }, required(), checked(checkHTTPS)),
	text("audience", "Audience that the token must name.", func(j *JWT) *string { return &j.Audience }, required()),
	text("tenantClaim", "Claim of the token that names the tenant.", func(j *JWT) *string { return &j.TenantClaim }, def("tenant")),
	text("roleClaim", "Claim of the token that names the role in the admin API; empty: tokens have none.", func(j *JWT) *string { return &j.RoleClaim }),
	ref(kindBool, "login", "Let people sign in to the console at this issuer; audience is then the id of the client.", func(j *JWT) *bool { return &j.Login }),
	text("loginSecretFile", "File with the secret of the client; empty: a public client.", func(j *JWT) *string { return &j.LoginSecretFile }),
	text("loginRedirect", "Address of /login/back as browsers see it, behind a proxy that speaks TLS; empty: as the browser came.", func(j *JWT) *string { return &j.LoginRedirect }),
}}

var tenantObject = &object{name: "a tenant", id: "name", fields: []field{
	text("name", "Name of the tenant, unique.", func(t *Tenant) *string { return &t.Name }, required(), checked(checkName), example("acme")),
	ref(kindFloat, "weight", "Share of a contended fleet, relative to the other tenants.", func(t *Tenant) *float64 { return &t.Weight },
		def("1"), within(0.001, 1e6)),
	mappings("limits", "Quotas; all of them hold.", limitObject, func(t *Tenant) *[]Limit { return &t.Limits }, live()),
	integer("outputCap", "Most tokens that are reserved for an answer; 0: what the client asks for, or what answers were so far.",
		func(t *Tenant) *int { return &t.OutputCap }, within(0, 1e7), live()),
	length("deadline", "Refuse at once what is predicted to show its first token later than this; 0: never.",
		func(t *Tenant) *time.Duration { return &t.Deadline }, within(0, 86400), live()),
	integer("queueCap", "Most requests of the tenant that wait for a replica at a time; 0: no cap.",
		func(t *Tenant) *int { return &t.QueueCap }, within(0, 1e6), live()),
	texts("pools", "Pools that its prompts may reach, fallbacks and shadow traffic included; empty: all.", func(t *Tenant) *[]string { return &t.Pools }, live()),
	text("logging", "What of a prompt may be recorded.", func(t *Tenant) *string { return &t.Logging },
		def("metadata"), oneOf("none", "metadata", "hash", "redacted", "full")),
	text("cacheSalt", "Who shares the prefix cache of an engine.", func(t *Tenant) *string { return &t.CacheSalt },
		def("shared"), oneOf("shared", "tenant", "user")),
}}

var limitObject = &object{name: "a limit", fields: []field{
	length("per", "A bucket of each amount refills over this time.", func(l *Limit) *time.Duration { return &l.Per }, within(0, 31*86400), live()),
	text("every", "Instead of per: each amount is there anew at each date, UTC.", func(l *Limit) *string { return &l.Every },
		oneOf("", "day", "month"), live()),
	integer("tokens", "Tokens, prompt and output; 0: no limit.", func(l *Limit) *int { return &l.Tokens }, within(0, 1e15), live()),
	integer("promptTokens", "Tokens of prompts; 0: no limit.", func(l *Limit) *int { return &l.PromptTokens }, within(0, 1e15), live()),
	integer("outputTokens", "Tokens of answers; 0: no limit.", func(l *Limit) *int { return &l.OutputTokens }, within(0, 1e15), live()),
	integer("requests", "Requests; 0: no limit.", func(l *Limit) *int { return &l.Requests }, within(0, 1e12), live()),
	integer("concurrent", "Requests at a time; 0: no limit.", func(l *Limit) *int { return &l.Concurrent }, within(0, 1e6), live()),
	ref(kindFloat, "budget", "Money, by the prices; 0: no limit.", func(l *Limit) *float64 { return &l.Budget }, within(0, 1e9), live()),
	text("scope", "Whose limit it is: tenant for all its keys together, key for each by itself.", func(l *Limit) *string { return &l.Scope },
		def("tenant"), oneOf("tenant", "key"), live()),
	text("model", "For one model only; * gives each model the limit by itself; empty: all together.", func(l *Limit) *string { return &l.Model }, live()),
	ref(kindBool, "hardStop", "End a running stream, with an error event, where it would go into debt.", func(l *Limit) *bool { return &l.HardStop }, live()),
}}

var priceObject = &object{name: "a price", id: "model", fields: []field{
	text("model", "Model or adapter as engines know it; * for those without a price of their own.", func(p *Price) *string { return &p.Model }, required(), example("llama-3.1-8b")),
	ref(kindFloat, "prompt", "A million prompt tokens.", func(p *Price) *float64 { return &p.Prompt }, within(0, 1e6), live()),
	ref(kindFloat, "cached", "A million prompt tokens that came from a cache; 0: as prompt.", func(p *Price) *float64 { return &p.Cached }, within(0, 1e6), live()),
	ref(kindFloat, "output", "A million output tokens.", func(p *Price) *float64 { return &p.Output }, within(0, 1e6), live()),
}}

var shareObject = &object{name: "share", fields: []field{
	text("peers", "Routers that share the traffic and tell each other what they send: off, addresses host:port, comma-separated, or dns:host:port for all addresses of a name. auto: what PENSTOCK_PEERS says.",
		func(s *Share) *string { return &s.Peers }, def("auto"), checked(checkPeers)),
	text("listen", "Where other routers dial this one, host:port; empty: it is not told anything.", func(s *Share) *string { return &s.Listen }, checked(checkAddr)),
	text("secretFile", "File with the secret that all routers know. Needed where an address is not loopback.", func(s *Share) *string { return &s.SecretFile }),
	text("redis", "Redis or Valkey, host:port or a redis:// URL without credentials.", func(s *Share) *string { return &s.Redis },
		checked(checkRedis)),
	text("redisUser", "User of Redis; empty: the default one.", func(s *Share) *string { return &s.RedisUser }),
	text("redisPasswordFile", "File with the password of Redis.", func(s *Share) *string { return &s.RedisPasswordFile }),
	text("redisCA", "PEM file with the CA of Redis; turns TLS on, as rediss:// does with the system's.", func(s *Share) *string { return &s.RedisCA }),
	ref(kindBool, "redisCluster", "Redis is a cluster; redis names one of its nodes.", func(s *Share) *bool { return &s.RedisCluster }),
}}

var journalObject = &object{name: "journal", fields: []field{
	integer("memory", "Records that are kept in memory.", func(j *Journal) *int { return &j.Memory }, def("10000"), within(1, 10e6)),
	text("dir", "Directory of the journal files; empty keeps nothing on disk.", func(j *Journal) *string { return &j.Dir }),
	ref(kindBool, "events", "Also keep a tape of all events in dir, so that replay can let them happen again; it ends at maxBytes.",
		func(j *Journal) *bool { return &j.Events }),
	length("maxAge", "Files older than this are deleted.", func(j *Journal) *time.Duration { return &j.MaxAge }, def("24h"), within(60, 3660*86400)),
	ref(kindBytes, "maxBytes", "Most bytes on disk; the oldest files go first.", func(j *Journal) *Bytes { return &j.MaxBytes }, def("1GiB"), within(1<<20, 1<<50)),
}}

var telemetryObject = &object{name: "telemetry", fields: []field{
	text("otlp", "URL of an OTLP/HTTP receiver; empty: off.", func(t *Telemetry) *string { return &t.OTLP }, checked(checkOptionalURL)),
	text("vocabulary", "Names of attributes and metrics.", func(t *Telemetry) *string { return &t.Vocabulary },
		def("genai-2026"), oneOf("genai-2026", "genai-2025")),
	ref(kindRatio, "sample", "Share of the traces that begin here and are kept. A client's decision for its own holds.", func(t *Telemetry) *Ratio { return &t.Sample }, def("100%")),
	length("every", "Between sendings of metrics.", func(t *Telemetry) *time.Duration { return &t.Every }, def("15s"), within(1, 3600)),
	text("authorizationFile", "File with the Authorization header that the receiver asks for.", func(t *Telemetry) *string { return &t.AuthorizationFile }),
}}

// isZero reports whether the value behind a field's pointer is the zero value.
func isZero(p any) bool { return reflect.ValueOf(p).Elem().IsZero() }
