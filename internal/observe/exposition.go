// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/fleet"
)

// maxLine bounds one line of an exposition; maxGroups bounds the (model, rank)
// pairs of one replica.
const (
	maxLine   = 1 << 20
	maxGroups = 256
)

var errLongLine = errors.New("a line of more than 1 MiB")

// Parser reads expositions of one replica. It takes the text in pieces as they
// arrive, looks only at the names of the table, and keeps its memory from scrape
// to scrape: a scrape like the one before allocates nothing. Not safe for
// concurrent use.
type Parser struct {
	want Engine // EngineUnknown: find out
	tail []byte // an unfinished line
	err  error

	skip   []byte // name of the last line that did not matter
	last   []byte // label text of the last series that mattered
	lastAt int    // its group

	groups  []group
	cells   []cell // [row*stride + group]
	stride  int
	touched []int16 // rows that were seen in this scrape
	hits    [numEngines]int
	series  int // series of the table
	lines   int // lines that are neither comments nor empty
	blocks  bool

	kvTokens, blockSize float64
	kvSeen              bool
	kvRanks             []float64            // tokens of each rank; 0: it did not tell
	lora                [loraKept]loraSeries // the newest series of lora_requests_info, newest first
	loraSeen            int                  // of them
	loaded              []adapterName
	loadedSeen          bool
	names               []string // adapter names, shared between scrapes
}

// loraKept is how many series of lora_requests_info are looked at. The newest one
// is the state now; older ones tell which adapters were in use lately.
const loraKept = 8

// loraSeries is one series of lora_requests_info.
type loraSeries struct {
	at               float64 // its value: Unix time in seconds
	running, waiting []byte  // lists as the labels have them
	slots            float64
}

// group is one (model, rank) pair; the names live as long as the Parser.
type group struct {
	raw   string // the model as the label has it, escapes included
	model string
	rank  int
}

type cell struct {
	v    float64
	seen bool
	bad  bool // a part of it was no measurement
}

type adapterName struct{ name string }

// Parsed says what a scrape was, beside its values.
type Parsed struct {
	Engine Engine
	Series int // series of the table that were found; 0: nothing that we know
	Lines  int // series of any kind
	// AdaptersComplete says that the adapters list is the engine's own account of
	// what is resident, not only of what has requests.
	AdaptersComplete bool
}

// Reset starts a scrape. Engine restricts the names; EngineUnknown finds out.
func (p *Parser) Reset(e Engine) {
	p.want = e
	p.tail, p.skip, p.last, p.err = p.tail[:0], p.skip[:0], p.last[:0], nil
	for _, r := range p.touched {
		clear(p.cells[int(r)*p.stride : int(r)*p.stride+p.stride])
	}
	p.touched = p.touched[:0]
	p.hits = [numEngines]int{}
	p.series, p.lines, p.blocks = 0, 0, false
	p.kvTokens, p.blockSize, p.kvSeen, p.kvRanks = 0, 0, false, p.kvRanks[:0]
	p.loraSeen, p.loadedSeen, p.loaded = 0, false, p.loaded[:0]
}

// Write takes the next piece of the text. It fails only on a line that is too
// long.
func (p *Parser) Write(b []byte) (int, error) {
	n := len(b)
	if p.err != nil {
		return 0, p.err
	}
	if len(p.tail) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return n, p.keep(b)
		}
		if err := p.keep(b[:i]); err != nil {
			return 0, err
		}
		p.line(p.tail)
		p.tail = p.tail[:0]
		b = b[i+1:]
	}
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		p.line(b[:i])
		b = b[i+1:]
	}
	if len(b) > 0 {
		return n, p.keep(b)
	}
	return n, nil
}

func (p *Parser) keep(b []byte) error {
	if len(p.tail)+len(b) > maxLine {
		p.err = errLongLine
		return p.err
	}
	p.tail = append(p.tail, b...)
	return nil
}

// line reads one line. Most lines are buckets of histograms that nobody asked
// for: they come in runs of one name, which is compared and skipped.
func (p *Parser) line(l []byte) {
	if len(l) == 0 {
		return
	}
	if l[0] == '#' {
		p.comment(l)
		return
	}
	p.lines++
	if n := len(p.skip); n > 0 && len(l) > n && (l[n] == '{' || l[n] == ' ') && string(l[:n]) == string(p.skip) {
		return
	}
	i := 0
	for i < len(l) && l[i] != '{' && l[i] != ' ' && l[i] != '\t' {
		i++
	}
	r, ok := rowIndex[string(l[:i])]
	if !ok {
		p.skip = append(p.skip[:0], l[:i]...)
		return
	}
	p.sample(r, l[i:])
}

// oldCounter is the family whose unit changed from blocks to tokens under one
// name; only its help text tells.
var oldCounter = []byte("# HELP vllm:gpu_prefix_cache_queries")

func (p *Parser) comment(l []byte) {
	if len(l) > len(oldCounter) && l[2] == 'H' && bytes.HasPrefix(l, oldCounter) && bytes.Contains(l, []byte("blocks")) {
		p.blocks = true
	}
}

