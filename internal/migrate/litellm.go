// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// openAI are the prefixes of litellm_params.model behind which a server of one's own
// speaks the API of OpenAI at api_base.
var openAI = map[string]bool{
	"hosted_vllm": true, "openai": true, "text-completion-openai": true, "openai_like": true, "custom_openai": true, "ollama": true,
	"ollama_chat": true, "llamafile": true, "lm_studio": true, "xinference": true, "litellm_proxy": true, "huggingface": true,
	"nvidia_nim": true, "infinity": true, "docker_model_runner": true, "lemonade": true,
}

// providers are prefixes of hosted ones, so that the first part of an organisation/model
// is not taken for one.
var providers = map[string]bool{
	"azure": true, "azure_ai": true, "bedrock": true, "vertex_ai": true, "vertex_ai_beta": true, "gemini": true, "anthropic": true,
	"mistral": true, "cohere": true, "groq": true, "together_ai": true, "fireworks_ai": true, "openrouter": true, "deepseek": true,
	"replicate": true, "sagemaker": true, "sagemaker_chat": true, "databricks": true, "watsonx": true, "perplexity": true, "xai": true,
	"deepinfra": true, "cerebras": true, "sambanova": true, "anyscale": true, "voyage": true, "cloudflare": true, "github": true, "nlp_cloud": true,
	"codestral": true, "predibase": true, "volcengine": true, "aiml": true, "nebius": true, "novita": true, "hyperbolic": true, "oci": true,
}

// deployment is one entry of model_list that a server of one's own answers.
type deployment struct {
	entry        *node
	public, real string
	address      string
	key          *node
}

// litellm converts the config.yaml of LiteLLM's proxy.
func (j *job) litellm() error {
	docs, err := documents(j.in.Name, j.in.Data)
	if err != nil {
		return err
	}
	if len(docs) != 1 || docs[0].get("model_list") == nil {
		return fmt.Errorf("%s is no config.yaml of LiteLLM: it has no model_list", j.in.Name)
	}
	top := docs[0]
	var ds []*deployment
	for _, e := range top.get("model_list").list() {
		if d := j.deployment(e); d != nil {
			ds = append(ds, d)
		}
	}
	j.pools(ds)
	j.modelAliases(top.at("router_settings", "model_group_alias"))
	for _, section := range []string{"router_settings", "litellm_settings"} {
		s := top.get(section)
		j.strategy(s.get("routing_strategy"))
		j.fallbacks(s.get("fallbacks"))
		if n := s.get("context_window_fallbacks"); n != nil {
			j.note(Changed, n.path, n.line, "there is one list: these pools are tried for other reasons, too")
			j.fallbacks(n)
		}
		j.defaultFallbacks(s.get("default_fallbacks"))
	}
	for _, p := range j.out.pools {
		if p.policy == "" {
			p.policy, p.was = "penstock", "simple-shuffle, which is LiteLLM's own default"
		}
	}
	j.redis(top.get("router_settings"))
	j.rest(top, litellmReason)
	return nil
}

// text returns a scalar, read from the environment where it says os.environ/NAME.
func (j *job) text(n *node) string {
	v := n.take()
	name, ok := strings.CutPrefix(v, "os.environ/")
	if !ok {
		return v
	}
	if j.in.Getenv == nil {
		return ""
	}
	return strings.TrimSpace(j.in.Getenv(name))
}

