// SPDX-License-Identifier: Apache-2.0

package diagnose

// Pool is an InferencePool of either API group.
type Pool struct {
	Object
	Group            string
	MatchLabels      Pairs         // selector.matchLabels, or the flat selector
	FlatSelector     bool          // the selector is a plain map
	SelectorLine     int           //
	TargetPorts      []Field[int]  // spec.targetPorts[].number
	TargetPortNumber Field[int]    // spec.targetPortNumber
	Extension        *PickerRef    // spec.extensionRef
	Picker           *PickerRef    // spec.endpointPickerRef
	ExtensionKey     Field[string] // place of the key extensionRef
	SelectorKey      Field[string] // place of the key selector
	SpecAt           MapAt
}

// PickerRef is a reference of a pool to its endpoint picker.
type PickerRef struct {
	Group, Kind, Name string
	Port              Field[int] // port.number, or portNumber
	FailureMode       Field[string]
	At                MapAt
	Line              int
}

// Route is an HTTPRoute or GRPCRoute.
type Route struct {
	Object
	Backends []BackendRef
	Timeouts []RouteTimeout
}

// BackendRef is one backend of a route.
type BackendRef struct {
	Group, Kind, Namespace, Name Field[string]
	Port                         Field[int]
	Line                         int
}

// RouteTimeout is one timeouts.request or timeouts.backendRequest.
type RouteTimeout struct {
	Name string
	V    Field[float64] // seconds; 0 means none
}

// Service is a core Service.
type Service struct {
	Object
	Selector Pairs
	Ports    []ServicePort
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name   string
	Port   int
	Target string
	Line   int
}

// Monitor is a PodMonitor or ServiceMonitor.
type Monitor struct {
	Object
	Selector   Pairs
	Exprs      bool     // the selector has matchExpressions, which are not evaluated
	Namespaces []string // namespaceSelector.matchNames
	AnyNS      bool
	Endpoints  []MonitorEndpoint
}

// MonitorEndpoint is one endpoint of a monitor.
type MonitorEndpoint struct {
	Port Field[string]
	Line int
}

// PDB is a PodDisruptionBudget.
type PDB struct {
	Object
	Selector         Pairs
	Exprs            bool
	MinAvail, MaxUnv Field[string]
}

// Quota is a ResourceQuota.
type Quota struct {
	Object
	Hard []Resource
}

// AdapterRule is one rule of a prometheus-adapter configuration.
type AdapterRule struct {
	File         string
	Line         int
	SeriesQuery  Field[string]
	MetricsQuery Field[string]
	As           string
}

// Envoy is an Envoy configuration: what it says of an external processor, of the
// clusters behind it and of the limits in time.
type Envoy struct {
	Object
	ExtProcs []ExtProc
	Clusters []EnvoyCluster
	Routes   []EnvoyRoute
	HCMs     []EnvoyHCM
}

// ExtProc is one ext_proc filter.
type ExtProc struct {
	Cluster      string
	FailOpen     Field[bool]
	RequestBody  Field[string]
	ResponseBody Field[string]
	Line         int
}

// EnvoyCluster is one cluster.
type EnvoyCluster struct {
	Name           string
	OriginalDst    bool
	HeaderName     string // http_header_name of an ORIGINAL_DST cluster
	OverrideHost   bool
	HealthChecks   int
	PanicThreshold Field[float64] // percent; 50 where unset
	Line           int
	PanicLine      int
	At             MapAt
}

// EnvoyRoute is one route of a virtual host.
type EnvoyRoute struct {
	Cluster string
	Timeout Field[float64] // seconds; 0 means none; 15 where unset
	Retries bool
	Line    int
	At      MapAt
}

// EnvoyHCM is one HTTP connection manager.
type EnvoyHCM struct {
	StreamIdle    Field[float64] // seconds; 0 means none; 300 where unset
	RemoveHeaders []Field[string]
	HasExtProc    bool
	Line          int
}

// ModelPolicy is an object that scales a model by its name.
type ModelPolicy struct {
	Object
	Model Field[string]
}

// Set is everything that was read: the objects of all files and what was observed
// of the running system.
type Set struct {
	HPAs         []HPA
	Scaled       []ScaledObject
	Workloads    []Workload
	Pools        []Pool
	Routes       []Route
	Services     []Service
	Monitors     []Monitor
	PDBs         []PDB
	Quotas       []Quota
	AdapterRules []AdapterRule
	Envoys       []Envoy
	Policies     []ModelPolicy
	Objects      int // all objects that were read, known kinds or not

	Seen Observed
}

