/* How often routers choose each expert: counted in a run (--routing-counts), written as JSON, and
 * read by who plans for the same model (--routing). docs/plans.md, "How evenly experts are chosen".
 */
#ifndef PHASOR_ENGINE_ROUTING_COUNTS_H
#define PHASOR_ENGINE_ROUTING_COUNTS_H

#include "base/status.h"
#include "base/text.h"
#include "model/config.h"
#include "planner/routing.h"

struct routing_counts;

/* For passes of at most `token_max` tokens of a model with experts. */
enum status routing_counts_create(struct routing_counts **out, const struct model_config *config,
                                  int64_t token_max, struct error *err) MUST_CHECK;
void routing_counts_destroy(struct routing_counts *counts); /* NULL is allowed */

/* Where a pass is to leave what its tokens chose: as of exec_record_routing. */
int32_t *routing_counts_ids(struct routing_counts *counts);

/* Counts what a pass of this phase left there, of so many tokens. */
void routing_counts_add(struct routing_counts *counts, enum phase phase, int64_t token_count);

/* How many tokens were counted, and how many routing_counts_read wants. */
int64_t routing_counts_tokens(const struct routing_counts *counts);
int64_t routing_counts_least(const struct model_config *config);

#define ROUTING_COUNTS_HEAD "{\"format\":\"phasor-routing\""

/* Appends the file; out of memory shows in text_check. */
void routing_counts_write(struct text *out, struct routing_counts *counts, const char *model_name);

/* The file's, which anybody may have written, as the planner takes it: each phase has its own
 * counts, where the file has them, else those of all passes. STATUS_FORMAT where it is
 * none, STATUS_INVALID_ARGUMENT where it is of a model with other experts; the sentence names the
 * file. */
enum status routing_counts_read(struct routing *out, const char *path,
                                const struct model_config *config, struct error *err) MUST_CHECK;

#endif
