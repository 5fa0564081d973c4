// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"container/heap"
	"container/list"
	"math"
	"sort"
)

// LoRACeiling says what caches of as many slots as the whole fleet has would do with
// one sequence of requests, without any regard to which replica carries the load:
// shares of requests whose adapter is there already.
type LoRACeiling struct {
	// Clairvoyant is Belady's rule, which knows all that comes: no placement, on
	// demand or ahead, gets by with fewer loads.
	Clairvoyant float64 `json:"clairvoyant_resident_share"`
	// StaticTop fixes the adapters that are asked for most; it never serves the
	// others. They are there from the start, so few requests can make it exceed
	// Clairvoyant.
	StaticTop float64 `json:"static_top_resident_share"`
	// SharedLRU drops what was not asked for longest, as engines do in their slots.
	SharedLRU float64 `json:"shared_lru_resident_share"`
}

// CeilingOf plays a sequence of adapters, "" being the base model, to caches of the
// given number of slots. All but StaticTop start empty.
func CeilingOf(asked []string, slots int) LoRACeiling {
	if len(asked) == 0 {
		return LoRACeiling{}
	}
	n := float64(len(asked))
	return LoRACeiling{
		Clairvoyant: 1 - float64(beladyLoads(asked, slots))/n,
		StaticTop:   staticTop(asked, slots) / n,
		SharedLRU:   1 - float64(lruLoads(asked, slots))/n,
	}
}

// staticTop counts the requests to the slots adapters that are asked for most.
func staticTop(asked []string, slots int) float64 {
	count := map[string]int{}
	base := 0
	for _, a := range asked {
		if a == "" {
			base++
			continue
		}
		count[a]++
	}
	all := make([]int, 0, len(count))
	for _, c := range count {
		all = append(all, c)
	}
	sort.Sort(sort.Reverse(sort.IntSlice(all)))
	sum := base
	for _, c := range all[:min(slots, len(all))] {
		sum += c
	}
	return float64(sum)
}

func lruLoads(asked []string, slots int) int {
	recent, at, loads := list.New(), map[string]*list.Element{}, 0
	for _, a := range asked {
		if a == "" {
			continue
		}
		if e := at[a]; e != nil {
			recent.MoveToFront(e)
			continue
		}
		loads++
		if recent.Len() >= slots {
			last := recent.Back()
			delete(at, last.Value.(string))
			recent.Remove(last)
		}
		at[a] = recent.PushFront(a)
	}
	return loads
}

// farthest is a heap of residents, the one that is asked for last of all first.
type farthest []next

type next struct {
	name string
	at   int // index of its next request
}

func (h farthest) Len() int           { return len(h) }
func (h farthest) Less(i, j int) bool { return h[i].at > h[j].at }
func (h farthest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *farthest) Push(x any)        { *h = append(*h, x.(next)) }
func (h *farthest) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// beladyLoads counts the loads of a cache that drops the adapter whose next request
// is farthest away (L. A. Belady, A study of replacement algorithms for a
// virtual-storage computer, IBM Systems Journal 5(2), 1966): the least possible.
func beladyLoads(asked []string, slots int) int {
	after := make([]int, len(asked)) // of each request: the next one for the same adapter
	seen := map[string]int{}
	for i := len(asked) - 1; i >= 0; i-- {
		after[i] = math.MaxInt
		if k, ok := seen[asked[i]]; ok {
			after[i] = k
		}
		seen[asked[i]] = i
	}
	resident := map[string]int{} // to the index of its next request
	var h farthest
	loads := 0
	for i, a := range asked {
		if a == "" {
			continue
		}
		if _, ok := resident[a]; !ok {
			loads++
			for len(resident) >= slots {
				x := heap.Pop(&h).(next)
				if resident[x.name] == x.at { // else it was asked for again since
					delete(resident, x.name)
				}
			}
		}
		resident[a] = after[i]
		heap.Push(&h, next{a, after[i]})
	}
	return loads
}

// loraImbalance is the imbalance up to which LoRABest lets a replica be used.
const loraImbalance = 1.10

// LoRABest returns the largest share of independent requests that can find their
// adapter resident: popularity Zipf with exponent zipf over adapters, slots of a
// replica, no replica with more than 1.10 times the mean.
func LoRABest(adapters, replicas, slots int, zipf float64) float64 {
	sum := 0.0
	for k := 1; k <= adapters; k++ {
		sum += math.Pow(float64(k), -zipf)
	}
	free, share := replicas*slots, 0.0
	for k := 1; k <= adapters && free > 0; k++ {
		p := math.Pow(float64(k), -zipf) / sum
		copies := int(math.Ceil(p * float64(replicas) / loraImbalance))
		have := min(copies, free)
		share += p * float64(have) / float64(copies)
		free -= have
	}
	return share
}
