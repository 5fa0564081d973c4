// SPDX-License-Identifier: Apache-2.0

// Package config turns penstock.yaml into a Config: strictly, with every error at
// once, each with its place in the file, an excerpt and a suggestion.
//
// One table (table.go) describes every key. The decoder, the JSON schema, the
// effective view of `penstock config show` and the reload diff all read it, so
// they cannot disagree. Secrets never stand in the file: a key names the file
// that holds one, and Secret prints as a mask everywhere.
//
// A Config is read-only once loaded; callers never write to it.
package config

import "time"

// Config is a whole penstock.yaml with its defaults filled in.
type Config struct {
	Listen       Listen
	TLS          TLS
	Relay        Relay
	Limits       Limits
	Pools        []Pool
	Auth         Auth
	Tenants      []Tenant
	Rollouts     []Rollout
	Logging      Logging
	Prices       []Price
	Share        Share
	Accelerators Accelerators
	StateDir     string // what a restart should find again; "": nothing is kept
	Journal      Journal
	Telemetry    Telemetry
	Kube         Kubernetes

	file string          // where it came from; "" for defaults
	set  map[string]bool // paths that the file names, as opposed to defaults
}

// Listen holds the listeners, each host:port; "" is off.
type Listen struct {
	HTTP  string // gateway
	Admin string // admin API and console
	EPP   string // endpoint picker
	// AdminHosts are names that clients of the admin API may call it by, where it is
	// not on loopback.
	AdminHosts []string
	// Prometheus is where metrics and health are scraped, beside Admin.
	Prometheus string
	// Metrics is the aggregated metrics API for HPAs, KEDA the external scaler.
	Metrics, KEDA string
	// KEDAPlaintext lets the external scaler listen beyond loopback without TLS.
	KEDAPlaintext bool
}

// Limits bound what one request may ask for, and what one client may hold. Those of
// tenants are in Tenant.
type Limits struct {
	BodyBytes   Bytes // one body
	BodiesBytes Bytes // all bodies that are here at a time
	HeadBytes   Bytes // the head of a request
	Depth       int   // levels of arrays and objects in a body
	MaxTokens   int   // that a client may ask for in one answer
	Answers     int   // n and best_of
	Prompts     int   // in one batch of completions
	Logprobs    int   // alternatives for each token
	Tools       int
	SchemaBytes Bytes // tool definitions, and each schema or grammar
	SchemaDepth int
	Media       int   // images, sounds and files
	MediaBytes  Bytes // each
	MediaURLs   []string
	Parts       int // of a multipart form

	Connections           int // 0: no limit, as with the three below
	ConnectionsPerAddress int
	ConnectionsPerKey     int
	StreamsPerKey         int
}

// Relay is how answers are carried from replicas to clients.
type Relay struct {
	Streams   string        // portable, epoll
	FirstByte time.Duration // longest wait for the first byte of an answer
	Idle      time.Duration // longest silence within an answer
}

// TLS is the gateway's certificate. Cert and Key come together or not at all.
type TLS struct {
	Cert, Key string // PEM files
	ClientCA  string // PEM file; when set, clients must present a certificate of this CA
}

// Pool is a set of interchangeable replicas and how requests reach them.
type Pool struct {
	Name     string
	Models   []Model // empty: whatever the replicas list
	Replicas Replicas
	Engine   Engine
	SLO      SLO
	Route    Route
	Scale    Scale
	Fallback []string // names of pools, in order
	// FallbackWait is the longest predicted wait for a first token that is not worth a
	// fallback; 0: only a pool that takes nothing is left.
	FallbackWait time.Duration
}

// Model is one model of a pool, by the name that its engines know.
type Model struct {
	Name     string
	Aliases  []string // other names that clients may use
	Adapters []string // LoRA adapters on this base model
	Tenants  []string // who may use it; empty: everybody
}

// Replicas says where the replicas of a pool are found. Exactly one field is set.
type Replicas struct {
	Static        []string // base URLs
	File          string   // a file with one replica a line, or a YAML or JSON list
	DNS           string   // URL whose host is looked up; a host that starts with "_" is an SRV name
	Selector      Selector
	InferencePool string // namespace/name
	Process       Process
}

// Selector picks Kubernetes pods by label.
type Selector struct {
	Namespace string
	Labels    []string // key=value
	Port      int
}

