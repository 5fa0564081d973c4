// SPDX-License-Identifier: Apache-2.0

package diagnose

import "strings"

// Key is one key of an object at a place where the API fixes the keys, with the path
// of the mapping that holds it: "spec", "spec.triggers[]".
type Key struct {
	Path string
	Name Field[string] // V and Text are the key itself, At is where it stands
}

// knownKeys are the keys that the API has at places where people put others: of
// autoscaling/v1 and v2 and of keda.sh/v1alpha1 (KEDA 2.18).
var knownKeys = map[string]string{
	"HorizontalPodAutoscaler spec":                                      "scaleTargetRef minReplicas maxReplicas metrics behavior targetCPUUtilizationPercentage",
	"HorizontalPodAutoscaler spec.behavior":                             "scaleUp scaleDown",
	"HorizontalPodAutoscaler spec.behavior.scaleUp":                     "stabilizationWindowSeconds selectPolicy policies tolerance",
	"HorizontalPodAutoscaler spec.behavior.scaleDown":                   "stabilizationWindowSeconds selectPolicy policies tolerance",
	"ScaledObject spec":                                                 "scaleTargetRef pollingInterval initialCooldownPeriod cooldownPeriod idleReplicaCount minReplicaCount maxReplicaCount advanced triggers fallback",
	"ScaledObject spec.advanced":                                        "horizontalPodAutoscalerConfig restoreToOriginalReplicaCount scalingModifiers",
	"ScaledObject spec.advanced.horizontalPodAutoscalerConfig":          "behavior name",
	"ScaledObject spec.advanced.horizontalPodAutoscalerConfig.behavior": "scaleUp scaleDown",
	"ScaledObject spec.fallback":                                        "failureThreshold replicas behavior",
	"ScaledObject spec.triggers[]":                                      "type name useCachedMetrics metadata authenticationRef metricType",
}

// misplacedKeys say where a key belongs that people write elsewhere.
var misplacedKeys = map[string]string{
	"HorizontalPodAutoscaler spec minReplicaCount":                     "minReplicas",
	"HorizontalPodAutoscaler spec maxReplicaCount":                     "maxReplicas",
	"HorizontalPodAutoscaler spec stabilizationWindowSeconds":          "spec.behavior.scaleDown.stabilizationWindowSeconds",
	"HorizontalPodAutoscaler spec scaleDown":                           "spec.behavior.scaleDown",
	"HorizontalPodAutoscaler spec scaleUp":                             "spec.behavior.scaleUp",
	"HorizontalPodAutoscaler spec.behavior stabilizationWindowSeconds": "spec.behavior.scaleDown.stabilizationWindowSeconds",
	"HorizontalPodAutoscaler spec cooldownPeriod":                      "spec.behavior.scaleDown.stabilizationWindowSeconds",
	"ScaledObject spec minReplicas":                                    "minReplicaCount",
	"ScaledObject spec maxReplicas":                                    "maxReplicaCount",
	"ScaledObject spec behavior":                                       "spec.advanced.horizontalPodAutoscalerConfig.behavior",
	"ScaledObject spec scalingModifiers":                               "spec.advanced.scalingModifiers",
	"ScaledObject spec horizontalPodAutoscalerConfig":                  "spec.advanced.horizontalPodAutoscalerConfig",
	"ScaledObject spec metadata":                                       "spec.triggers[].metadata",
	"ScaledObject spec.advanced behavior":                              "spec.advanced.horizontalPodAutoscalerConfig.behavior",
	"ScaledObject spec.triggers[] cooldownPeriod":                      "spec.cooldownPeriod",
	"ScaledObject spec.triggers[] pollingInterval":                     "spec.pollingInterval",
	"ScaledObject spec.triggers[] minReplicaCount":                     "spec.minReplicaCount",
	"ScaledObject spec.triggers[] maxReplicaCount":                     "spec.maxReplicaCount",
	"ScaledObject spec.triggers[] threshold":                           "spec.triggers[].metadata.threshold",
	"ScaledObject spec.triggers[] query":                               "spec.triggers[].metadata.query",
	"ScaledObject spec.triggers[] serverAddress":                       "spec.triggers[].metadata.serverAddress",
	"ScaledObject spec.triggers[] ignoreNullValues":                    "spec.triggers[].metadata.ignoreNullValues",
	"ScaledObject spec.triggers[] fallback":                            "spec.fallback",
}

