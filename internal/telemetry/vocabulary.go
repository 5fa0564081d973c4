// SPDX-License-Identifier: Apache-2.0

package telemetry

// Vocabulary is a generation of the GenAI conventions. Only one is spoken at a time.
// What they have no word for (tenant, queue, version of a rollout, replica) is under
// penstock.*; no gen_ai name is made up here.
type Vocabulary struct {
	Name string

	Operation, Provider, RequestModel, ResponseModel, MaxTokens, Stream string
	InputTokens, OutputTokens, CachedTokens, FirstChunk                 string

	// Metrics maps our own names to those of the conventions; what is not in it keeps
	// its name.
	Metrics map[string]string
}

// vocabularies are what the configuration may name.
var vocabularies = []Vocabulary{
	{
		// semantic-conventions-genai v0.1.0.
		Name: "genai-2026", Operation: "gen_ai.operation.name", Provider: "gen_ai.provider.name", RequestModel: "gen_ai.request.model", ResponseModel: "gen_ai.response.model",
		MaxTokens: "gen_ai.request.max_tokens", Stream: "gen_ai.request.stream",
		InputTokens: "gen_ai.usage.input_tokens", OutputTokens: "gen_ai.usage.output_tokens", CachedTokens: "gen_ai.usage.cache_read.input_tokens",
		FirstChunk: "gen_ai.response.time_to_first_chunk",
		Metrics: map[string]string{
			"penstock_gateway_request_duration_seconds":   "gen_ai.client.inference.duration",
			"penstock_gateway_ttft_seconds":               "gen_ai.client.inference.time_to_first_chunk",
			"penstock_gateway_inter_token_seconds":        "gen_ai.client.inference.time_per_output_chunk",
			"penstock_gateway_prompt_tokens_total":        "gen_ai.client.inference.usage.input_tokens",
			"penstock_gateway_output_tokens_total":        "gen_ai.client.inference.usage.output_tokens",
			"penstock_gateway_cached_prompt_tokens_total": "gen_ai.client.inference.usage.cache_read.input_tokens",
		},
	},
	{
		// semantic-conventions v1.36, which most receivers' dashboards still read.
		Name: "genai-2025", Operation: "gen_ai.operation.name", Provider: "gen_ai.system", RequestModel: "gen_ai.request.model", ResponseModel: "gen_ai.response.model",
		MaxTokens: "gen_ai.request.max_tokens", Stream: "",
		InputTokens: "gen_ai.usage.input_tokens", OutputTokens: "gen_ai.usage.output_tokens", CachedTokens: "", FirstChunk: "",
		Metrics: map[string]string{
			"penstock_gateway_request_duration_seconds": "gen_ai.server.request.duration",
			"penstock_gateway_ttft_seconds":             "gen_ai.server.time_to_first_token",
			"penstock_gateway_inter_token_seconds":      "gen_ai.server.time_per_output_token",
		},
	},
}

// FindVocabulary returns a vocabulary by its name.
func FindVocabulary(name string) (Vocabulary, bool) {
	for _, v := range vocabularies {
		if v.Name == name {
			return v, true
		}
	}
	return Vocabulary{}, false
}

// Operations by the names of surfaces; others have none in the conventions.
var operations = map[string]string{
	"chat": "chat", "messages": "chat", "responses": "chat", "completions": "text_completion", "embeddings": "embeddings",
}

// OperationOf returns the operation of a surface; its own name where the conventions
// have none.
func OperationOf(surface string) string {
	if op, ok := operations[surface]; ok {
		return op
	}
	return surface
}
