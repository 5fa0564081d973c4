// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"unicode/utf8"

	"github.com/penstock-project/penstock/internal/fleet"
)

// keyID is a member that we read. A set of them is a bit mask.
type keyID uint8

const (
	keyNone keyID = iota
	// Of the body itself.
	keyModel
	keyStream
	keyStreamOptions
	keyMaxTokens
	keyMaxCompletionTokens
	keyMaxOutputTokens
	keyN
	keyUser
	keyPromptCacheKey
	keyCacheSalt
	keyMetadata
	keyMessages
	keyInput
	keyPrompt
	keySystem
	keyInstructions
	keyTools
	keyQuery
	keyDocuments
	keyText1
	keyText2
	keyBestOf
	keyLogprobs
	keyTopLogprobs
	keyPromptLogprobs
	keyNPredict
	keyResponseFormat
	keyGuidedJSON
	keyGuidedRegex
	keyGuidedGrammar
	keyStructuredOutputs
	keyFunctions
	keyBackground
	keyPriority
	keySteering // of many names, see steers
	// Of stream_options and metadata.
	keyIncludeUsage
	keyUserID
	// Of a message and of a part of its content.
	keyRole
	keyContent
	keyToolCalls
	keyOutput
	keyArguments
	keyType
	keyText
	keyThinking
	keyName
	keyPartInput
	keyImageURL
	keyInputAudio
	keyAudioURL
	keyVideoURL
	keySource
	keyFile
	keyImage
	numKeys
)

var keyNames = [numKeys]string{
	keyModel: "model", keyStream: "stream", keyStreamOptions: "stream_options",
	keyMaxTokens: "max_tokens", keyMaxCompletionTokens: "max_completion_tokens", keyMaxOutputTokens: "max_output_tokens",
	keyN: "n", keyUser: "user", keyPromptCacheKey: "prompt_cache_key", keyCacheSalt: "cache_salt", keyMetadata: "metadata",
	keyMessages: "messages", keyInput: "input", keyPrompt: "prompt", keySystem: "system", keyInstructions: "instructions",
	keyTools: "tools", keyQuery: "query", keyDocuments: "documents", keyText1: "text_1", keyText2: "text_2",
	keyBestOf: "best_of", keyLogprobs: "logprobs", keyTopLogprobs: "top_logprobs", keyPromptLogprobs: "prompt_logprobs", keyNPredict: "n_predict",
	keyResponseFormat: "response_format", keyGuidedJSON: "guided_json", keyGuidedRegex: "guided_regex", keyGuidedGrammar: "guided_grammar",
	keyStructuredOutputs: "structured_outputs", keyFunctions: "functions",
	keyBackground: "background", keyPriority: "priority",
	keyIncludeUsage: "include_usage", keyUserID: "user_id",
	keyRole: "role", keyContent: "content", keyToolCalls: "tool_calls", keyOutput: "output", keyArguments: "arguments",
	keyType: "type", keyText: "text", keyThinking: "thinking", keyName: "name", keyPartInput: "input",
	keyImageURL: "image_url", keyInputAudio: "input_audio", keyAudioURL: "audio_url", keyVideoURL: "video_url",
	keySource: "source", keyFile: "file", keyImage: "image",
}

// longestKey is the length of the longest name above, in bytes. A name in another
// case is at most three times as long: the two letters outside ASCII that fold to
// one inside it take two and three bytes.
const longestKey = 21

type keySet uint64