// sample reads the labels and the value that follow a name of the table.
func (p *Parser) sample(r rowRange, rest []byte) {
	var labels []byte
	if len(rest) > 0 && rest[0] == '{' {
		end := labelsEnd(rest)
		if end < 0 {
			return // cut or malformed: not a measurement
		}
		labels, rest = rest[1:end], rest[end+1:]
	}
	v, ok := leadingFloat(rest)
	if !ok {
		return
	}
	first := &rows[r.first]
	if p.want != EngineUnknown && first.engine != EngineUnknown && first.engine != p.want {
		return
	}
	if first.engine != EngineUnknown {
		p.hits[first.engine]++
		p.series++
	}
	switch first.q {
	case qCacheInfo:
		p.cacheInfo(labels)
		return
	case qAdapters:
		p.adapters(labels, v)
		return
	case qAdapterLoaded:
		p.adapterLoaded(labels, v)
		return
	}
	g := p.groupOf(labels)
	for i := r.first; i < r.first+r.n; i++ {
		if rows[i].label == "" || labelIs(labels, rows[i].label, rows[i].value) {
			p.add(i, g, v)
		}
	}
}

// add puts a value into its cell. Ranks of tensor parallelism in SGLang repeat
// the value of their data-parallel rank, so they do not add up; everything else
// under one (model, rank), such as finish reasons, does.
func (p *Parser) add(r int16, g int, v float64) {
	need := len(p.groups)
	if need > p.stride {
		p.grow(need)
	}
	at := int(r)*p.stride + g
	c := &p.cells[at]
	if !p.isTouched(r) {
		p.touched = append(p.touched, r)
	}
	bad := v != v || v < 0 || v-v != 0 // NaN, negative, infinite
	switch {
	case bad:
		c.bad = true
	case rows[r].engine == EngineSGLang && c.seen:
		c.v = max(c.v, v)
	default:
		c.v += v
	}
	c.seen = true
}

func (p *Parser) isTouched(r int16) bool {
	for _, c := range p.cells[int(r)*p.stride : int(r)*p.stride+p.stride] {
		if c.seen {
			return true
		}
	}
	return false
}

func (p *Parser) grow(need int) {
	stride := max(2*p.stride, need, 2)
	cells := make([]cell, len(rows)*stride)
	for r := range rows {
		copy(cells[r*stride:], p.cells[r*p.stride:r*p.stride+p.stride])
	}
	p.cells, p.stride = cells, stride
}

// groupOf returns the group of a label text. Series of one scrape mostly repeat
// the same text.
func (p *Parser) groupOf(labels []byte) int {
	if len(p.last) > 0 && string(labels) == string(p.last) {
		return p.lastAt
	}
	var model []byte
	rank := 0
	for rest := labels; ; {
		name, value, next, ok := nextLabel(rest)
		if !ok {
			break
		}
		rest = next
		switch string(name) {
		case "model_name", "model", "name":
			model = value
		case "engine", "dp_rank":
			if n, ok := smallInt(value); ok {
				rank = n
			}
		}
	}
	at := -1
	for i := range p.groups {
		if p.groups[i].rank == rank && p.groups[i].raw == string(model) {
			at = i
			break
		}
	}
	if at < 0 {
		if len(p.groups) >= maxGroups {
			return maxGroups - 1
		}
		p.groups = append(p.groups, group{string(model), unescape(model), rank})
		at = len(p.groups) - 1
	}
	p.last, p.lastAt = append(p.last[:0], labels...), at
	return at
}

// adapters keeps the newest series: each change of the set leaves another one,
// and the value is the moment of the change.
func (p *Parser) adapters(labels []byte, at float64) {
	if at != at || at < 0 {
		return
	}
	i := p.loraSeen
	for i > 0 && p.lora[i-1].at < at {
		i--
	}
	if i >= loraKept {
		return
	}
	// The last one makes room; its memory is used again.
	last := min(p.loraSeen, loraKept-1)
	s := p.lora[last]
	copy(p.lora[i+1:last+1], p.lora[i:last])
	p.loraSeen = min(p.loraSeen+1, loraKept)
	s.at, s.slots, s.running, s.waiting = at, 0, s.running[:0], s.waiting[:0]
	for rest := labels; ; {
		name, value, next, ok := nextLabel(rest)
		if !ok {
			break
		}
		rest = next
		switch string(name) {
		case "running_lora_adapters":
			s.running = append(s.running, value...)
		case "waiting_lora_adapters":
			s.waiting = append(s.waiting, value...)
		case "max_lora":
			if n, ok := smallInt(value); ok {
				s.slots = float64(n)
			}
		}
	}
	p.lora[i] = s
}

func (p *Parser) adapterLoaded(labels []byte, v float64) {
	p.loadedSeen = true
	if v <= 0 || v != v {
		return
	}
	for rest := labels; ; {
		name, value, next, ok := nextLabel(rest)
		if !ok {
			return
		}
		rest = next
		if string(name) == "adapter_name" {
			p.loaded = append(p.loaded, adapterName{p.intern(value)})
		}
	}
}

