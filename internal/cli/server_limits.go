// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/gateway"
	"github.com/penstock-project/penstock/internal/wire"
)

// bodyLimits are what a configuration allows one body to ask for.
func bodyLimits(l *config.Limits) wire.Limits {
	return wire.Limits{
		MaxDepth: l.Depth, MaxTokens: l.MaxTokens, MaxAnswers: l.Answers, MaxPrompts: l.Prompts, MaxLogprobs: l.Logprobs,
		MaxTools: l.Tools, MaxSchemaBytes: int(l.SchemaBytes), MaxSchemaDepth: l.SchemaDepth,
		MaxMedia: l.Media, MaxMediaBytes: int(l.MediaBytes), Media: wire.ParseMediaPolicy(l.MediaURLs), MaxParts: l.Parts,
	}
}

// connLimits are what a configuration allows clients to hold.
func connLimits(l *config.Limits) gateway.ConnLimits {
	return gateway.ConnLimits{
		HeadBytes: int(l.HeadBytes), Total: l.Connections, PerAddress: l.ConnectionsPerAddress, PerKey: l.ConnectionsPerKey, Streams: l.StreamsPerKey,
	}
}
