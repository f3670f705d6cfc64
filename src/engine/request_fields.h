/* The fields of a request body, in one table: which there are, where they go, and what phasor
 * cannot do and therefore refuses. Only request.c includes this. */
#ifndef PHASOR_ENGINE_REQUEST_FIELDS_H
#define PHASOR_ENGINE_REQUEST_FIELDS_H

#include "engine/request.h"

/* Where a row stands, for messages: "line 7". */
struct row_place {
    char text[32];
};

/* Reads all fields that are a number or a boolean into `out`, whose endpoint and defaults are set;
 * refuses fields whose value would change the result in a way phasor does not know; notes the
 * unknown. */
bool request_read_scalars(struct request *out, const json_t *body, const struct row_place *place,
                          struct field_notes *notes, struct row_error *error) MUST_CHECK;

/* "stop" and "stop_token_ids". */
bool request_read_stops(struct request *out, const json_t *body, const struct row_place *place,
                        struct row_error *error) MUST_CHECK;

/* "messages" and "chat_template_kwargs". */
bool request_read_chat(struct request *out, const json_t *body, const struct row_place *place,
                       struct field_notes *notes, struct row_error *error) MUST_CHECK;

/* "prompt". */
bool request_read_prompt(struct request *out, const json_t *body, const struct row_place *place,
                         struct row_error *error) MUST_CHECK;

void field_notes_add(struct field_notes *notes, const char *prefix, const char *name);

#endif