// deployment reads an entry of model_list; nil where it is nothing for Penstock, which
// is then noted.
func (j *job) deployment(e *node) *deployment {
	p := e.get("litellm_params")
	d := &deployment{entry: e, public: e.get("model_name").take(), key: p.get("api_key")}
	full := p.get("model").take()
	provider, real, split := strings.Cut(full, "/")
	if !split || !openAI[provider] && !providers[provider] {
		provider, real = p.get("custom_llm_provider").take(), full
	}
	base := p.get("api_base")
	if base == nil {
		base = p.get("base_url")
	}
	refuse := func(why string) *deployment {
		e.unmark()
		j.leave(e, why)
		return nil
	}
	switch {
	case d.public == "" || real == "":
		return refuse("the entry has no model_name or no litellm_params.model")
	case providers[provider] || provider != "" && !openAI[provider]:
		return refuse("a hosted provider, or one that is not spoken to as OpenAI is: keep LiteLLM for it, and let it call Penstock")
	case base == nil:
		return refuse("it names no api_base: a hosted provider. Keep LiteLLM for it")
	}
	address := j.text(base)
	if address == "" {
		return refuse("its api_base is read from the environment and is not set here: set the variable and convert again")
	}
	d.address = replica(address)
	switch {
	case d.address == "":
		return refuse("its api_base is no http or https URL that Penstock could serve")
	case hosted(d.address):
		return refuse("its api_base is a hosted provider's: keep LiteLLM for it")
	}
	d.real = plain(real)
	d.public = plain(d.public)
	j.price(d, p, e.get("model_info"))
	for _, k := range []string{"mode", "id", "base_model"} {
		if n := e.at("model_info", k); n != nil && (k != "mode" || n.val == "chat" || n.val == "completion") {
			n.mark() // what it says is known here without it
		}
	}
	return d
}

// hosted reports whether an address is one of a provider, by its domain.
func hosted(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	for _, domain := range []string{"openai.com", "azure.com", "anthropic.com", "googleapis.com", "amazonaws.com", "groq.com", "mistral.ai", "together.xyz", "openrouter.ai"} {
		if h := u.Hostname(); h == domain || strings.HasSuffix(h, "."+domain) {
			return true
		}
	}
	return false
}

// price takes over what tokens cost, once for each model.
func (j *job) price(d *deployment, from ...*node) {
	p := price{model: d.real}
	for _, n := range from {
		for key, to := range map[string]*float64{
			"input_cost_per_token": &p.prompt, "cache_read_input_token_cost": &p.cached, "output_cost_per_token": &p.output,
		} {
			if c := n.get(key); c != nil && strings.Contains(d.real, "*") {
				j.leave(c, "prices are of one model by its name, not of a wildcard")
			} else if c != nil && *to == 0 {
				if v, ok := c.number(); ok && v <= 1 {
					*to = v * 1e6
				} else {
					c.used = false
				}
			}
		}
	}
	if p.prompt+p.cached+p.output == 0 {
		return
	}
	for _, have := range j.out.prices {
		if have.model == p.model {
			if have != p {
				j.note(Changed, d.entry.path, d.entry.line, "another entry of the same model has other prices: the first ones hold")
			}
			return
		}
	}
	j.out.prices = append(j.out.prices, p)
}

// pools makes a pool of each model as its engines know it.
func (j *job) pools(ds []*deployment) {
	byReal := map[string]*pool{}
	first := map[string]string{} // public name: model that it stands for
	for _, d := range ds {
		p := byReal[d.real]
		wild := strings.Contains(d.real, "*")
		if p == nil {
			p = j.out.pool(d.real)
			byReal[d.real] = p
			p.remark = "Replicas of " + d.real + "."
			if wild {
				p.remark = "Whatever these replicas list."
				j.note(Changed, d.entry.path, d.entry.line, "a wildcard: the pool serves the models that its replicas list, by their own names")
			} else {
				p.models = []*model{{name: d.real}}
				j.out.serve(p, d.real)
			}
		}
		p.add(d.address)
		j.engineKey(p, d)
		if want, ok := first[d.public]; ok && want != d.real {
			j.note(Changed, d.entry.path, d.entry.line, "its model_name stands for another model first: here one name is one model. "+
				"Ask for this one by its own name, or split the name with rollouts")
			continue
		}
		first[d.public] = d.real
	}
	for _, d := range ds { // after all real names, which come before aliases
		p := byReal[d.real]
		if first[d.public] != d.real || len(p.models) == 0 || d.public == d.real || slices.Contains(p.models[0].aliases, d.public) {
			continue
		}
		if !j.out.serve(p, d.public) {
			j.note(Changed, d.entry.path, d.entry.line, "its model_name is the own name of another model here, which keeps it")
			continue
		}
		p.models[0].aliases = append(p.models[0].aliases, d.public)
	}
	j.merged(ds)
	j.caps(ds)
}