// intern returns the name as a string that is shared between scrapes.
func (p *Parser) intern(b []byte) string {
	for _, s := range p.names {
		if s == string(b) {
			return s
		}
	}
	if len(p.names) >= 4096 {
		p.names = nil
	}
	s := unescape(b)
	p.names = append(p.names, s)
	return s
}

// Finish ends the scrape and writes what it said into sig, whose slices it
// reuses. Values that the scrape did not tell become unknown.
func (p *Parser) Finish(now fleet.Time, sig *fleet.Signals) (Parsed, error) {
	if p.err != nil {
		return Parsed{}, p.err
	}
	if len(p.tail) > 0 {
		p.line(p.tail)
		p.tail = p.tail[:0]
	}
	out := Parsed{Engine: p.engine(), Series: p.series, Lines: p.lines, AdaptersComplete: p.loadedSeen}
	p.resolve(now, out.Engine, sig)
	return out, nil
}

// engine is the one whose names were seen most often.
func (p *Parser) engine() Engine {
	best := p.want
	for e := EngineUnknown + 1; e < numEngines; e++ {
		if p.hits[e] > 0 && (best == EngineUnknown || p.hits[e] > p.hits[best]) {
			best = e
		}
	}
	return best
}

// Parse reads a whole exposition. Callers that scrape again and again keep a
// Parser instead.
func Parse(exposition []byte, e Engine, now fleet.Time, sig *fleet.Signals) (Parsed, error) {
	var p Parser
	p.Reset(e)
	if _, err := p.Write(exposition); err != nil {
		return Parsed{}, err
	}
	return p.Finish(now, sig)
}

// labelsEnd returns the place of the brace that closes the labels, -1 where there
// is none. Braces inside quotes do not count.
func labelsEnd(b []byte) int {
	for i := 1; i < len(b); {
		switch b[i] {
		case '}':
			return i
		case '"':
			j := quoteEnd(b, i+1)
			if j < 0 {
				return -1
			}
			i = j + 1
		default:
			i++
		}
	}
	return -1
}

// quoteEnd returns the place of the quote that ends a text that began before i.
func quoteEnd(b []byte, i int) int {
	for i < len(b) {
		j := bytes.IndexByte(b[i:], '"')
		if j < 0 {
			return -1
		}
		end, back := i+j, 0
		for k := end - 1; k >= i && b[k] == '\\'; k-- {
			back++
		}
		if back%2 == 0 {
			return end
		}
		i = end + 1
	}
	return -1
}

// nextLabel splits the first name="value" off a label text.
func nextLabel(b []byte) (name, value, rest []byte, ok bool) {
	for len(b) > 0 && (b[0] == ',' || b[0] == ' ') {
		b = b[1:]
	}
	eq := bytes.IndexByte(b, '=')
	if eq < 0 || eq+1 >= len(b) || b[eq+1] != '"' {
		return nil, nil, nil, false
	}
	end := quoteEnd(b, eq+2)
	if end < 0 {
		return nil, nil, nil, false
	}
	return b[:eq], b[eq+2 : end], b[end+1:], true
}

func labelIs(labels []byte, want, value string) bool {
	for {
		n, v, rest, ok := nextLabel(labels)
		if !ok {
			return false
		}
		if string(n) == want {
			return string(v) == value
		}
		labels = rest
	}
}

// unescape turns a label value into text.
func unescape(b []byte) string {
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b)
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(string(b))
}

func smallInt(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > 6 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// positive reads a number above 0; everything else, such as None, is 0.
func positive(b []byte) float64 {
	v, ok := leadingFloat(b)
	if !ok || !(v > 0) || v > 1e15 {
		return 0
	}
	return v
}

var pow10 = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// leadingFloat reads the number at the start of b, after white space. Plain
// decimals of up to 15 digits, nearly all there are, need no general parser: they
// are exact in one division.
func leadingFloat(b []byte) (float64, bool) {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	b = b[i:]
	var m uint64
	digits, frac, dot := 0, 0, false
	for i = 0; i < len(b); i++ {
		c := b[i]
		if c >= '0' && c <= '9' {
			m = 10*m + uint64(c-'0')
			digits++
			if dot {
				frac++
			}
			if digits > 15 {
				return slowFloat(b)
			}
			continue
		}
		if c == '.' && !dot {
			dot = true
			continue
		}
		if c == ' ' || c == '\t' || c == '\r' {
			break
		}
		return slowFloat(b)
	}
	if digits == 0 {
		return 0, false
	}
	return float64(m) / pow10[frac], true
}

func slowFloat(b []byte) (float64, bool) {
	end := 0
	for end < len(b) && end < 64 && b[end] != ' ' && b[end] != '\t' && b[end] != '\r' {
		end++
	}
	v, err := strconv.ParseFloat(string(b[:end]), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return v, true
}
