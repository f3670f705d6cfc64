#include "engine/run_limits.h"

#include "base/checked.h"

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
