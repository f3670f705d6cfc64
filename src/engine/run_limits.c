#include "engine/run_limits.h"

#include "base/checked.h"
#include "engine/generator.h"
#include "exec/kv_cache.h"

/* What a row of a batch takes beside its tokens, and for each of them: its ids twice, its text, as
 * the request and as the answer has it. Log-probabilities that it asks for come on top. As many
 * rows wait as run. */
#define ROW_BYTES       8192
#define ROW_TOKEN_BYTES 32
#define ROWS_FOR_EACH   2

enum status run_limits_check(int64_t max_num_seqs, int64_t max_num_batched_tokens,
                             const struct model_config *config, int group_count, struct error *err)
{
    long long seqs = max_num_seqs, tokens = max_num_batched_tokens, top_k = config->expert_top_k;
    if (seqs < 1 || seqs > SEQUENCES_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-seqs: expected 1 to %d, found %lld", SEQUENCES_MAX, seqs);
    if (tokens < seqs || tokens > BATCH_TOKENS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-batched-tokens: expected at least --max-num-seqs (%lld) and at "
                         "most %d, found %lld",
                         seqs, BATCH_TOKENS_MAX, tokens);
    if (round_up(tokens, group_count) > INT32_MAX / top_k)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-batched-tokens: expected at most %lld with %lld experts a "
                         "token and %d attention groups, found %lld",
                         INT32_MAX / top_k / group_count * group_count, top_k, group_count, tokens);
    return STATUS_OK;
}

uint64_t run_table_bytes(int64_t max_num_seqs, int64_t max_num_batched_tokens, int64_t vocab_count)
{
    const struct generator_params generator = {.sequence_count_max = max_num_seqs,
                                               .batch_token_max = max_num_batched_tokens};
    return generator_table_bytes(&generator, vocab_count) +
           (uint64_t)max_num_seqs * ROWS_FOR_EACH * ROW_BYTES;
}

struct run_page run_page_bytes(const struct model_config *config, const struct layout *layout,
                               enum dtype kv_dtype)
{
    uint64_t rows = KV_PAGE_TOKENS * ROWS_FOR_EACH * ROW_TOKEN_BYTES;
    return (struct run_page){
        .kv = kv_page_bytes(config, layout, kv_dtype) * (uint64_t)layout->rank_count,
        .beside = (uint64_t)layout->attention.dp * (generator_bytes_per_page() + rows),
    };
}
