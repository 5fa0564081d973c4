// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaderOptions of a Leader.
type LeaderOptions struct {
	Cluster   *Cluster
	Namespace string // of the Lease and the ConfigMap
	Name      string // of both
	Identity  string // of this process, unique
	// Term is how long a leader that does not renew stays one; 0: 10 s. It gives up
	// by itself after two thirds of that.
	Term time.Duration
}

// Leader makes one of several Penstocks act, and keeps what they must not forget
// when another one takes over: a ConfigMap with one Memory a pool.
//
// The Lease alone does not fence: a process that was stopped for a while may still
// believe in it. So every act first writes the ConfigMap in the version that this
// leader wrote last. Whoever takes over writes it, too, and the act of the old one
// fails before it touches anything. Safe for concurrent use.
type Leader struct {
	o LeaderOptions

	mu     sync.Mutex
	until  time.Time // this process leads until then, by its own clock; zero: it does not
	who    string    // who leads, as far as known
	term   int64     // of the lease at election
	cm     *corev1.ConfigMap
	memory map[string]*Memory
}

// Memory is what is remembered of a pool across restarts and leaders.
type Memory struct {
	Term int64 `json:"term"` // of the leader that wrote it
	// Want is what was asked for last; At when it was last confirmed.
	Want int       `json:"want"`
	At   time.Time `json:"at"`
	// Set is what this program last wrote into the object's /scale; nil: nothing yet.
	Set *SetScale `json:"set,omitempty"`
	// Yield says that somebody else moved the object, and that nothing happens until
	// an operator says so.
	Yield *Yield `json:"yield,omitempty"`
	// Starts are the learned start-up times in seconds, oldest first.
	Starts []float64 `json:"starts_s,omitempty"`
}

// SetScale is one write of /scale.
type SetScale struct {
	UID      string    `json:"uid"`
	Replicas int       `json:"replicas"`
	At       time.Time `json:"at"`
}

// Yield names who moved an object that was ours.
type Yield struct {
	To   string    `json:"to"`
	At   time.Time `json:"at"`
	From int       `json:"from"` // what this program had set
	Now  int       `json:"now"`  // what it was found at
}

// NewLeader prepares an election. Run takes part in it.
func NewLeader(o LeaderOptions) *Leader {
	o.Term = cmp.Or(o.Term, 10*time.Second)
	return &Leader{o: o, memory: map[string]*Memory{}}
}

// NotLeaderError says that another process acts.
type NotLeaderError struct{ Who string }

func (e *NotLeaderError) Error() string {
	if e.Who == "" {
		return "this Penstock does not lead, and nobody is known to"
	}
	return "another Penstock acts: " + e.Who
}

// Run takes part in the election until ctx ends, then gives the lease back.
func (l *Leader) Run(ctx context.Context) {
	// The library logs in a form of its own; what matters is logged by the callbacks.
	ctx = klog.NewContext(ctx, klog.New(nil))
	for ctx.Err() == nil {
		e, err := l.elector()
		if err != nil {
			l.o.Cluster.Log.Error("no leader election", "error", err.Error())
			return
		}
		e.Run(ctx) // returns when the lease is lost
	}
}

func (l *Leader) elector() (*leaderelection.LeaderElector, error) {
	lock := &renewing{Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: l.o.Namespace, Name: l.o.Name}, Client: l.o.Cluster.Pods.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.o.Identity},
	}, l: l}
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: l.o.Term, RenewDeadline: l.o.Term * 2 / 3, RetryPeriod: l.o.Term / 5, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: l.lost,
			OnNewLeader: func(id string) {
				l.mu.Lock()
				l.who = id
				l.mu.Unlock()
				l.o.Cluster.Log.Info("scaler leader", "leader", id, "self", id == l.o.Identity)
			},
		},
	})
}

// renewing notes each moment at which the lease was surely ours: before the request
// that renewed it was sent.
type renewing struct {
	resourcelock.Interface
	l *Leader
}

func (r *renewing) Create(ctx context.Context, rec resourcelock.LeaderElectionRecord) error {
	return r.held(time.Now(), rec, r.Interface.Create(ctx, rec))
}