// checkKeys finds keys that nothing reads. Only what is known to belong elsewhere, or
// is a letter or two away from a key, counts: an API may have grown since.
func checkKeys(s *Set, k *sink) {
	for i := range s.HPAs {
		if h := &s.HPAs[i]; h.Kind == "HorizontalPodAutoscaler" {
			checkKeysOf(&h.Object, h.Keys, k)
		}
	}
	for i := range s.Scaled {
		checkKeysOf(&s.Scaled[i].Object, s.Scaled[i].Keys, k)
	}
}

func checkKeysOf(o *Object, keys []Key, k *sink) {
	kind := o.Kind
	if kind == "" {
		return
	}
	there := map[string]bool{}
	for i := range keys {
		there[keys[i].Path+" "+keys[i].Name.V] = true
	}
	for i := range keys {
		key := &keys[i]
		list, ok := knownKeys[kind+" "+key.Path]
		if !ok {
			continue
		}
		known := strings.Fields(list)
		right, misplaced := misplacedKeys[kind+" "+key.Path+" "+key.Name.V]
		if !misplaced {
			if right = nearKey(key.Name.V, known); right == "" {
				continue
			}
		}
		f := at(o, key.Name.At.Line, "inert-key")
		f.Evidence = []Evidence{{Name: "key", Value: key.Path + "." + key.Name.V}, {Name: "read", Value: right}}
		f.Message = key.Path + " has no key " + key.Name.V + ": the API server drops it and what it says has no effect"
		f.Remedy = "Write it as " + right + "."
		if here := !strings.Contains(right, "."); here && !there[key.Path+" "+right] {
			f.Remedy = right + ":"
			f.Edits = []Edit{replaceField(o.File, key.Name, right)}
		}
		k.add(f)
	}
}

// nearKey returns the known key that name is a slip of, "" where it is one itself or
// like none.
func nearKey(name string, known []string) string {
	best, least := "", 3
	for _, x := range known {
		if x == name {
			return ""
		}
		if d := distance(strings.ToLower(name), strings.ToLower(x)); d < least && d*4 <= len(x) {
			best, least = x, d
		}
	}
	return best
}

// removedAPI is an API version that is gone.
type removedAPI struct{ kind, version, since, now string }

// removedAPIs are the ones that manifests of model servers still carry, from the
// deprecation guide of Kubernetes.
var removedAPIs = [...]removedAPI{
	{"HorizontalPodAutoscaler", "autoscaling/v2beta1", "1.25", "autoscaling/v2"},
	{"HorizontalPodAutoscaler", "autoscaling/v2beta2", "1.26", "autoscaling/v2"},
	{"PodDisruptionBudget", "policy/v1beta1", "1.25", "policy/v1"},
}

// checkRemoved finds objects of API versions that no server of today knows.
func checkRemoved(s *Set, k *sink) {
	for i := range s.HPAs {
		h := &s.HPAs[i]
		checkRemovedOf(&h.Object, h.APIVersion == "autoscaling/v2beta2", k)
	}
	for i := range s.PDBs {
		checkRemovedOf(&s.PDBs[i].Object, true, k)
	}
}

// checkRemovedOf judges one object; same says that nothing but the version changed.
func checkRemovedOf(o *Object, same bool, k *sink) {
	for _, r := range removedAPIs {
		if r.kind != o.Kind || r.version != o.APIVersion {
			continue
		}
		f := at(o, o.APIAt.At.Line, "api-removed")
		f.Evidence = []Evidence{{Name: "version", Value: r.version}, {Name: "removed_in", Value: "Kubernetes " + r.since}, {Name: "now", Value: r.now}}
		f.Message = r.version + " " + r.kind + " is gone since Kubernetes " + r.since + ": the API server knows no such object and nothing is applied"
		f.Remedy = "apiVersion: " + r.now
		if same {
			f.Edits = []Edit{replaceField(o.File, o.APIAt, r.now)}
		} else {
			f.Remedy += "   # and write each target as target: {type: ..., ...}"
		}
		k.add(f)
	}
}
