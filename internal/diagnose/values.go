// SPDX-License-Identifier: Apache-2.0

package diagnose

// Span is a place in one line of a file. Line and Col are 1-based, Len counts
// bytes. The zero Span is no place.
type Span struct{ Line, Col, Len int }

// Field is one value of a manifest with the place where it is written. Set is
// false where the file does not have it, and V is then meaningless: defaults are
// the rule's business, since they differ by kind.
type Field[T any] struct {
	V    T
	Set  bool
	Text string // as written, without quotes
	At   Span   // the value
	Key  Span   // its key
}

// Or returns the value, or def where it is not set.
func (f Field[T]) Or(def T) T {
	if f.Set {
		return f.V
	}
	return def
}

// Line returns the line of the value, or def where it is not set.
func (f Field[T]) Line(def int) int {
	if f.Set && f.At.Line > 0 {
		return f.At.Line
	}
	return def
}

// MapAt is where a mapping is written and how a key can be added to it.
type MapAt struct {
	Line, Col int  // of the first key, or of the opening brace
	Flow      bool // written as {a: b}
	Indent    int  // column of its keys, 0-based; block style only
	After     int  // a line may be inserted after this line, 0 before the first; block style only, -1: nowhere
}

// Pair is one key with its value where the keys are free (labels, metadata).
type Pair struct {
	Name  string
	Value Field[string]
}

// Pairs are pairs in the order of the file.
type Pairs []Pair

// Get returns the value of name; an unset Field where it is absent.
func (ps Pairs) Get(name string) Field[string] {
	for i := range ps {
		if ps[i].Name == name {
			return ps[i].Value
		}
	}
	return Field[string]{}
}

// Object is what every manifest has: a kind, a name and a place.
type Object struct {
	File             string
	Line             int // of the kind, or of the first line where there is none
	Start, End       int // first and last line of the document that holds it
	Alone            bool
	APIVersion, Kind string
	APIAt            Field[string] // APIVersion with its place
	Keys             []Key         // of scalers: those at places where the API fixes them
	Namespace, Name  string
	Annotations      Pairs
	Labels           Pairs
}

// Ref names the object: "Deployment prod/chat".
func (o *Object) Ref() string {
	n := o.Name
	if o.Namespace != "" && n != "" {
		n = o.Namespace + "/" + n
	}
	switch {
	case o.Kind == "" && n == "":
		return "fragment"
	case o.Kind == "":
		return n
	case n == "":
		return o.Kind
	}
	return o.Kind + " " + n
}

// TargetRef is a scaleTargetRef or another reference to an object by name.
type TargetRef struct {
	APIVersion, Kind, Name string
	Line                   int
}

// HPA is a HorizontalPodAutoscaler of any API version, with its status if the
// file has one.
type HPA struct {
	Object
	Target     TargetRef
	Min, Max   Field[int]
	Metrics    []Metric
	Behavior   Behavior
	ListAt     MapAt // the key metrics: its line, its column, and After is the last line of the list; block style only
	SpecAt     MapAt
	Status     *HPAStatus
	FromScaler bool // made by KEDA, which owns it
}

// MetricType is the kind of a metric of an HPA.
type MetricType string

// Metric types of autoscaling/v2.
const (
	MetricResource  MetricType = "Resource"
	MetricContainer MetricType = "ContainerResource"
	MetricPods      MetricType = "Pods"
	MetricObject    MetricType = "Object"
	MetricExternal  MetricType = "External"
)

// Target types of autoscaling/v2 and of KEDA triggers.
const (
	TargetValue       = "Value"
	TargetAverage     = "AverageValue"
	TargetUtilization = "Utilization"
)

// Metric is one entry of spec.metrics.
type Metric struct {
	Type       MetricType
	Name       Field[string]
	Selector   Pairs
	Described  TargetRef
	TargetType Field[string]  // as written; see Kind
	Target     Field[float64] // the quantity, or the utilisation in percent
	Kind       string         // effective target type
	TargetAt   MapAt
	Line       int
}

// Behavior is behavior.scaleUp and behavior.scaleDown.
type Behavior struct {
	Set      bool
	Up, Down ScalingRules
}

// ScalingRules are the limits of one direction.
type ScalingRules struct {
	Set       bool
	Window    Field[int] // seconds
	Policies  []ScalePolicy
	Select    Field[string]
	Tolerance Field[float64]
}

// ScalePolicy is one step limit: Value pods or percent in Period seconds.
type ScalePolicy struct {
	Type          string
	Value, Period int
	Line          int
}

// HPAStatus is what the controller last wrote.
type HPAStatus struct {
	Current, Desired Field[int]
	Conditions       []Condition
	Line             int
}

// Condition is a Kubernetes condition.
type Condition struct {
	Type, Status, Reason, Message string
	Line                          int
}

