/* How many sequences and tokens a run may take at once: what its flags are held against, before
 * anything is computed from them; and what they take. */
#ifndef PHASOR_ENGINE_RUN_LIMITS_H
#define PHASOR_ENGINE_RUN_LIMITS_H

#include <stdint.h>

#include "base/status.h"
#include "model/config.h"

/* Far above any use. */
#define SEQUENCES_MAX    (1 << 20)
#define BATCH_TOKENS_MAX (1 << 24)

/* `group_count` data-parallel groups share a pass evenly, so its tokens are rounded up to a
 * multiple of it. STATUS_INVALID_ARGUMENT, with flag and range, when a number is out of range;
 * otherwise tokens of a pass, and their (token, expert) pairs, count in 32 bits. */
enum status run_limits_check(int64_t max_num_seqs, int64_t max_num_batched_tokens,
                             const struct model_config *config, int group_count,
                             struct error *err) MUST_CHECK;

/* What a row of a batch takes for each of its tokens (its ids twice, its text, as the request and
 * as the answer has it); log-probabilities that it asks for come on top. As many rows wait as run.
 */
#define ROW_TOKEN_BYTES 32
#define ROWS_FOR_EACH   2

/* Host memory for the generator's tables and for rows in flight, their tokens aside. An upper
 * estimate; of numbers that run_limits_check passes. */
uint64_t run_table_bytes(int64_t max_num_seqs, int64_t max_num_batched_tokens, int64_t vocab_count);

#endif