// merged notes names that had replicas of their own and share a pool here.
func (j *job) merged(ds []*deployment) {
	type key struct{ real, public string }
	sets := map[key][]string{}
	for _, d := range ds {
		k := key{d.real, d.public}
		if !slices.Contains(sets[k], d.address) {
			sets[k] = append(sets[k], d.address)
			slices.Sort(sets[k])
		}
	}
	told := map[string]bool{}
	for _, d := range ds {
		for k, set := range sets {
			if k.real == d.real && k.public != d.public && !slices.Equal(set, sets[key{d.real, d.public}]) && !told[d.real] {
				told[d.real] = true
				j.note(Changed, d.entry.path, d.entry.line, "several model_names had different replicas of this model: here they share one pool. "+
					"For replicas of their own let the engines serve them under different names")
			}
		}
	}
}

// engineKey says which file the key for the replicas goes into.
func (j *job) engineKey(p *pool, d *deployment) {
	if d.key == nil {
		return
	}
	v := d.key.take()
	switch strings.ToLower(v) {
	case "", "none", "empty", "dummy", "fake-key", "anything", "not-needed", "sk-no-key-required":
		return // what is written where no key is needed
	}
	if p.keyFile == "" {
		p.keyFile, p.key = p.name+".key", v
		j.note(Todo, d.key.path, d.key.line, "write the key for the replicas into the file "+p.keyFile+"; keys do not stand in penstock.yaml")
		return
	}
	if v == p.key {
		return
	}
	j.note(Changed, d.key.path, d.key.line, "a pool has one key for all its replicas: "+p.keyFile)
}

// caps turns caps of deployments into limits that the user may give to tenants.
func (j *job) caps(ds []*deployment) {
	type sum struct {
		requests, tokens float64
		n                int
	}
	sums := map[string]*sum{}
	var order []string
	for _, d := range ds {
		var rpm, tpm float64
		for _, from := range []*node{d.entry.get("litellm_params"), d.entry, d.entry.get("model_info")} {
			for key, to := range map[string]*float64{"rpm": &rpm, "tpm": &tpm} {
				c := from.get(key)
				if v, ok := c.number(); ok {
					*to = v
					j.note(Left, c.path, c.line, "a cap of one deployment: here a busy replica costs more milliseconds instead. "+
						"To cap clients see the limits at the end of the file")
				}
			}
		}
		if rpm+tpm == 0 {
			continue
		}
		s := sums[d.real]
		if s == nil {
			s = &sum{}
			sums[d.real] = s
			order = append(order, d.real)
		}
		s.requests, s.tokens, s.n = s.requests+rpm, s.tokens+tpm, s.n+1
	}
	if len(order) == 0 {
		return
	}
	j.out.advice = append(j.out.advice, "Caps of all deployments of a model together, as limits of one tenant:", "tenants:", "  - name: everybody", "    limits:")
	for _, real := range order {
		s, what := sums[real], ""
		if s.requests > 0 {
			what += ", requests: " + strconv.FormatFloat(s.requests, 'f', 0, 64)
		}
		if s.tokens > 0 {
			what += ", tokens: " + strconv.FormatFloat(s.tokens, 'f', 0, 64)
		}
		j.out.advice = append(j.out.advice, fmt.Sprintf("      - {per: 1m, model: %q%s}", real, what))
	}
}

