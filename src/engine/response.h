/* Lines of the output file. docs/batch-format.md is the reference of their shapes. */
#ifndef PHASOR_ENGINE_RESPONSE_H
#define PHASOR_ENGINE_RESPONSE_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "engine/choice.h"
#include "engine/request.h"
#include "engine/result.h"
#include "engine/row_error.h"
#include "engine/row_name.h"

struct response {
    struct row_identity identity;
    const struct request *request;
    const struct tokenizer *tokenizer;   /* or NULL */
    const char *model;                   /* when the request names none */
    int64_t created;                     /* seconds since 1970 */
    const struct prompt_result *prompts; /* [request->prompt_count] */
    const struct choice *choices;        /* [prompt_count x n], a prompt's choices together */
};

struct usage {
    int64_t prompt_tokens, completion_tokens;
};
struct usage response_usage(const struct response *response);

/* Appends a whole line. Out of memory shows in text_check. */
void response_write(struct text *out, const struct response *response);

/* Appends the line of a row that failed, in OpenAI's shape (response.body.error) and in vLLM's
 * (error) at once. */
void response_write_error(struct text *out, const struct row_identity *identity,
                          const struct row_error *error);

#endif
