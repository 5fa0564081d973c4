// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/config"
)

// draft is the configuration that is being made.
type draft struct {
	pools   []*pool
	names   map[string]bool // of pools
	served  map[string]*pool
	prices  []price
	listen  [][2]string // key, value
	tls     [2]string   // certificate, key
	redis   [2]string   // address, file of the password
	body    string      // limits.bodyBytes
	advice  []string    // lines that the user may uncomment
	remarks []string    // lines at the top
}

type pool struct {
	name, remark  string
	models        []*model
	static        []string
	selector      []string // labels
	namespace     string
	port          int
	inferencePool string
	keyFile, key  string // key is only compared; it is never written
	policy, was   string // was: what the source called it
	holdFor       string
	fallback      []string
	min, max      int // scale; max 0: none
}

type model struct {
	name              string
	aliases, adapters []string
}

type price struct {
	model                  string
	prompt, cached, output float64 // of a million tokens
}

func newDraft() *draft {
	return &draft{names: map[string]bool{}, served: map[string]*pool{}}
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// pool adds a pool with a name made of what it is for.
func (d *draft) pool(for_ string) *pool {
	base := strings.Trim(unfit.ReplaceAllString(for_[strings.LastIndexByte(for_, '/')+1:], "-"), "-._")
	if len(base) > 50 {
		base = strings.Trim(base[:50], "-._")
	}
	if base == "" {
		base = "pool"
	}
	name := base
	for i := 2; d.names[name]; i++ {
		name = base + "-" + strconv.Itoa(i)
	}
	d.names[name] = true
	p := &pool{name: name}
	d.pools = append(d.pools, p)
	return p
}

// serve gives a pool a name that clients may ask for; false where another has it.
func (d *draft) serve(p *pool, name string) bool {
	if d.served[name] != nil {
		return false
	}
	d.served[name] = p
	return true
}

// replica returns an address as Penstock writes it, without /v1; "" where it is none.
func replica(address string) string {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return ""
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	out := strings.TrimRight(u.String(), "/")
	if config.CheckReplicaURL(out) != nil {
		return ""
	}
	return out
}

// add puts a replica into the pool once.
func (p *pool) add(address string) {
	if !slices.Contains(p.static, address) {
		p.static = append(p.static, address)
	}
}

func scalar(v string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(v)
	if n.Style == yaml.LiteralStyle {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func bare(v string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: v} }

func listOf(vs []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, v := range vs {
		n.Content = append(n.Content, scalar(v))
	}
	return n
}

// object is a mapping that grows.
type object struct{ *yaml.Node }

func newObject() object { return object{&yaml.Node{Kind: yaml.MappingNode}} }

func (o object) put(key string, v *yaml.Node, remark string) {
	k := scalar(key)
	if remark != "" {
		k.HeadComment = "# " + plain(remark)
	}
	o.Content = append(o.Content, k, v)
}

func (o object) flow() object {
	o.Style = yaml.FlowStyle
	return o
}

// yaml writes the file.
func (d *draft) yaml(j *job) ([]byte, error) {
	top := newObject()
	if len(d.listen) > 0 {
		o := newObject()
		for _, l := range d.listen {
			o.put(l[0], scalar(l[1]), "")
		}
		top.put("listen", o.Node, "")
	}
	if d.tls[0] != "" {
		o := newObject()
		o.put("cert", scalar(d.tls[0]), "")
		o.put("key", scalar(d.tls[1]), "")
		top.put("tls", o.Node, "")
	}
	if d.body != "" {
		o := newObject()
		o.put("bodyBytes", scalar(d.body), "")
		top.put("limits", o.Node, "")
	}
	pools := &yaml.Node{Kind: yaml.SequenceNode}
	for _, p := range d.pools {
		n := p.yaml()
		if p.remark != "" {
			n.HeadComment = "# " + plain(p.remark)
		}
		pools.Content = append(pools.Content, n)
	}
	top.put("pools", pools, "")
	if len(d.prices) > 0 {
		top.put("prices", pricesYAML(d.prices), "Of a million tokens.")
	}
	if d.redis[0] != "" {
		o := newObject()
		o.put("redis", scalar(d.redis[0]), "")
		if d.redis[1] != "" {
			o.put("redisPasswordFile", scalar(d.redis[1]), "")
		}
		top.put("share", o.Node, "Quotas of several gateways are counted here; one gateway alone needs none.")
	}
	var b bytes.Buffer
	b.WriteString(d.head(j))
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(top.Node); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	if len(d.advice) > 0 {
		b.WriteString("\n")
		for _, l := range d.advice {
			fmt.Fprintf(&b, "# %s\n", plain(l))
		}
	}
	return b.Bytes(), nil
}

// head is the comment at the top: where the file comes from, and what is not in it.
func (d *draft) head(j *job) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by `penstock config from %s` of %s.\n", j.kind, plain(j.in.Name))
	for _, r := range d.remarks {
		fmt.Fprintf(&b, "# %s\n", plain(r))
	}
	for _, part := range []struct{ kind, title string }{
		{Todo, "To do before it runs"}, {Changed, "Came over, and behaves differently"}, {Left, "Did not come over"},
	} {
		first := true
		for _, n := range j.notes {
			if n.Kind != part.kind {
				continue
			}
			if first {
				fmt.Fprintf(&b, "#\n# %s:\n", part.title)
				first = false
			}
			fmt.Fprintf(&b, "#   %s: %s\n", n.Key, plain(n.Why))
		}
	}
	b.WriteString("\n")
	return b.String()
}

func pricesYAML(prices []price) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, p := range prices {
		o := newObject().flow()
		o.put("model", scalar(p.model), "")
		for _, f := range []struct {
			key string
			v   float64
		}{{"prompt", p.prompt}, {"cached", p.cached}, {"output", p.output}} {
			if f.v > 0 {
				o.put(f.key, bare(strconv.FormatFloat(rounded(f.v), 'f', -1, 64)), "")
			}
		}
		list.Content = append(list.Content, o.Node)
	}
	return list
}

