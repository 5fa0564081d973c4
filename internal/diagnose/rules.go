// SPDX-License-Identifier: Apache-2.0

package diagnose

import "slices"

// Rule describes one code: what the finding means, when it fires, when it does
// not, what to do. The reference pages are generated from this table.
type Rule struct {
	Code     string
	Severity Severity // the usual one; a check may say less
	Area     string   // scaling, serving, rollout, routing, start, traffic
	Title    string
	Means    string
	Fires    string
	Quiet    string
	Remedy   string
}

// Rules returns all rules, sorted by code.
func Rules() []Rule {
	all := slices.Concat(scalingRules[:], servingRules[:], routingRules[:], startRules[:], historyRules[:], trafficRules[:])
	slices.SortFunc(all, func(a, b Rule) int {
		switch {
		case a.Code < b.Code:
			return -1
		case a.Code > b.Code:
			return 1
		}
		return 0
	})
	return all
}

// RuleOf returns the rule of a code.
func RuleOf(code string) (Rule, bool) {
	for _, table := range [...][]Rule{scalingRules[:], servingRules[:], routingRules[:], startRules[:], historyRules[:], trafficRules[:]} {
		for i := range table {
			if table[i].Code == code {
				return table[i], true
			}
		}
	}
	return Rule{}, false
}

// New returns a finding of a code with the severity and page of its rule. It is
// how the sub-packages make findings.
func New(code, object, file string, line int) Finding {
	f := Finding{Code: code, Object: object, File: file, Line: line, Docs: DocsOf(code), Severity: Warning}
	if r, ok := RuleOf(code); ok {
		f.Severity = r.Severity
	}
	return f
}

