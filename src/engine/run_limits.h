/* How many sequences and tokens a run may take at once: what its flags are held against, before
 * anything is computed from them; and what they take. */
#ifndef PHASOR_ENGINE_RUN_LIMITS_H
#define PHASOR_ENGINE_RUN_LIMITS_H

#include <stdint.h>

#include "base/status.h"
#include "layout/layout.h"
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

/* Host memory for the generator's tables and for rows in flight, their tokens aside. An upper
 * estimate; of numbers that run_limits_check passes. */
uint64_t run_table_bytes(int64_t max_num_seqs, int64_t max_num_batched_tokens, int64_t vocab_count);

/* A page of the KV cache in each of the layout's data-parallel groups: what it takes on all ranks,
 * and what comes with it in host memory: its part of the generator's tables, and of the rows whose
 * tokens it holds. */
struct run_page {
    uint64_t kv, beside;
};
struct run_page run_page_bytes(const struct model_config *config, const struct layout *layout,
                               enum dtype kv_dtype);

#endif
