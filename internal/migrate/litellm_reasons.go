// SPDX-License-Identifier: Apache-2.0

package migrate

const (
	whyRetry  = "not to be set: what failed before its first byte is sent to another replica, what began never is"
	whyHealth = "not to be set: each replica's health, models and metrics are read every few seconds"
	whyCache  = "answers are not cached; the prefix cache of the engines is what is used"
	whyLog    = "see docs/how-to/telemetry.md (traces and metrics over OTLP) and docs/how-to/prompt-logging.md (off by default)"
	whyKeys   = "keys are made by `penstock key create` and stand as hashes in the file that auth.keysFile names"
	whyDB     = "there is no database: keys are in a file, quotas in memory or in Redis, decisions in the journal"
	whyBudget = "write tenants[].limits: [{every: month, budget: ...}], with prices"
	whyCaps   = "write tenants[].limits: [{concurrent: ...}] for each tenant; a replica's queue has a price"
	whyTime   = "there is no limit of a whole answer; relay.firstByte bounds the wait for its first byte, relay.idle each silence after it"
	whyGuard  = "prompts and answers are not judged; put that before or behind the gateway"
	whyHosted = "parameters of a provider are passed on as clients send them, and none is added here"
	whyAlert  = "alert on the metrics; rules to start from are in docs/how-to/console.md"
	whyMask   = "never needed: prompts are not logged unless logging.rules says so"
)

