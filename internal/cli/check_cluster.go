// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/metricsapi"
)

// object checks the object that a pool's hand moves, and who else does.
func (p *preflight) object(ctx context.Context, pool *config.Pool) {
	if pool.Scale.Target.Name == "" {
		return
	}
	t := p.target(pool)
	n, err := p.cluster.Replicas(ctx, t)
	if err != nil {
		p.rep.add("target", t.String(), checkFail, err.Error(), "scale.target names an object with the subresource /scale")
		return
	}
	p.rep.add("target", t.String(), checkPass, fmt.Sprintf("%d replicas wanted", n), "")
	owners, err := p.cluster.Owners(ctx, t, kube.Reader{Metric: metricsapi.WantedReplicas, Pool: pool.Name})
	if err != nil {
		p.rep.add("one-scaler", t.String(), checkFail, err.Error(), "give the service account list of horizontalpodautoscalers and scaledobjects")
		return
	}
	p.owners(pool, t, owners)
}

// owners finds conflicts: two that scale, one that should and is not there, CPU.
func (p *preflight) owners(pool *config.Pool, t kube.Target, owners []kube.Owner) {
	hand := pool.Scale.Hand
	var all, foreign, readers []string
	for _, o := range owners {
		all = append(all, o.String())
		if o.Reads {
			readers = append(readers, o.String())
		} else {
			foreign = append(foreign, o.String())
		}
	}
	others := hand == "hpa" || hand == "keda"
	switch {
	case len(owners) > 1:
		p.rep.add("one-scaler", t.String(), checkFail, strings.Join(all, " and ")+" move the same object", "delete all but one")
	case len(foreign) > 0:
		p.rep.add("one-scaler", t.String(), checkFail, foreign[0]+" moves it by other numbers; Penstock leaves it alone",
			"delete it, or let it read "+metricsapi.WantedReplicas+" (scale.hand hpa) or the external scaler (scale.hand keda)")
	case hand == "scale" && len(readers) > 0:
		p.rep.add("one-scaler", t.String(), checkFail, readers[0]+" moves it, and scale.hand is scale", "delete it, or set scale.hand to hpa or keda")
	case others && len(readers) == 0:
		kind := "HorizontalPodAutoscaler"
		if hand == "keda" {
			kind = "ScaledObject"
		}
		p.rep.add("one-scaler", t.String(), checkFail, fmt.Sprintf("no %s reads the number of pool %s", kind, pool.Name), "see the how-to of the hand for the object to apply")
	case len(readers) > 0:
		p.rep.add("one-scaler", t.String(), checkPass, readers[0]+" carries out what Penstock says", "")
	default:
		p.rep.add("one-scaler", t.String(), checkPass, "nobody else moves it", "")
	}
	for _, o := range owners {
		for _, note := range o.Notes {
			result := checkWarn
			if strings.Contains(note, "CPU") || strings.Contains(note, "multiplies") {
				result = checkFail
			}
			p.rep.add("autoscaler", o.String(), result, note, "change the object as it says")
		}
		if o.Idle != "" && !(o.Reads && strings.HasPrefix(o.Idle, "FailedGetExternalMetric")) {
			p.rep.add("autoscaler", o.String(), checkWarn, "it does not act: "+o.Idle, "resume it, or wait for what it lacks")
		}
		if o.Reads && o.Kind == "HorizontalPodAutoscaler" && pool.Scale.Min == 0 && o.Min > 0 && pool.Scale.Wake != "scale" {
			p.rep.add("zero", o.String(), checkFail, "scale.min is 0, and the HPA never goes below "+fmt.Sprint(o.Min),
				"set its minReplicas to 0 (Kubernetes 1.37), or scale.wake: scale")
		}
	}
}

// apis checks the aggregated API and KEDA, where a hand needs them.
func (p *preflight) apis(ctx context.Context) {
	hands := map[string]bool{}
	for i := range p.cfg.Pools {
		hands[p.cfg.Pools[i].Scale.Hand] = true
	}
	if hands["hpa"] {
		name := "v1beta1." + metricsapi.GroupExternal
		o, err := p.cluster.APIServiceOwner(ctx, name)
		switch {
		case err != nil:
			p.rep.add("metrics-api", name, checkFail, err.Error(), "give the service account get of apiservices")
		case o == nil:
			p.rep.add("metrics-api", name, checkWarn, "nobody serves it yet", "penstock serve registers it at start, where its service account may")
		case o.Service != p.cfg.Kube.Service:
			p.rep.add("metrics-api", name, checkFail, "it is served by "+cmp.Or(o.Service, "the API server itself"), "a cluster has one server of it: use scale.hand keda (with KEDA) or scale")
		default:
			p.rep.when(o.Available, "metrics-api", name, "served by "+o.Service+" and available", checkFail, "not available: "+o.Reason, "look at the Service, its endpoints and the log of Penstock")
		}
	}
	if hands["keda"] {
		ok, err := p.cluster.Serves(kube.ScaledObjects.GroupVersion().String(), kube.ScaledObjects.Resource)
		detail := "the cluster has no ScaledObjects"
		if err != nil {
			detail = err.Error()
		}
		p.rep.when(ok, "keda", "cluster", "ScaledObjects are there", checkFail, detail, "install KEDA 2.21 or later, or use another hand")
	}
}