// Empty reports whether nothing was read that a rule could look at.
func (s *Set) Empty() bool {
	o := &s.Seen
	return s.Objects == 0 && len(o.Starts)+len(o.Nodes)+len(o.Pods)+len(o.Metrics)+len(o.Streams)+len(o.Vectors)+len(o.Events)+len(o.HPA)+len(o.Models) == 0 &&
		!o.GPUQuota.Set && !o.PolicyModel.Set
}

// Observed is what is known of the running system. All of it is optional, and what
// is absent is unknown.
type Observed struct {
	Starts      []Start
	Nodes       []NodeGPUs
	Pods        []SeenPod
	Metrics     []SeenMetric
	Streams     []SeenStream
	Vectors     []Vector
	Events      []Event
	HPA         []SeenHPA
	CPUCores    Field[float64] // what one replica uses
	GPUQuota    Field[int]     // of the namespace
	GPUsPer     Field[int]     // per replica
	Min, Max    Field[int]
	Ready, Spec Field[int]
	Models      []string // what the replicas list at /v1/models
	PolicyModel Field[string]
	Settings    []Setting // the named numbers of a policy
	Notes       []string  // lines of a controller's log
	File        string
}

// Setting is one named number of a policy.
type Setting struct {
	Name string // lower case with underscores
	V    Field[float64]
}

// Setting returns the first of the named settings that is there.
func (o *Observed) Setting(names ...string) (Field[float64], bool) {
	for _, n := range names {
		for _, s := range o.Settings {
			if s.Name == n {
				return s.V, true
			}
		}
	}
	return Field[float64]{}, false
}

// Start is the measured start-up time of one replica.
type Start struct {
	Name    string // what was started; "" where the file does not say
	Seconds float64
}

// NodeGPUs is what a node has and who uses it.
type NodeGPUs struct {
	Name string
	GPUs int
	Used int
}

// SeenPod is a running pod.
type SeenPod struct {
	Name   string
	Labels Pairs
}

// SeenMetric is the distribution of one metric as it was measured.
type SeenMetric struct {
	Name          string
	Min, P50, Max Field[float64]
}

// SeenStream is one running stream, in seconds.
type SeenStream struct {
	Pod        string
	Age, Total Field[float64]
	Streams    Field[int]
}

// Vector is an answer of Prometheus to an instant query.
type Vector struct {
	File   string
	Series []Series
	Error  string
}

// Series is one element of a Vector.
type Series struct {
	Labels Pairs
	Value  Field[float64]
}

// SeenHPA is the state of a HorizontalPodAutoscaler as somebody copied it.
type SeenHPA struct {
	File           string
	Line           int
	Object         string
	Spec, Ready    Field[int]
	Max            Field[int]
	Recommendation Field[int]
	Metric         string
	TargetType     string
	Value, Target  Field[float64]
	Rows           []HPARow
	Conditions     []Condition
}

// HPARow is one line under "Metrics:" in what kubectl describe prints.
type HPARow struct {
	Name, Kind      string // "vllm_kv_cache_usage_perc", "pods"
	Current, Target string
	Line            int
}

// SlowestStart returns the longest observed start-up time in seconds, of the
// starts whose name matches where any does, and whether there is one.
func (o *Observed) SlowestStart(match string) (float64, bool) {
	best, ok := 0.0, false
	named := 0.0
	hasNamed := false
	for _, s := range o.Starts {
		if s.Name != "" && match != "" && containsFold(match, s.Name) {
			named, hasNamed = max(named, s.Seconds), true
		}
		if s.Name == "" {
			best, ok = max(best, s.Seconds), true
		}
	}
	if hasNamed {
		return named, true
	}
	if ok {
		return best, true
	}
	for _, s := range o.Starts {
		best, ok = max(best, s.Seconds), true
	}
	return best, ok
}

// LongestStream returns the longest time in seconds that a running stream is
// expected to take in all, and whether one is known.
func (o *Observed) LongestStream() (float64, bool) {
	best, ok := 0.0, false
	for _, s := range o.Streams {
		switch {
		case s.Total.Set:
			best, ok = max(best, s.Total.V), true
		case s.Age.Set:
			best, ok = max(best, s.Age.V), true
		}
	}
	return best, ok
}

// Metric returns what was observed of a metric, by its name or by a name that
// differs only in prefix and separators.
func (o *Observed) Metric(name string) (SeenMetric, bool) {
	want := normMetric(name)
	for _, m := range o.Metrics {
		if normMetric(m.Name) == want {
			return m, true
		}
	}
	for _, m := range o.Metrics {
		if n := normMetric(m.Name); hasSuffixWord(n, want) || hasSuffixWord(want, n) {
			return m, true
		}
	}
	return SeenMetric{}, false
}