// litellmReasons say why a key does not come over, by its path without list indexes; a
// path covers what is below it.
var litellmReasons = map[string]string{
	"router_settings.num_retries":                       whyRetry,
	"router_settings.retry_after":                       whyRetry,
	"router_settings.retry_policy":                      whyRetry,
	"router_settings.model_group_retry_policy":          whyRetry,
	"router_settings.max_fallbacks":                     "each pool of the list of fallbacks is tried once",
	"router_settings.allowed_fails":                     whyHealth,
	"router_settings.allowed_fails_policy":              whyHealth,
	"router_settings.cooldown_time":                     whyHealth,
	"router_settings.disable_cooldowns":                 whyHealth,
	"router_settings.enable_pre_call_checks":            "not to be set: a prompt that is too long for a pool goes to its fallback",
	"router_settings.optional_pre_call_checks":          "not to be set: where a prompt was cached is part of each price",
	"router_settings.content_policy_fallbacks":          "answers are not judged, so nothing falls back for what is in them",
	"router_settings.timeout":                           whyTime,
	"router_settings.stream_timeout":                    whyTime,
	"router_settings.routing_strategy_args":             "the price of a candidate has no parameters to set",
	"router_settings.cache_responses":                   whyCache,
	"router_settings.cache_kwargs":                      whyCache,
	"router_settings.caching_groups":                    whyCache,
	"router_settings.client_ttl":                        whyCache,
	"router_settings.redis_password":                    "there is no redis_host that it belongs to",
	"router_settings.redis_port":                        "there is no redis_host that it belongs to",
	"router_settings.default_max_parallel_requests":     whyCaps,
	"router_settings.provider_budget_config":            whyBudget,
	"router_settings.enable_tag_filtering":              "tags of requests choose nothing; give models tenants, or pools to tenants",
	"router_settings.tag_filtering_match_any":           "tags of requests choose nothing; give models tenants, or pools to tenants",
	"router_settings.alerting_config":                   whyAlert,
	"router_settings.set_verbose":                       "`penstock serve --log-level debug` says more",
	"router_settings.debug_level":                       "`penstock serve --log-level debug` says more",
	"litellm_settings.num_retries":                      whyRetry,
	"litellm_settings.allowed_fails":                    whyHealth,
	"litellm_settings.cooldown_time":                    whyHealth,
	"litellm_settings.request_timeout":                  whyTime,
	"litellm_settings.content_policy_fallbacks":         "answers are not judged, so nothing falls back for what is in them",
	"litellm_settings.drop_params":                      "a request is passed on as it came; what the engine refuses, the client is told",
	"litellm_settings.modify_params":                    "a request is passed on as it came; what the engine refuses, the client is told",
	"litellm_settings.callbacks":                        whyLog,
	"litellm_settings.success_callback":                 whyLog,
	"litellm_settings.failure_callback":                 whyLog,
	"litellm_settings.service_callbacks":                whyLog,
	"litellm_settings.json_logs":                        "`penstock serve --log-format json` does",
	"litellm_settings.set_verbose":                      "`penstock serve --log-level debug` says more",
	"litellm_settings.turn_off_message_logging":         whyMask,
	"litellm_settings.redact_user_api_key_info":         whyMask,
	"litellm_settings.cache":                            whyCache,
	"litellm_settings.cache_params":                     whyCache,
	"litellm_settings.max_budget":                       whyBudget,
	"litellm_settings.budget_duration":                  whyBudget,
	"litellm_settings.default_internal_user_params":     whyKeys,
	"litellm_settings.default_team_settings":            whyKeys,
	"litellm_settings.upperbound_key_generate_params":   whyKeys,
	"litellm_settings.max_parallel_requests":            whyCaps,
	"litellm_settings.guardrails":                       whyGuard,
	"litellm_settings.ssl_verify":                       "certificates of replicas are always checked; engine.tls.ca names the file of your own CA",
	"general_settings.master_key":                       whyKeys,
	"general_settings.database_url":                     whyDB,
	"general_settings.store_model_in_db":                whyDB,
	"general_settings.database_connection_pool_limit":   whyDB,
	"general_settings.database_connection_timeout":      whyDB,
	"general_settings.disable_spend_logs":               whyDB,
	"general_settings.proxy_batch_write_at":             whyDB,
	"general_settings.allow_requests_on_db_unavailable": whyDB,
	"general_settings.max_parallel_requests":            whyCaps,
	"general_settings.global_max_parallel_requests":     whyCaps,
	"general_settings.background_health_checks":         whyHealth,
	"general_settings.health_check_interval":            whyHealth,
	"general_settings.alerting":                         whyAlert,
	"general_settings.alert_types":                      whyAlert,
	"general_settings.alerting_threshold":               whyAlert,
	"general_settings.enable_jwt_auth":                  "write auth.jwt: [{issuer: ..., audience: ...}]",
	"general_settings.litellm_jwtauth":                  "write auth.jwt: [{issuer: ..., audience: ...}]",
	"general_settings.pass_through_endpoints":           "only the APIs of engines are passed on",
	"general_settings.completion_model":                 "the model is the one that the client names; an unknown one is 404",
	"environment_variables":                             "Penstock reads no settings from there; secrets stand in files that the configuration names",
	"guardrails":                                        whyGuard,
	"mcp_servers":                                       "tools are called by clients; calls in answers are passed on as they are",
	"include":                                           "other files are not read: convert each, or put them together first",
	"model_list.model_info":                             "Penstock asks the engines for what their models can do and how long prompts may be",
	"model_list.litellm_params.timeout":                 whyTime,
	"model_list.litellm_params.stream_timeout":          whyTime,
	"model_list.litellm_params.max_retries":             whyRetry,
	"model_list.litellm_params.num_retries":             whyRetry,
	"model_list.litellm_params.weight":                  "shares are not set: each request goes where it is answered soonest",
	"model_list.litellm_params.order":                   "there is no order among replicas of a pool; for a pool that only stands in, write fallback",
	"model_list.litellm_params.max_parallel_requests":   whyCaps,
	"model_list.litellm_params.tags":                    "tags of requests choose nothing; give models tenants, or pools to tenants",
	"model_list.litellm_params.cooldown_time":           whyHealth,
	"model_list.litellm_params.api_version":             whyHosted,
	"model_list.litellm_params.organization":            whyHosted,
	"model_list.litellm_params.custom_llm_provider":     "not needed: the engine is known by what it answers",
	"model_list.litellm_params.extra_headers":           "headers are passed on as clients send them, and none is added here",
	"model_list.litellm_params.temperature":             whyHosted,
	"model_list.litellm_params.max_tokens":              whyHosted,
	"model_list.litellm_params.max_budget":              whyBudget,
	"model_list.litellm_params.budget_duration":         whyBudget,
	"model_list.litellm_params.mock_response":           "a simulated replica is `penstock replica`",
	"model_list.litellm_params.drop_params":             "a request is passed on as it came; what the engine refuses, the client is told",
	"model_list.litellm_params.input_cost_per_token":    "it is no price of a token between 0 and 1",
	"model_list.litellm_params.output_cost_per_token":   "it is no price of a token between 0 and 1",

	"model_list.litellm_params.cache_read_input_token_cost": "it is no price of a token between 0 and 1",
	"router_settings.default_fallbacks":                     "each pool has fallbacks of its own",
	"litellm_settings.default_fallbacks":                    "each pool has fallbacks of its own",
}

func litellmReason(path string) string { return reasonOf(litellmReasons, path) }