// Process makes Penstock start replicas on this machine.
type Process struct {
	Command   []string
	Max       int
	Keep      bool          // leave them running when Penstock stops
	StopGrace time.Duration // from SIGTERM to SIGKILL
}

// Engine describes the model server that the replicas run.
type Engine struct {
	Profile    string // name of an engine profile, a file, or "auto"
	KVEvents   string // auto, off, or a ZMQ endpoint
	Tokens     string // text, exact
	TLS        EngineTLS
	APIKeyFile string
	Messages   string // the Messages API: auto, native, translate
	// LoadAdapters is the path of an adapter as the replicas see it, {name} standing
	// for its name; empty: no adapter is ever loaded.
	LoadAdapters string
}

// EngineTLS is how replicas are trusted.
type EngineTLS struct {
	CA string // PEM file; "" is the system's roots
}

// SLO is what users are promised.
type SLO struct {
	TTFT time.Duration // time to first token
	ITL  time.Duration // time between tokens
}

// Route is how requests are spread over a pool.
type Route struct {
	Policy string
	Shadow string // a second policy that decides without effect; "" none
	// SessionHeaders name a session.
	SessionHeaders []string
	// Queue is on or off: the router's own queue, which holds requests that replicas
	// would only make wait. QueueMost is how much longer it may hold one than first
	// come first served would have; three times as long is always allowed.
	Queue     string
	QueueMost time.Duration
	// HoldFor is how long a request may wait while no replica takes it; 0: it is
	// refused at once.
	HoldFor   time.Duration
	HoldMax   int           // most requests that wait for any replica of a scaled pool
	Heartbeat time.Duration // between comments in a stream whose request waits; 0: none
}

// Scale bounds and steers the autoscaler of a pool.
type Scale struct {
	Mode       string // recommend, act
	Min, Max   int    // replicas
	Attainment Ratio  // share of requests that meet the SLO
	Hand       string // auto, process, scale, hpa, keda

	StartUp          time.Duration // believed before any was seen; 0: the profile's
	IdleAfter        time.Duration // without requests, before a pool with Min 0 goes to zero
	ClientTimeout    time.Duration // what waits longer is no demand
	StepUp, StepDown int           // replicas; 0: no bound
	StartsPerMinute  int           // 0: no bound
	Reversals        int           // an hour; 0: no bound
	SleepFor         time.Duration // of replicas that are not needed; 0: they end at once
	Target           ScaleTarget
	Wake             string        // owner, scale: who moves the object out of zero
	Floors           []Floor       // minima by time of day, in TimeZone
	TimeZone         string        // "": UTC
	Accelerators     int           // most that the replicas take together; 0: no bound
	Priority         int           // among pools that share accelerators; the higher are served first
	DrainFor         time.Duration // longest wait for requests on a replica that is to go
}

// Auth says who may enter. Empty: anonymous, and only on loopback.
type Auth struct {
	KeysFile string
	JWT      []JWT
	EPP      string // of the endpoint picker's requests: required, optional
	Admin    string // of the admin API: local, keys
	// EndStreams ends requests under way when their key is revoked or expires.
	EndStreams bool
}

// JWT is one issuer of tokens.
type JWT struct {
	Issuer      string
	Audience    string
	TenantClaim string
	RoleClaim   string // in the admin API; "": tokens have no role

	Login           bool   // people may sign in to the console there; Audience is then the id of the client
	LoginSecretFile string // secret of the client; "": a public client
	LoginRedirect   string // address of /login/back as browsers see it; "": as the browser came
}

// Tenant is one paying or otherwise separate user of the fleet.
type Tenant struct {
	Name   string
	Weight float64 // share of a contended fleet, relative to the other tenants
	Limits []Limit
	// OutputCap is the most that is reserved for an answer, in tokens; 0: as the
	// client asked, or as answers were so far.
	OutputCap int
	// QueueCap is how many requests of the tenant may wait for a replica at a time;
	// 0: no cap.
	QueueCap int
	// Deadline for the first token, from arrival; 0: none.
	Deadline  time.Duration
	Logging   string   // none, metadata, hash, redacted, full
	Pools     []string // that its prompts may reach; empty: all
	CacheSalt string   // shared, tenant, user
}