// modelAliases adds other names of a model_name.
func (j *job) modelAliases(n *node) {
	if n == nil {
		return
	}
	for i, alias := range n.keys {
		to := n.kids[i]
		name := to.take()
		if to.get("model") != nil {
			name = to.get("model").take()
			if h := to.get("hidden"); h.take() == "true" {
				j.note(Changed, h.path, h.line, "aliases are listed; who may see a model is said by models[].tenants")
			}
		}
		alias = plain(alias)
		p := j.out.served[name]
		switch {
		case p == nil:
			to.unmark()
			j.leave(to, "it is another name of a model that did not come over")
		case !j.out.serve(p, alias):
			j.note(Changed, to.path, to.line, "the name is taken by another model here")
		default:
			p.models[0].aliases = append(p.models[0].aliases, alias)
		}
	}
}

// nearest are policies of Penstock that are most like those of LiteLLM.
var nearest = map[string]string{
	"simple-shuffle": "random", "least-busy": "least-requests", "latency-based-routing": "power-of-two",
	"usage-based-routing": "least-requests", "usage-based-routing-v2": "least-requests", "cost-based-routing": "",
}

func (j *job) strategy(n *node) {
	if n == nil {
		return
	}
	was := plain(n.take())
	why := "each candidate has a price in ms, its prefix cache included"
	if near := nearest[was]; near != "" {
		why += "; nearest by name is " + near
	}
	j.note(Changed, n.path, n.line, "route.policy is penstock: "+why)
	for _, p := range j.out.pools {
		p.policy, p.was = "penstock", was
	}
}

// fallbacks reads a list of {model_name: [model_name, ...]}.
func (j *job) fallbacks(n *node) {
	for _, rule := range n.list() {
		for i, from := range rule.keys {
			if from == "*" {
				j.defaultFallbacks(rule.kids[i])
				continue
			}
			if p := j.out.served[from]; p != nil {
				j.fallTo(p, rule.kids[i])
			} else {
				j.leave(rule.kids[i], "falls back from a model that did not come over")
			}
		}
	}
}

// defaultFallbacks gives its models to every pool that has no fallback.
func (j *job) defaultFallbacks(n *node) {
	if n == nil {
		return
	}
	for _, p := range j.out.pools {
		if len(p.fallback) == 0 {
			n.unmark()
			j.fallTo(p, n)
		}
	}
}

func (j *job) fallTo(p *pool, to *node) {
	for _, t := range to.list() {
		name := t.take()
		switch q := j.out.served[name]; {
		case q == nil:
			t.used = false
			j.leave(t, "falls back to a model that did not come over")
		case q == p:
			j.note(Changed, t.path, t.line, "it is a name of the same pool, whose replicas are tried anyway")
		case !slices.Contains(p.fallback, q.name):
			p.fallback = append(p.fallback, q.name)
		}
	}
}

// redis takes over where limits are counted.
func (j *job) redis(s *node) {
	host, port := s.get("redis_host"), s.get("redis_port")
	if s.get("redis_url") != nil {
		j.leave(s.get("redis_url"), "write host and port into share.redis, and a password into a file named by share.redisPasswordFile")
	}
	if host == nil {
		return
	}
	h, p := j.text(host), "6379"
	if port != nil {
		p = j.text(port)
	}
	if n, err := strconv.ParseUint(p, 10, 16); err != nil || h == "" || strings.ContainsAny(h, "/ \t@?#") || strconv.FormatUint(n, 10) != p {
		host.used = false
		port.unmark()
		j.leave(host, "where Redis is cannot be told here (a variable that is not set?): write share.redis yourself")
		j.leave(port, "belongs to redis_host")
		return
	}
	j.out.redis[0] = net.JoinHostPort(strings.Trim(h, "[]"), p)
	if pw := s.get("redis_password"); pw != nil {
		pw.mark()
		j.out.redis[1] = "redis.password"
		j.note(Todo, pw.path, pw.line, "write the password into the file redis.password")
	}
	j.note(Changed, host.path, host.line, "only quotas of tenants are counted there; what replicas do is known from their metrics")
}