// right is one permission that a feature needs.
type right struct{ verb, group, resource, ns, name, why string }

// rights checks that the account of the kubeconfig may do what the pools need.
func (p *preflight) rights(ctx context.Context) {
	own := cmp.Or(p.cfg.Kube.Namespace, p.cluster.Namespace)
	var all []right
	scaled := false
	for i := range p.cfg.Pools {
		pool := &p.cfg.Pools[i]
		ns := cmp.Or(pool.Replicas.Selector.Namespace, p.cluster.Namespace)
		if a, b, ok := strings.Cut(pool.Replicas.InferencePool, "/"); ok {
			ns = a
			all = append(all, right{"watch", "inference.networking.k8s.io", "inferencepools", ns, b, "find the replicas"})
		}
		if len(pool.Replicas.Selector.Labels) > 0 || pool.Replicas.InferencePool != "" {
			all = append(all, right{"list", "", "pods", ns, "", "find the replicas"}, right{"watch", "", "pods", ns, "", "find the replicas"})
		}
		if pool.Scale.Target.Name != "" {
			scaled = true
			all = append(all, p.scaleRights(pool)...)
		}
	}
	if scaled {
		all = append(all, right{"create", "coordination.k8s.io", "leases", own, "", "elect who scales"}, right{"update", "coordination.k8s.io", "leases", own, p.cfg.Kube.Name, "elect who scales"},
			right{"create", "", "configmaps", own, "", "remember across restarts"}, right{"update", "", "configmaps", own, p.cfg.Kube.Name, "remember across restarts"})
	}
	if p.cfg.Listen.Metrics != "" {
		all = append(all, right{"get", "", "configmaps", "kube-system", "extension-apiserver-authentication", "know who speaks for the API server"},
			right{"create", "authorization.k8s.io", "subjectaccessreviews", "", "", "ask who may read metrics"},
			right{"create", "", "secrets", own, "", "keep the CA of the metrics API"},
			right{"patch", "apiregistration.k8s.io", "apiservices", "", "v1beta1." + metricsapi.GroupExternal, "write that CA where the API server looks"})
	}
	var missing []string
	for _, r := range all {
		ok, err := p.cluster.May(ctx, r.verb, r.group, r.resource, r.ns, r.name)
		if err != nil {
			p.rep.add("rights", "cluster", checkFail, err.Error(), "")
			return
		}
		if !ok {
			missing = append(missing, strings.TrimSpace(fmt.Sprintf("%s %s %s in %q (%s)", r.verb, strings.TrimSuffix(r.resource+"."+r.group, "."), r.name, r.ns, r.why)))
		}
	}
	p.rep.when(len(missing) == 0, "rights", "cluster", fmt.Sprintf("all %d that the configuration needs", len(all)), checkFail,
		"missing: "+strings.Join(missing, "; "), "the chart and the manifests under deploy/ give exactly these")
}

func (p *preflight) scaleRights(pool *config.Pool) []right {
	t := p.target(pool)
	gvr, err := p.cluster.Resource(t)
	if err != nil {
		return nil // told by the check of the object
	}
	out := []right{
		{"get", gvr.Group, gvr.Resource + "/scale", t.Namespace, t.Name, "see what is wanted"},
		{"list", "autoscaling", "horizontalpodautoscalers", t.Namespace, "", "see who else scales"},
	}
	if pool.Scale.Mode == "act" && (pool.Scale.Hand == "scale" || pool.Scale.Hand == "auto" || pool.Scale.Wake == "scale") {
		out = append(out, right{"update", gvr.Group, gvr.Resource + "/scale", t.Namespace, t.Name, "scale"},
			right{"get", gvr.Group, gvr.Resource, t.Namespace, t.Name, "see who moved it"},
			right{"list", "policy", "poddisruptionbudgets", t.Namespace, "", "respect budgets"},
			right{"patch", "", "pods", t.Namespace, "", "choose which pods go"})
	}
	return out
}