// Logging says what of prompts and answers is recorded, and where. What may be
// recorded at most is the strictest of Tenant.Logging, the key's and the client's wish.
type Logging struct {
	Sinks       []LogSink
	Rules       []LogRule
	Redact      []string
	HashKeyFile string
	MaxText     Bytes
}

// LogSink is one place for entries: a directory, or the receiver of telemetry.
type LogSink struct {
	Name     string
	Dir      string
	MaxAge   time.Duration
	MaxBytes Bytes
	OTLP     bool
}

// LogRule chooses the level of the requests that it matches.
type LogRule struct {
	Tenants, Keys, Models, Surfaces []string
	Level                           string
	Sample                          Ratio
	Sinks                           []string
}

// Rollout is two versions behind one name.
type Rollout struct {
	Name     string
	Model    string // the name that clients ask for
	Baseline Arm
	Canary   Arm
	Sticky   string   // tenant, user, session
	Steps    []string // weights of the canary, rising, such as 5%
	Every    time.Duration
	Auto     bool
	Guard    Guard
	Shadow   Shadow
}

// Arm is one version of a rollout.
type Arm struct {
	Model  string  // or adapter
	Pool   string  // "": the one that the name leads to
	Weight float64 // relative to that of the other one; both 0: the first step
}

// Guard is when a canary is as good as its baseline.
type Guard struct {
	TTFT, ITL  float64 // largest ratio
	Errors     Ratio   // largest difference
	Samples    int
	Confidence Ratio
}

// Shadow copies requests to the canary; the answers are dropped.
type Shadow struct {
	Share         Ratio
	TokensPerHour int
	Concurrent    int
}

// Limit is one quota, or several with one period. A bucket of each amount refills
// over Per; with Every it is full at each date. Amounts of 0 are no limit.
type Limit struct {
	Per          time.Duration
	Every        string // day, month (UTC); "": Per
	Tokens       int    // prompt and output
	PromptTokens int
	OutputTokens int
	Requests     int
	Concurrent   int     // requests at a time; needs no period
	Budget       float64 // in the currency of the prices
	Scope        string  // tenant, or key: each key by itself
	Model        string  // "": all together; "*": each by itself; or a name
	HardStop     bool    // end a running stream where it would go into debt
}

// Price is what tokens of a model cost, for a million of them.
type Price struct {
	Model  string // "*": whatever no other price names
	Prompt float64
	Cached float64 // prompt tokens that came from a cache; 0 with Prompt set: as Prompt
	Output float64
}

// Share is how routers tell each other what they sent.
type Share struct {
	Peers      string // auto, off, or comma-separated addresses
	Listen     string // where other routers dial; "": nothing is heard
	SecretFile string // secret that all routers know
	Redis      string // host:port or redis:// URL without credentials
	// Of the Redis server: a user and a file with the password, a PEM file with the CA
	// (which turns TLS on), and whether it is a cluster.
	RedisUser, RedisPasswordFile, RedisCA string
	RedisCluster                          bool
}

// Journal keeps the records of decisions.
type Journal struct {
	Memory   int    // records in the ring
	Dir      string // directory of JSONL files; "" keeps nothing on disk
	Events   bool   // keep a tape of all events there, too
	MaxAge   time.Duration
	MaxBytes Bytes
}

// Telemetry exports traces and metrics.
type Telemetry struct {
	OTLP       string // URL of an OTLP/HTTP receiver; "" is off
	Vocabulary string
	Sample     Ratio         // share of the traces that begin here
	Every      time.Duration // between sendings of metrics
	// AuthorizationFile holds the Authorization header for the receiver.
	AuthorizationFile string
}

// File returns the name of the file that the configuration came from, "" for
// defaults.
func (c *Config) File() string { return c.file }

// IsSet reports whether the file names path ("pools[0].route.policy") as opposed
// to leaving it at its default.
func (c *Config) IsSet(path string) bool { return c.set[path] }

// Default returns the configuration of an empty file.
func Default() *Config {
	c := &Config{set: map[string]bool{}}
	applyDefaults(rootObject, c)
	return c
}

// DefaultPool returns a pool with every key at its default.
func DefaultPool(name string) Pool {
	p := Pool{}
	applyDefaults(poolObject, &p)
	p.Name = name
	return p
}
