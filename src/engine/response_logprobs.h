/* Log probabilities in the formats of the three APIs. */
#ifndef PHASOR_ENGINE_RESPONSE_LOGPROBS_H
#define PHASOR_ENGINE_RESPONSE_LOGPROBS_H

#include "base/json_writer.h"
#include "engine/choice.h"
#include "engine/result.h"

/* OpenAI chat: {"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}. */
void response_write_chat_logprobs(struct json_writer *json, const struct tokenizer *tokenizer,
                                  const struct scored_list *scores);

/* OpenAI completions: {tokens, token_logprobs, top_logprobs, text_offset}. `prompt` is the echoed
 * prompt (its first token has null), or NULL. `top_max` 0 gives top_logprobs: null. */
void response_write_completion_logprobs(struct json_writer *json, const struct tokenizer *tokenizer,
                                        const struct prompt_result *prompt,
                                        const struct scored_list *scores, int64_t top_max);

/* vLLM: a list for each prompt position, null and then {id: {logprob, rank, decoded_token}} of the
 * prompt's token and the `top_max` likeliest. A rank that is not known is null. */
void response_write_prompt_logprobs(struct json_writer *json, const struct tokenizer *tokenizer,
                                    const struct prompt_result *prompt, int64_t top_max);

#endif
