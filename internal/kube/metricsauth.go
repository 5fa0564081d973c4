// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Asked is who wants to do what, for Allowed.
type Asked struct {
	User   string
	Groups []string
	Extra  map[string][]string

	Verb, Group, Resource, Namespace string // Resource may carry a subresource after a slash
}

// Allowed asks the API server whether somebody may do something. It needs the right
// to create subjectaccessreviews (ClusterRole system:auth-delegator).
func (c *Cluster) Allowed(ctx context.Context, a Asked) (ok bool, why string, err error) {
	resource, sub, _ := strings.Cut(a.Resource, "/")
	extra := map[string]authv1.ExtraValue{}
	for k, v := range a.Extra {
		extra[k] = v
	}
	res, err := c.Pods.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authv1.SubjectAccessReview{Spec: authv1.SubjectAccessReviewSpec{
		User: a.User, Groups: a.Groups, Extra: extra,
		ResourceAttributes: &authv1.ResourceAttributes{Verb: a.Verb, Group: a.Group, Version: "*", Resource: resource, Subresource: sub, Namespace: a.Namespace},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, "", err
	}
	return res.Status.Allowed, res.Status.Reason, nil
}

// May asks the API server whether this process itself may do something.
func (c *Cluster) May(ctx context.Context, verb, group, resource, namespace, name string) (bool, error) {
	resource, sub, _ := strings.Cut(resource, "/")
	res, err := c.Pods.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authv1.SelfSubjectAccessReview{Spec: authv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace, Name: name},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return res.Status.Allowed, nil
}

// FrontProxy is who the API server lets speak for others to an aggregated API, as
// it publishes it. It is read-only.
type FrontProxy struct {
	CA                        *x509.CertPool
	AllowedNames, User, Group []string
	ExtraPrefix               []string
}

// FrontProxies follows the published request-header configuration.
type FrontProxies struct {
	c   *Cluster
	now atomic.Pointer[FrontProxy]
}

// FollowFrontProxy reads the configuration once, so that what is missing is known,
// and again every minute until ctx ends. It needs the Role
// extension-apiserver-authentication-reader in kube-system.
func (c *Cluster) FollowFrontProxy(ctx context.Context) (*FrontProxies, error) {
	f := &FrontProxies{c: c}
	f.now.Store(&FrontProxy{})
	err := f.read(ctx)
	go func() {
		wait := time.Second
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = time.Minute
			if f.read(ctx) != nil {
				wait = 5 * time.Second
			}
		}
	}()
	return f, err
}

// Now is the last configuration that was read; without a CA nobody is believed.
func (f *FrontProxies) Now() *FrontProxy { return f.now.Load() }

func (f *FrontProxies) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cm, err := f.c.Pods.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("who speaks for the API server is not known: %w", err)
	}
	f.c.touch()
	ca := cm.Data["requestheader-client-ca-file"]
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return fmt.Errorf("the API server has no aggregation layer: requestheader-client-ca-file is not set")
	}
	list := func(key string) (out []string) {
		_ = json.Unmarshal([]byte(cm.Data[key]), &out)
		return out
	}
	f.now.Store(&FrontProxy{CA: pool, AllowedNames: list("requestheader-allowed-names"), User: list("requestheader-username-headers"),
		Group: list("requestheader-group-headers"), ExtraPrefix: list("requestheader-extra-headers-prefix")})
	return nil
}
