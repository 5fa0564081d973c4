// SPDX-License-Identifier: Apache-2.0

package config

// ScaleTarget names a Kubernetes object with the subresource /scale.
type ScaleTarget struct {
	APIVersion string // "" is found out from Kind
	Kind       string
	Namespace  string // "" is that of the pods
	Name       string // "" is no target
}

// Kubernetes is what Penstock keeps and serves in a cluster.
type Kubernetes struct {
	Namespace string // of the Lease, the ConfigMap and the Secret; "" is that of the kubeconfig or of the pod
	Name      string // of the three
	Service   string // of the metrics API, namespace/name; "" registers no APIService
	Port      int    // of that Service
	Events    bool   // findings of the running system are written as Events
}

var scaleTargetObject = &object{name: "target", fields: []field{
	text("apiVersion", "API version, where the kind alone is not enough.", func(t *ScaleTarget) *string { return &t.APIVersion }),
	text("kind", "Kind of the object: Deployment, StatefulSet, LeaderWorkerSet or any with the subresource /scale.",
		func(t *ScaleTarget) *string { return &t.Kind }, def("Deployment")),
	text("namespace", "Namespace; empty: that of the pods.", func(t *ScaleTarget) *string { return &t.Namespace }),
	text("name", "Name of the object.", func(t *ScaleTarget) *string { return &t.Name }, example("llama")),
}}

var kubernetesObject = &object{name: "kubernetes", fields: []field{
	text("namespace", "Namespace of what Penstock keeps there; empty: that of the kubeconfig or of the pod.", func(k *Kubernetes) *string { return &k.Namespace }),
	text("name", "Name of the Lease and the ConfigMap of the scaler, and of the Secret with the CA of the metrics API.",
		func(k *Kubernetes) *string { return &k.Name }, def("penstock-scaler")),
	text("service", "namespace/name of the Service in front of listen.metrics. It names the certificate, and the metrics APIs are registered for it; empty: neither.",
		func(k *Kubernetes) *string { return &k.Service }, checked(checkPoolName), example("penstock/penstock-metrics")),
	integer("port", "Port of that Service.", func(k *Kubernetes) *int { return &k.Port }, def("443"), within(1, 65535)),
	ref(kindBool, "events", "Write what `penstock diagnose` finds in the running system as Events on the objects that it is about.",
		func(k *Kubernetes) *bool { return &k.Events }),
}}

// validateScale checks what the hand of a pool needs.
func (d *decoder) validateScale(c *Config, p *Pool, path string) {
	s := &p.Scale
	switch {
	case s.Hand == "hpa" && c.Listen.Metrics == "":
		d.failPath(path+".scale.hand", "hand hpa needs listen.metrics, where the HPA's numbers are read")
	case s.Hand == "keda" && c.Listen.KEDA == "":
		d.failPath(path+".scale.hand", "hand keda needs listen.keda, where KEDA asks")
	}
	if s.Target.Name == "" && (s.Hand == "scale" || s.Hand == "hpa" || s.Hand == "keda") {
		d.failPath(path+".scale.target", "hand %s needs the object that runs the replicas: target: {kind: Deployment, name: ...}", s.Hand)
	}
}
