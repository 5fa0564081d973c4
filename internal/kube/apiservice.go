// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Certificates issues serving certificates from a CA of its own that all replicas
// of this program share through a Secret. Safe for concurrent use.
type Certificates struct {
	names []string
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey
	caPEM []byte

	mu   sync.Mutex
	leaf *tls.Certificate
}

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 90 * 24 * time.Hour
)

// SharedCA takes the CA from a Secret and makes it where there is none; names are
// the DNS names of the serving certificate. It needs the right to get and create the
// Secret.
func (c *Cluster) SharedCA(ctx context.Context, namespace, secret string, names []string) (*Certificates, error) {
	api := c.Pods.CoreV1().Secrets(namespace)
	for range 2 {
		s, err := api.Get(ctx, secret, metav1.GetOptions{})
		if err == nil {
			return loadCA(s.Data["ca.crt"], s.Data["ca.key"], names)
		}
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
		cert, key, err := makeCA(time.Now())
		if err != nil {
			return nil, err
		}
		_, err = api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret, Labels: map[string]string{"app.kubernetes.io/managed-by": "penstock"}},
			Data: map[string][]byte{"ca.crt": cert, "ca.key": key}}, metav1.CreateOptions{FieldManager: manager})
		if err == nil {
			return loadCA(cert, key, names)
		}
		if !apierrors.IsAlreadyExists(err) { // another replica was first
			return nil, err
		}
	}
	return nil, fmt.Errorf("secret %s/%s comes and goes", namespace, secret)
}

func makeCA(now time.Time) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "penstock-metrics-ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &k.PublicKey, k)
	if err != nil {
		return nil, nil, err
	}
	kd, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kd}), nil
}

func loadCA(cert, key []byte, names []string) (*Certificates, error) {
	cb, _ := pem.Decode(cert)
	kb, _ := pem.Decode(key)
	if cb == nil || kb == nil {
		return nil, errors.New("the Secret of the CA holds no ca.crt and ca.key: delete it, and it is made anew")
	}
	ca, err := x509.ParseCertificate(cb.Bytes)
	if err != nil {
		return nil, err
	}
	k, err := x509.ParseECPrivateKey(kb.Bytes)
	if err != nil {
		return nil, err
	}
	return &Certificates{names: names, ca: ca, key: k, caPEM: cert}, nil
}

// Bundle is the CA in PEM, for those that connect.
func (c *Certificates) Bundle() []byte { return bytes.Clone(c.caPEM) }

// Get returns a serving certificate with at least a third of its life left.
func (c *Certificates) Get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.leaf != nil && now.Before(c.leaf.Leaf.NotAfter.Add(-leafLife/3)) {
		return c.leaf, nil
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: c.names[0]}, DNSNames: c.names, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(leafLife), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, t, c.ca, &k.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	c.leaf = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k, Leaf: leaf}
	return c.leaf, nil
}

// manager is the name under which every write of this program stands in the
// managedFields of an object.
const manager = "penstock"

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// APIOwner is who serves an API group version of the cluster.
type APIOwner struct {
	Name      string // of the APIService
	Service   string // namespace/name of the Service behind it; "" is the API server itself
	Available bool
	Reason    string // why it is not available
}

// APIServiceOwner tells who serves a group version, such as
// v1beta1.external.metrics.k8s.io; nil where nobody does.
func (c *Cluster) APIServiceOwner(ctx context.Context, name string) (*APIOwner, error) {
	o, err := c.Dynamic.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return apiOwner(o), nil
}

func apiOwner(o *unstructured.Unstructured) *APIOwner {
	out := &APIOwner{Name: o.GetName()}
	ns, _, _ := unstructured.NestedString(o.Object, "spec", "service", "namespace")
	name, ok, _ := unstructured.NestedString(o.Object, "spec", "service", "name")
	if ok {
		out.Service = ns + "/" + name
	}
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, x := range list {
		if m, ok := x.(map[string]any); ok && m["type"] == "Available" {
			out.Available = m["status"] == "True"
			if !out.Available {
				out.Reason = fmt.Sprintf("%v: %v", m["reason"], m["message"])
			}
		}
	}
	return out
}

// Registration is what an APIService shall say.
type Registration struct {
	Group, Version string
	Namespace      string // of the Service
	Service        string
	Port           int
	CA             []byte
}

// OwnedError says that another adapter serves the group.
type OwnedError struct {
	Group string
	By    string // namespace/name of its Service
}

func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s is served by %s already, and a cluster has one server of it: use scale.hand keda (with KEDA) or scale", e.Group, e.By)
}

// Register makes the APIService where it is absent and keeps its CA right where it
// is ours. It never changes one that names another Service: that is an *OwnedError.
func (c *Cluster) Register(ctx context.Context, r Registration) error {
	api := c.Dynamic.Resource(apiServices)
	name := r.Version + "." + r.Group
	want := base64.StdEncoding.EncodeToString(r.CA)
	o, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": manager}},
			"spec": map[string]any{"group": r.Group, "version": r.Version, "groupPriorityMinimum": int64(100), "versionPriority": versionPriority(r.Version),
				"caBundle": want, "service": map[string]any{"namespace": r.Namespace, "name": r.Service, "port": int64(r.Port)}},
		}}, metav1.CreateOptions{FieldManager: manager})
		return err
	}
	if err != nil {
		return err
	}
	if owner := apiOwner(o); owner.Service != r.Namespace+"/"+r.Service {
		return &OwnedError{Group: r.Group, By: owner.Service}
	}
	if have, _, _ := unstructured.NestedString(o.Object, "spec", "caBundle"); have == want {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"caBundle":%q,"insecureSkipTLSVerify":false}}`, o.GetResourceVersion(), want)
	_, err = api.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	return err
}

// versionPriority puts v1beta2 before v1beta1.
func versionPriority(v string) int64 {
	if v == "v1beta2" {
		return 200
	}
	return 100
}