var scalingRules = [...]Rule{
	{"cpu-signal", Error, "scaling", "An autoscaler follows CPU",
		"A model server at its limit uses 5 to 15 % of the host's CPU, and about the same when it idles. A CPU target is therefore never reached, and the count stays at the minimum while requests wait; or, with a small request, it is always exceeded and the count stays at the maximum.",
		"A Resource metric or trigger on cpu is the only signal and the target serves a model, or nothing is known of the target. KServe and Knative objects with metric cpu count as well.",
		"The object follows a metric of the engine too (an HPA takes the largest), or the target is a router, a gateway or another thing around the model servers.",
		"Scale on requests waiting per replica, with KV-cache use as second signal."},
	{"memory-signal", Error, "scaling", "An autoscaler follows memory",
		"A model server reserves its memory when it starts and never gives it back. The reading says nothing about load and never falls.",
		"A Resource metric, trigger or query on memory is the only signal and the target serves a model.",
		"An engine metric is followed too, or the target does not serve a model.",
		"Scale on requests waiting per replica, with KV-cache use as second signal."},
	{"gpu-utilisation-signal", Error, "scaling", "An autoscaler follows GPU utilisation",
		"GPU utilisation is the share of time in which any kernel runs. One request keeps it near 100 %, so it cannot tell a full replica from one with room.",
		"DCGM_FI_DEV_GPU_UTIL, duty_cycle or a metric of that kind is the only signal.",
		"An engine metric is followed too.",
		"Scale on requests waiting per replica, with KV-cache use as second signal."},
	{"request-rate-signal", Warning, "scaling", "An autoscaler follows requests per second",
		"Requests differ in work by three orders of magnitude, so a rate of requests does not measure load, and the rate of finished ones falls under overload.",
		"A rate of requests is the only signal and the target serves a model.",
		"An engine metric or a rate of tokens is followed too.",
		"Scale on requests waiting per replica, or on tokens per second."},
	{"target-unreachable", Error, "scaling", "The target can never be reached",
		"The metric cannot exceed the target: a ratio from 0 to 1 compared with 40, seconds compared with a number of milliseconds, or a share so near to 1 that the tolerance swallows the rest.",
		"The unit of the metric, or what was observed of it, lies below the target.",
		"The unit is unknown and nothing was observed.",
		"Write the target in the unit of the metric; quantities such as 800m are thousandths."},
	{"target-always-exceeded", Error, "scaling", "The target is always exceeded",
		"Any load exceeds the target, so the scaler runs at its maximum: 50 microseconds of queueing, 0.8 of a percentage.",
		"The unit of the metric, or the smallest value that was observed, lies above the target.",
		"The unit is unknown and nothing was observed.",
		"Write the target in the unit of the metric, in the range of the latency budget."},
	{"threshold-not-a-number", Error, "scaling", "KEDA cannot read the threshold",
		"KEDA's Prometheus trigger takes a plain number. A Kubernetes quantity such as 800m is refused and the scaler does not start.",
		"The threshold is no number.", "It is a placeholder of a template.", "Write a plain number."},
	{"value-multiplies", Error, "scaling", "Type Value on something that does not shrink",
		"For type Value the HPA multiplies the ready replicas by metric/target. A total over all replicas, or a number of replicas, does not fall when one is added, so the count doubles at every sync until the maximum. Not-ready replicas are not counted, so a fleet that loads is scaled down.",
		"Type Value on a count, on a sum, or on a metric that is a number of replicas already.",
		"The metric is an average, a share, a latency or a quantile; a Pods metric.",
		"Use AverageValue."},
	{"scale-up-unbounded", Note, "scaling", "Nothing limits a step up",
		"Without behavior.scaleUp a single reading doubles the fleet at the next sync.",
		"Together with value-multiplies, where one more request is twice the target.",
		"behavior.scaleUp is set.", "Give scaleUp a window and a policy."},
	{"multiple-elements", Error, "scaling", "The query returns one series per pod",
		"KEDA refuses a query with more than one series. It works with one pod and fails with the second: the scaler freezes when it is needed.",
		"The query is not aggregated to one series.",
		"It is aggregated, its labels are all fixed, or its cardinality cannot be told from its text.",
		"Wrap the query in sum(), or max() for shares."},
	{"average-value-semantics", Warning, "scaling", "The threshold is per replica",
		"With one summed series and AverageValue the threshold is what one replica may have: desired = ceil(sum/threshold).",
		"Together with multiple-elements, since the fix changes what the threshold means.",
		"The query was aggregated already.", "Read the threshold as a value per replica."},
	{"averaged-twice", Error, "scaling", "An average is divided by the replicas once more",
		"AverageValue ignores the count: desired = ceil(value/target). An average or a latency does not grow with the pool, so the desired count is capped (0.97 over 0.8 is 2, for ever) or falls.",
		"avg(), a quantile, a ratio of sums or a published average with AverageValue.",
		"A sum; a Pods metric, which the HPA averages itself; a number of replicas.",
		"Use type Value, or a sum."},
	{"no-fallback", Warning, "scaling", "No data reads as no load",
		"KEDA reads an empty answer of Prometheus as 0 unless ignoreNullValues is false. When Prometheus loses its targets at the peak, the fleet is scaled to its minimum.",
		"Every trigger reads an empty answer as zero.",
		"A trigger reports an error instead (ignoreNullValues false): the HPA then never scales down.",
		"Set ignoreNullValues to \"false\" and a fallback with currentReplicasIfHigher."},
	{"fallback-off", Error, "scaling", "The fallback never acts",
		"With scalingModifiers and a target that is no integer KEDA drops the fallback without saying so. cpu and memory triggers have none.",
		"A fallback beside a fractional scalingModifiers.target, or beside cpu and memory triggers alone.",
		"The target is an integer.", "Scale formula and target so that the target is an integer."},
	{"cooldown-only-to-zero", Note, "scaling", "cooldownPeriod does nothing here",
		"cooldownPeriod delays the step to zero only. Between the minimum and more replicas the HPA's scale-down window rules.",
		"cooldownPeriod is set, differs from 300, minReplicaCount is at least 1 and no scale-down window is set.",
		"The window is set, or the object scales to zero.", "Set behavior.scaleDown.stabilizationWindowSeconds."},
	{"cooldown-below-start", Warning, "scaling", "The cooldown is shorter than a start",
		"KEDA's cooldown does not know that a replica loads: it deletes the replica that it has just started.",
		"The object scales to zero and the cooldown is below the observed start-up time, or below 30 s where none was observed.",
		"The cooldown is longer, or the start-up time is unknown.", "Set cooldownPeriod to twice the start-up time."},
	{"window-below-start", Warning, "scaling", "The scale-down window is shorter than a start",
		"A window that is shorter than a start lets noise take replicas away that the next rise has to load again: the fleet flaps.",
		"The window is below the observed start-up time, or below 30 s where none was observed.",
		"A policy lets go of one replica a minute at most; the start-up time is unknown.", "Set the window to twice the start-up time, at least 300 s."},
	{"min-above-max", Error, "scaling", "The minimum is above the maximum", "The API server refuses the object.",
		"minReplicas is larger than maxReplicas.", "Otherwise.", "Swap the two."},
	{"max-above-quota", Warning, "scaling", "The maximum cannot be placed",
		"The maximum times the GPUs of a replica exceeds the quota: the scaler believes that it scaled and the pods are never created.",
		"A ResourceQuota of the namespace, or an observed quota, is smaller.",
		"There is no quota among the files.", "Lower the maximum or raise the quota."},
	{"min-zero-needs-external", Error, "scaling", "Nothing can wake the fleet from zero", "With no pod there is no Pods or Resource metric.",
		"An HPA has minReplicas 0 and only Pods or Resource metrics.", "It has an Object or External metric.", "minReplicas 1, or an External metric of a queue that exists without pods."},
	{"zero-cannot-wake", Error, "scaling", "Nothing can wake the fleet that KEDA sent to zero",
		"Where no pod runs, the metrics of the pods have no value. KEDA reads the empty answer as 0 and leaves the fleet at zero, however many requests come.",
		"A ScaledObject goes to zero (minReplicaCount 0 is the default, or idleReplicaCount 0) and all its triggers ask metrics that engines publish.",
		"One trigger asks something that exists without pods, or something that is not known.", "minReplicaCount 1, or a trigger on the queue of the gateway."},
	{"zero-disables-hpa", Warning, "scaling", "replicas 0 switches the HPA off", "An HPA does not touch a target that somebody set to zero.",
		"The target's replicas are 0 and the HPA's minimum is not.", "replicas is left out or above zero.", "Leave replicas out."},
	{"metric-type-misplaced", Warning, "scaling", "metricType stands where KEDA does not read it", "In metadata it is ignored, and the trigger is AverageValue.",
		"metadata.metricType differs from AverageValue and the trigger has none.", "It says AverageValue, or stands beside type.", "Move it beside type."},
	{"two-scalers", Error, "scaling", "Two autoscalers for one target", "Each undoes what the other did.",
		"Two HPAs or ScaledObjects name the same target in one namespace.", "One of them was made by KEDA.", "Keep one."},
	{"inert-key", Warning, "scaling", "A key that nothing reads",
		"The API server drops keys that the object does not have there, without an error: minReplicas in a ScaledObject leaves its minimum at 0, behavior beside triggers leaves scale-down as fast as it is by default.",
		"A ScaledObject or HPA has a key that belongs to another place, or one that is a letter or two away from a key that it has.",
		"The key is known, or is like none that is: an API may have grown since.", "Write it where it is read."},
	{"api-removed", Error, "scaling", "An API version that no API server knows any more",
		"The object is refused, and with it nothing of what it says is in force: no autoscaling, no disruption budget.",
		"HorizontalPodAutoscaler of autoscaling/v2beta1 or v2beta2, PodDisruptionBudget of policy/v1beta1.",
		"The version is one that is served.", "Write the version of today."},
	{"namespace-mixed-models", Warning, "scaling", "The queue of one model scales the other",
		"The adapter's query adds up all models of the namespace.",
		"An engine metric is summed by namespace alone.", "The query groups by or selects a model, or is a template.", "Group by model_name."},
	{"value-times-ready", Error, "scaling", "The recommendation is multiplied by zero ready pods",
		"For type Value the HPA multiplies by the ready pods. When overload makes all of them fail their readiness probe, it recommends nothing.",
		"A status shows type Value, a metric above its target and no ready replica.",
		"A replica is ready, or the type is AverageValue.", "Use AverageValue."},
	{"metric-unavailable", Error, "scaling", "One metric keeps the HPA from acting",
		"One metric has no value; the others are shown as unknown because they were not asked for any more.",
		"The condition ScalingActive is False.", "ScalingDisabled: somebody set the count to zero.", "Ask the API path that the finding names."},
	{"replicas-blocked", Error, "scaling", "Replicas that are wanted cannot be placed",
		"Quota, full nodes, a full node group or the cloud keep the pods from running; the autoscaler counts them all the same.",
		"Events say so and none says that the pod found its place later.", "The pod was scheduled.", "Each cause has its own remedy; the finding tells them apart."},
}