// rounded takes away what the change of the unit added.
func rounded(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 9, 64), 64)
	if err != nil {
		return v
	}
	return r
}

func (p *pool) yaml() *yaml.Node {
	o := newObject()
	o.put("name", scalar(p.name), "")
	if len(p.models) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, m := range p.models {
			x := newObject().flow()
			x.put("name", scalar(m.name), "")
			if len(m.aliases) > 0 {
				x.put("aliases", listOf(m.aliases), "")
			}
			if len(m.adapters) > 0 {
				x.put("adapters", listOf(m.adapters), "")
			}
			list.Content = append(list.Content, x.Node)
		}
		o.put("models", list, "")
	}
	o.put("replicas", p.source().Node, "")
	if p.keyFile != "" {
		x := newObject().flow()
		x.put("apiKeyFile", scalar(p.keyFile), "")
		o.put("engine", x.Node, "")
	}
	route := newObject().flow()
	if p.policy != "" {
		route.put("policy", scalar(p.policy), "")
	}
	if p.holdFor != "" {
		route.put("holdFor", scalar(p.holdFor), "")
	}
	if len(route.Content) > 0 {
		remark := ""
		if p.was != "" {
			remark = "There: " + p.was + "."
		}
		o.put("route", route.Node, remark)
	}
	if p.max > 0 {
		x := newObject().flow()
		x.put("min", bare(strconv.Itoa(p.min)), "")
		x.put("max", bare(strconv.Itoa(p.max)), "")
		o.put("scale", x.Node, "Says how many there should be; it sets nothing until a target is named.")
	}
	if len(p.fallback) > 0 {
		o.put("fallback", listOf(p.fallback), "")
	}
	return o.Node
}

// source is where the replicas are found.
func (p *pool) source() object {
	o := newObject()
	switch {
	case p.inferencePool != "":
		o.put("inferencePool", scalar(p.inferencePool), "")
	case len(p.selector) > 0:
		x := newObject()
		if p.namespace != "" {
			x.put("namespace", scalar(p.namespace), "")
		}
		x.put("labels", listOf(p.selector), "")
		x.put("port", bare(strconv.Itoa(p.port)), "")
		o.put("selector", x.Node, "")
	default:
		list := listOf(p.static)
		list.Style = 0
		o.put("static", list, "")
	}
	return o
}
