// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"

	"github.com/penstock-project/penstock/internal/admit"
)

// Item is what a gateway tells a store about one account, and what it wants from
// it. Lent, Used and Back are totals since the gateway started: an exchange that is
// repeated, since nobody knows whether the store saw it, changes nothing twice.
type Item struct {
	Account string
	Rule    admit.Rule
	Lent    int64 // that the gateway knows it was lent
	Used    int64
	Back    int64 // given back
	One     int64 // lend at least this, or nothing; 0: nothing is wanted
	All     int64 // lend up to this
	Gen     string
	Hint    int64 // what was left when last heard, refilled since; for a store that forgot
}

// Grant is a store's answer to an Item.
type Grant struct {
	Lent     int64 // now; includes Over
	Over     int64 // lent afterwards for what was used beyond what was lent
	Left     int64
	Gen      string // changes when the store has forgotten everything
	Gateways int    // that were heard lately
	Settling bool   // the store forgot and waits until every gateway has spoken
}

// Store keeps limits for several gateways. An error says that nobody knows whether
// the exchange took place.
type Store interface {
	Exchange(ctx context.Context, gateway string, items []Item) ([]Grant, error)
	Close()
}

// StoreStats is the state of a store as this gateway sees it.
type StoreStats struct {
	Used      bool // there is a store
	Up        bool
	Exchanges uint64
	Failures  uint64
	Borrowed  int64 // units in use that no store lent, of all accounts
	Gateways  int
}