// ScaledObject is a KEDA ScaledObject.
type ScaledObject struct {
	Object
	Target                 TargetRef
	Min, Max, Idle         Field[int]
	Polling, Cooldown      Field[int] // seconds
	InitialCooldown        Field[int]
	Fallback               *Fallback
	Modifiers              *Modifiers
	Behavior               Behavior
	Triggers               []Trigger
	ListAt                 MapAt // the key triggers, as ListAt of an HPA
	SpecAt                 MapAt
	Paused, PausedReplicas bool
}

// Fallback is spec.fallback of a ScaledObject.
type Fallback struct {
	Threshold, Replicas Field[int]
	Behavior            Field[string]
	Line                int
}

// Modifiers are advanced.scalingModifiers of a ScaledObject.
type Modifiers struct {
	Formula, Target, ActivationTarget, MetricType Field[string]
	Line                                          int
}

// Trigger is one trigger of a ScaledObject.
type Trigger struct {
	Type       Field[string]
	Name       string
	MetricType Field[string] // AverageValue where unset
	Metadata   Pairs
	At, MetaAt MapAt
	Line       int
}

// Workload is anything that makes pods: Deployment, StatefulSet, ReplicaSet, Pod,
// LeaderWorkerSet, InferenceService, or a fragment of one of these.
type Workload struct {
	Object
	Fragment bool
	Replicas Field[int]
	// ProgressDeadline is progressDeadlineSeconds of a Deployment; 600 where unset.
	ProgressDeadline Field[int]
	Strategy         Strategy
	Selector         Pairs
	Pod              Pod
	Scaler           ServiceScaler // autoscaling that the kind itself carries (KServe, Knative)
	SpecAt           MapAt
}

// Strategy is how a Deployment replaces its pods.
type Strategy struct {
	Set            bool
	Type           Field[string]
	Surge, Unavail Field[string]
	At             MapAt
	Line           int
}

// ServiceScaler is the autoscaling of an InferenceService or a Knative service.
type ServiceScaler struct {
	Min, Max Field[int]
	Metric   Field[string] // cpu, memory, concurrency, rps
	Target   Field[float64]
	Class    Field[string] // hpa, kpa, keda, external, none
	Line     int
}

// Pod is a pod template.
type Pod struct {
	Labels     Pairs
	Grace      Field[int] // terminationGracePeriodSeconds
	Containers []Container
	Init       []Container
	Volumes    []Volume
	SpecAt     MapAt
	Line       int
}

// Volume is the little that rules need to know of a volume.
type Volume struct {
	Name      string
	Memory    bool // emptyDir with medium Memory
	Empty     bool // any emptyDir
	SizeLimit Field[float64]
}

// Container is one container of a pod.
type Container struct {
	Name                         string
	Image                        Field[string]
	Command, Args                []Field[string]
	CommandFlow, ArgsFlow        bool // written as [a, b]
	Env                          Pairs
	Ports                        []ContainerPort
	Requests, Limits             []Resource
	Startup, Liveness, Readiness *Probe
	PreStop                      *Hook
	At                           MapAt
	Line                         int
}

// ContainerPort is a port that a container declares.
type ContainerPort struct {
	Name string
	Port int
}

// Resource is one line of requests or limits; V in base units (cores, bytes, 1).
type Resource struct {
	Name string
	Q    Field[float64]
}

// Hook is a preStop hook. Sleep is known where the hook sleeps.
type Hook struct {
	Sleep Field[float64] // seconds
	Line  int
}

// ProbeKind is how a probe asks.
type ProbeKind string

// Probe kinds.
const (
	ProbeHTTP ProbeKind = "httpGet"
	ProbeTCP  ProbeKind = "tcpSocket"
	ProbeGRPC ProbeKind = "grpc"
	ProbeExec ProbeKind = "exec"
)

// Probe is a startup, liveness or readiness probe. The defaults are those of the
// kubelet: delay 0, period 10, timeout 1, failures 3.
type Probe struct {
	Kind                            ProbeKind
	Path                            Field[string]
	Port                            Field[string]
	Delay, Period, Timeout, Failure Field[int]
	At                              MapAt
	KindAt                          Span  // the key of the handler
	HandlerAt                       MapAt // the handler itself
	Line                            int
}

// Budget is how long the probe waits before its verdict counts, in seconds:
// initialDelaySeconds + failureThreshold x periodSeconds.
func (p *Probe) Budget() float64 {
	return float64(p.Delay.Or(0) + p.Failure.Or(3)*p.Period.Or(10))
}

// Window is for how long something that was healthy may fail the probe, in
// seconds: failureThreshold x periodSeconds.
func (p *Probe) Window() float64 { return float64(p.Failure.Or(3) * p.Period.Or(10)) }