func set(ids ...keyID) keySet {
	var s keySet
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

func (s keySet) has(id keyID) bool { return s&(1<<id) != 0 }

// What is read on every surface, then what some read.
var (
	commonKeys = set(keyModel, keyStream, keyStreamOptions, keyUser, keyPromptCacheKey, keyCacheSalt, keyPriority, keySteering)

	// grammarKeys hold schemas and grammars that an engine compiles.
	grammarKeys = set(keyResponseFormat, keyGuidedJSON, keyGuidedRegex, keyGuidedGrammar, keyStructuredOutputs)

	surfaceKeys = [...]keySet{
		fleet.SurfaceChat: commonKeys | grammarKeys | set(keyMessages, keyTools, keyFunctions, keyMaxTokens, keyMaxCompletionTokens, keyNPredict,
			keyN, keyBestOf, keyLogprobs, keyTopLogprobs, keyPromptLogprobs),
		fleet.SurfaceCompletions: commonKeys | grammarKeys | set(keyPrompt, keyMaxTokens, keyMaxCompletionTokens, keyNPredict, keyN, keyBestOf, keyLogprobs, keyPromptLogprobs),
		fleet.SurfaceEmbeddings:  commonKeys | set(keyInput, keyMessages),
		fleet.SurfaceResponses:   commonKeys | set(keyInput, keyInstructions, keyTools, keyMaxOutputTokens, keyTopLogprobs, keyText, keyBackground),
		fleet.SurfaceMessages:    commonKeys | set(keyMessages, keySystem, keyTools, keyMaxTokens, keyMetadata),
		fleet.SurfaceCountTokens: commonKeys | set(keyMessages, keySystem, keyTools),
		fleet.SurfaceRerank:      commonKeys | set(keyQuery, keyDocuments),
		fleet.SurfaceScore:       commonKeys | set(keyText1, keyText2),
		fleet.SurfaceTokenize:    commonKeys | set(keyPrompt, keyMessages, keyTools),
		fleet.SurfaceDetokenize:  commonKeys,
	}

	streamOptionKeys = set(keyIncludeUsage)
	metadataKeys     = set(keyUserID)
	messageKeys      = set(keyRole, keyContent, keyToolCalls, keyOutput, keyArguments, keyName)
	partKeys         = set(keyType, keyText, keyThinking, keyContent, keyName, keyPartInput,
		keyImageURL, keyInputAudio, keyAudioURL, keyVideoURL, keySource, keyFile, keyImage)
)

// lookup returns the member of in that is named exactly k.
func (in keySet) lookup(k []byte) keyID {
	var id keyID
	switch string(k) {
	case "model":
		id = keyModel
	case "stream":
		id = keyStream
	case "stream_options":
		id = keyStreamOptions
	case "max_tokens":
		id = keyMaxTokens
	case "max_completion_tokens":
		id = keyMaxCompletionTokens
	case "role":
		id = keyRole
	case "content":
		id = keyContent
	case "tool_calls":
		id = keyToolCalls
	case "type":
		id = keyType
	case "text":
		id = keyText
	case "input":
		if id = keyInput; in.has(keyPartInput) {
			id = keyPartInput
		}
	default:
		for i := keyMaxOutputTokens; i < numKeys; i++ {
			if in.has(i) && keyNames[i] == string(k) {
				return i
			}
		}
		if id = keyNone; in.has(keySteering) && steers(k) {
			id = keySteering
		}
		return id
	}
	if !in.has(id) {
		return keyNone
	}
	return id
}

// steers reports whether a member of a body lets a client choose the weights, the
// worker, the slot or the source of a KV cache at an engine. Those choices are the
// router's: some are names of files, some addresses that the engine connects to.
func steers(k []byte) bool {
	switch string(k) {
	case "kv_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", // where the KV cache comes from
		"data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "id_slot", // which worker
		"lora_path", "lora_request", "lora": // which weights
		return true
	}
	return false
}

// variant returns the member of in that k names in another case, by the folding
// that encoding/json and others of its kind use.
func (in keySet) variant(k []byte) keyID {
	plain := true
	for _, c := range k {
		if c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain || len(k) > 3*longestKey {
		return keyNone
	}
	for i := keyModel; i < numKeys; i++ {
		if in.has(i) && bytes.EqualFold(k, []byte(keyNames[i])) {
			return i
		}
	}
	return keyNone
}

// key steps over a key and its colon and returns which of in it is. A member of in
// that was seen before, or that is named in another case, is an error: it would
// have two meanings. where is what the member belongs to, for the message.
func (p *parser) key(in keySet, seen *keySet, where *place) keyID {
	at := p.i
	t := p.str()
	if p.err != nil {
		return keyNone
	}
	k := p.b[t.start:t.end]
	if t.escaped() {
		var buf [6 * longestKey]byte
		if len(k) > 18*longestKey {
			k = nil
		} else {
			k = unescape(buf[:0], k)
		}
	}
	p.colon()
	id := in.lookup(k)
	if id == keyNone {
		if id = in.variant(k); id == keyNone {
			return keyNone
		}
		p.i = at
		p.refuse(where.name(id), "is given in another case")
		return keyNone
	}
	if id == keySteering {
		return id // of many names
	}
	if seen.has(id) {
		p.i = at
		p.refuse(where.name(id), "is given twice")
		return keyNone
	}
	*seen |= 1 << id
	return id
}

func (p *parser) refuse(param, what string) {
	if p.err == nil {
		p.err = &BadRequest{Param: param, Message: param + " " + what + "; it must have one meaning", Offset: p.i, Code: CodeInvalidValue}
	}
}

// unescape appends what the inside of a valid JSON string stands for. Half of a
// surrogate pair becomes the replacement character.
func unescape(dst, b []byte) []byte {
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			j := bytes.IndexByte(b[i:], '\\')
			if j < 0 {
				return append(dst, b[i:]...)
			}
			dst = append(dst, b[i:i+j]...)
			i += j
			continue
		}
		if b[i+1] != 'u' {
			dst = append(dst, plainEscape(b[i+1]))
			i += 2
			continue
		}
		r := hex4(b[i+2 : i+6])
		i += 6
		if r >= 0xd800 && r < 0xdc00 && i+6 <= len(b) && b[i] == '\\' && b[i+1] == 'u' {
			if lo := hex4(b[i+2 : i+6]); lo >= 0xdc00 && lo < 0xe000 {
				r = 0x10000 + (r-0xd800)<<10 + (lo - 0xdc00)
				i += 6
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

func plainEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}
