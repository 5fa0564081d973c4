// SPDX-License-Identifier: Apache-2.0

package admit

// Order is the rank of a waiting request before the picker's own ratio is asked:
// class first, then the tenant whose service is furthest behind. Smaller goes
// first.
type Order struct {
	Class uint8   // 0 is the most urgent
	Start float64 // virtual time, in seconds of work per unit of weight
}

// Less reports whether a goes before b.
func (a Order) Less(b Order) bool {
	if a.Class != b.Class {
		return a.Class < b.Class
	}
	return a.Start < b.Start
}

// Fair keeps the virtual time of each tenant: start-time fair queueing (Goyal,
// Vin, Cheng 1996) counted in work, not in requests. A tenant that was idle gets no
// credit for it, a tenant that floods only delays itself. The zero Fair is ready.
// Not safe for concurrent use.
type Fair struct {
	numbers map[string]int32
	tenants []tenant
	clock   float64
}

type tenant struct {
	name   string
	weight float64
	finish float64
}

// Tenant returns the number of a tenant, counted from 0 in order of first sight.
func (f *Fair) Tenant(name string) int32 {
	if n, ok := f.numbers[name]; ok {
		return n
	}
	if f.numbers == nil {
		f.numbers = map[string]int32{}
	}
	n := int32(len(f.tenants))
	f.numbers[name] = n
	f.tenants = append(f.tenants, tenant{name: name, weight: 1})
	return n
}

// SetWeight sets a tenant's share; weights that are not positive count as 1.
func (f *Fair) SetWeight(name string, weight float64) {
	if !(weight > 0) {
		weight = 1
	}
	f.tenants[f.Tenant(name)].weight = weight
}

// Weight returns a tenant's share.
func (f *Fair) Weight(tenant int32) float64 { return f.tenants[tenant].weight }

// Name returns the name of a tenant.
func (f *Fair) Name(tenant int32) string { return f.tenants[tenant].name }

// Start returns the virtual time at which the tenant's next request starts.
func (f *Fair) Start(tenant int32) float64 {
	return max(f.clock, f.tenants[tenant].finish)
}

// Serve charges a tenant with work, in seconds, that starts now.
func (f *Fair) Serve(tenant int32, work float64) {
	t := &f.tenants[tenant]
	start := max(f.clock, t.finish)
	f.clock = start
	t.finish = start + work/t.weight
}
