/* What --max-num-seqs and --max-num-batched-tokens may be. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/run_limits.h"

/* The sentence is empty where the numbers pass. */
static struct error check_of(int64_t seqs, int64_t tokens, int64_t top_k, int group_count)
{
    struct model_config config = {.expert_top_k = top_k};
    struct error err = {.status = STATUS_OK, .message = ""};
    cr_assert_eq(run_limits_check(seqs, tokens, &config, group_count, &err), err.status);
    return err;
}

Test(run_limits, name_flag_and_range)
{
    static const struct {
        int64_t seqs, tokens;
        const char *words;
    } cases[] = {
        {0, 1, "--max-num-seqs: expected 1 to 1048576, found 0"},
        {-1, 1, "--max-num-seqs"},
        {(1 << 20) + 1, 1 << 21, "--max-num-seqs"},
        {INT64_MAX, INT64_MAX, "--max-num-seqs"},
        {8, 7, "--max-num-batched-tokens: expected at least --max-num-seqs (8)"},
        {8, (1 << 24) + 1, "at most 16777216, found 16777217"},
        {8, INT64_MAX, "at most 16777216"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = check_of(cases[i].seqs, cases[i].tokens, 2, 1);
        cr_expect_eq(err.status, STATUS_INVALID_ARGUMENT);
        cr_expect_not_null(strstr(err.message, cases[i].words), "%s", err.message);
    }
    cr_expect_eq(check_of(1, 1, 2, 1).status, STATUS_OK);
    cr_expect_eq(check_of(1 << 20, 1 << 24, 2, 64).status, STATUS_OK);
}

/* A pass is shared evenly by the groups: its pairs are counted with what is rounded up. */
Test(run_limits, count_pairs_of_what_the_groups_round_up_to)
{
    int64_t last = INT32_MAX / 128; /* 2^24 - 1 */
    cr_expect_eq(check_of(1, last, 128, 1).status, STATUS_OK);
    cr_expect_eq(check_of(1, last, 128, 3).status, STATUS_OK, "a multiple of 3");
    struct error err = check_of(1, last, 128, 2);
    cr_expect_eq(err.status, STATUS_INVALID_ARGUMENT, "rounded up it has 2^31 pairs");
    cr_expect_not_null(strstr(err.message, "at most 16777214 with 128 experts a token and 2 "),
                       "%s", err.message);
    cr_expect_eq(check_of(1, last - 1, 128, 2).status, STATUS_OK);
}