func (r *renewing) Update(ctx context.Context, rec resourcelock.LeaderElectionRecord) error {
	return r.held(time.Now(), rec, r.Interface.Update(ctx, rec))
}

func (r *renewing) held(sent time.Time, rec resourcelock.LeaderElectionRecord, err error) error {
	if err != nil || rec.HolderIdentity != r.l.o.Identity {
		return err
	}
	l := r.l
	l.mu.Lock()
	was := l.until
	l.until, l.term, l.who = sent.Add(l.o.Term), int64(rec.LeaderTransitions), l.o.Identity
	if sent.After(was) { // elected, or elected again after a gap: read what others wrote
		l.cm = nil
	}
	l.mu.Unlock()
	return nil
}

func (l *Leader) lost() {
	l.mu.Lock()
	l.until, l.cm = time.Time{}, nil
	l.mu.Unlock()
}

// Leads reports whether this process may act, and until when.
func (l *Leader) Leads() (until time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until, time.Now().Before(l.until)
}

// Who is the identity of the leader; "" unknown.
func (l *Leader) Who() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.who
}

// Recall returns what is remembered of a pool, as a copy. Who does not lead reads it
// from the API server.
func (l *Leader) Recall(ctx context.Context, pool string) (Memory, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cm == nil || !time.Now().Before(l.until) {
		if err := l.load(ctx); err != nil {
			return Memory{}, err
		}
	}
	if m := l.memory[pool]; m != nil {
		return *m, nil
	}
	return Memory{}, nil
}

// load reads the ConfigMap; l.mu is held. A leader writes it at once in its own
// term, so that an older leader's version is stale from here on.
func (l *Leader) load(ctx context.Context) error {
	api := l.o.Cluster.Pods.CoreV1().ConfigMaps(l.o.Namespace)
	cm, err := api.Get(ctx, l.o.Name, metav1.GetOptions{})
	leads := time.Now().Before(l.until)
	if apierrors.IsNotFound(err) {
		if !leads {
			l.memory = map[string]*Memory{}
			return nil
		}
		cm, err = api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: l.o.Name, Labels: map[string]string{"app.kubernetes.io/managed-by": manager}}},
			metav1.CreateOptions{FieldManager: manager})
	}
	if err != nil {
		return err
	}
	l.memory = map[string]*Memory{}
	for pool, text := range cm.Data {
		if pool == termKey {
			continue
		}
		m := &Memory{}
		if json.Unmarshal([]byte(text), m) == nil {
			l.memory[pool] = m
		}
	}
	if !leads {
		return nil
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[termKey] = fmt.Sprintf("%d %s", l.term, l.o.Identity)
	if cm, err = api.Update(ctx, cm, metav1.UpdateOptions{FieldManager: manager}); err != nil {
		return err
	}
	l.cm = cm
	return nil
}

// termKey is the entry of the ConfigMap that every new leader writes first.
const termKey = "leader"

// Remember changes what is remembered of a pool and writes it, as a leader. It is
// the fence: where another leader wrote meanwhile it fails with *NotLeaderError, and
// the caller must not act.
func (l *Leader) Remember(ctx context.Context, pool string, change func(*Memory)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.until) {
		return &NotLeaderError{l.who}
	}
	ctx, cancel := context.WithDeadline(ctx, l.until)
	defer cancel()
	if l.cm == nil {
		if err := l.load(ctx); err != nil {
			return err
		}
	}
	m := &Memory{}
	if old := l.memory[pool]; old != nil {
		*m = *old
	}
	change(m)
	m.Term = l.term
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	cm := l.cm.DeepCopy()
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	if cm.Data[pool] == string(text) {
		return nil
	}
	cm.Data[pool] = string(text)
	cm, err = l.o.Cluster.Pods.CoreV1().ConfigMaps(l.o.Namespace).Update(ctx, cm, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		l.cm = nil // the next act reads it anew, and acts only if this still leads
		return errors.Join(&NotLeaderError{"somebody else wrote " + l.o.Namespace + "/" + l.o.Name}, err)
	}
	if err != nil {
		return err
	}
	l.cm, l.memory[pool] = cm, m
	return nil
}
