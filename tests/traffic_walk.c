#include "traffic_walk.h"

#include <criterion/criterion.h>
#include <string.h>

/* ---- Messages -------------------------------------------------------------------------------- */

static void message(struct walk *walk, enum traffic kind, int from, int to, int64_t bytes)
{
    if (from != to)
        walk->sent.bytes[from][kind] += bytes;
}

/* Nobody is sent a row that it has. */
static void send_row(struct walk *walk, enum traffic kind, int from, int to, int token)
{
    if (from == to)
        return;
    cr_assert(walk->has[from][token], "rank %d has no row %d to send", from, token);
    cr_assert(!walk->has[to][token], "rank %d is sent row %d again", to, token);
    walk->has[to][token] = true;
    message(walk, kind, from, to, walk->row_bytes);
}

/* The row's expert ids (int32) and weights (float). */
static void send_choices(struct walk *walk, int from, int to)
{
    message(walk, TRAFFIC_CHOICES, from, to, walk->shape->expert_top_k * 4);
    message(walk, TRAFFIC_CHOICES, from, to, walk->shape->expert_top_k * 4);
}

/* The sum that `from` has goes into that of `to`; no share comes in twice. */
static void send_sum(struct walk *walk, enum traffic kind, int from, int to, int token)
{
    if (from == to)
        return;
    cr_assert_eq(walk->sums[from][token] & walk->sums[to][token], 0, "row %d: added twice", token);
    walk->sums[to][token] |= walk->sums[from][token];
    walk->sums[from][token] = 0;
    message(walk, kind, from, to, walk->row_bytes);
}

/* ---- Beginning and end of a stage ------------------------------------------------------------ */

/* Rows stand at their owners (or everywhere), nothing is summed. */
static void stage_begin(struct walk *walk)
{
    memset(walk->sums, 0, sizeof walk->sums);
    for (int rank = 0; rank < walk->layout->rank_count; rank++) {
        for (int token = 0; token < walk->token_count; token++)
            walk->has[rank][token] =
                walk->form == FORM_REPLICATED || walk->tokens[token].owner == rank;
    }
}

/* A rank does its share of a token's work, for which it needs the row. */
static void work(struct walk *walk, int rank, int token, int share)
{
    cr_assert(walk->has[rank][token], "rank %d works on row %d, which it has not", rank, token);
    walk->sums[rank][token] |= (uint64_t)1 << share;
}

static void check_sum(const struct walk *walk, int token, uint64_t expected)
{
    cr_assert_eq(walk->sums[walk->tokens[token].owner][token], expected, "row %d: sum is not whole",
                 token);
}

/* All values of all rows, each summed at the rank of its part and sent from there to all others. */
static void all_reduce(struct walk *walk, enum traffic kind)
{
    int size = walk->layout->rank_count;
    int64_t count = walk->token_count * walk->row_bytes / 4;
    int64_t part = (count + size - 1) / size;
    while (part % 16 != 0)
        part++;
    for (int64_t value = 0; value < count; value++) {
        int home = (int)(value / part);
        for (int rank = 0; rank < size; rank++) {
            message(walk, kind, rank, home, 4);
            message(walk, kind, home, rank, 4);
        }
    }
    for (int token = 0; token < walk->token_count; token++) {
        uint64_t sum = 0;
        for (int rank = 0; rank < size; rank++) {
            cr_assert_eq(sum & walk->sums[rank][token], 0, "row %d: added twice", token);
            sum |= walk->sums[rank][token];
        }
        for (int rank = 0; rank < size; rank++)
            walk->sums[rank][token] = sum;
    }
}

/* ---- 0, 9: embedding and head ---------------------------------------------------------------- */

static int holder_of(const struct walk *walk, int64_t id)
{
    for (int rank = 0; rank < walk->layout->rank_count; rank++) {
        struct range range = layout_vocab(walk->shape, walk->layout->rank_count, rank);
        if (id >= range.first && id < range.first + range.count)
            return rank;
    }
    cr_assert_fail("nobody holds id %lld", (long long)id);
    return -1;
}

void walk_embed(struct walk *walk)
{
    for (int token = 0; token < walk->token_count; token++) {
        int holder = holder_of(walk, walk->tokens[token].id);
        for (int rank = 0; rank < walk->layout->rank_count; rank++) {
            if (walk->form == FORM_REPLICATED || walk->tokens[token].owner == rank)
                message(walk, TRAFFIC_EMBED, holder, rank, walk->row_bytes);
        }
    }
}

void walk_head(struct walk *walk)
{
    stage_begin(walk);
    for (int token = 0; token < walk->token_count; token++) {
        if (!walk->tokens[token].is_wanted)
            continue;
        for (int rank = 0; rank < walk->layout->rank_count; rank++) {
            if (!walk->has[rank][token])
                send_row(walk, TRAFFIC_HEAD, walk->tokens[token].owner, rank, token);
        }
    }
}

/* ---- 1, 3 and 8: work that is cut over the attention group ----------------------------------- */

/* Each member of the owner's attention group does one share. */
static void attention_group_work(struct walk *walk, enum traffic gather, enum traffic reduce)
{
    int size = walk->layout->attention.tp;
    uint64_t whole = ((uint64_t)1 << size) - 1;
    stage_begin(walk);
    for (int token = 0; token < walk->token_count; token++) {
        int owner = walk->tokens[token].owner, first = owner - owner % size;
        for (int member = 0; member < size; member++) {
            if (!walk->has[first + member][token])
                send_row(walk, gather, owner, first + member, token);
            work(walk, first + member, token, member);
        }
        for (int member = 0; member < size && walk->form != FORM_REPLICATED; member++)
            send_sum(walk, reduce, first + member, owner, token);
    }
    if (walk->form == FORM_REPLICATED)
        all_reduce(walk, reduce);
    for (int token = 0; token < walk->token_count; token++)
        check_sum(walk, token, whole);
}

void walk_attention(struct walk *walk)
{
    attention_group_work(walk, TRAFFIC_ATTENTION_GATHER, TRAFFIC_ATTENTION_REDUCE);
}

void walk_ffn(struct walk *walk, int64_t width, bool beside_experts)
{
    if (width == 0)
        return; /* the layer has no such network */
    int size = walk->layout->attention.tp, all = walk->layout->rank_count;
    if (size == 1 || walk->layout->attention.replicate_ffn || width % size != 0 ||
        width / size % 16 != 0)
        return; /* whole on every rank, on own tokens */
    bool goes_everywhere = walk->form == FORM_GATHERED || walk->form == FORM_REPLICATED ||
                           (size == all && walk->layout->experts.tp == all);
    if (beside_experts && goes_everywhere)
        return; /* its rows are there, its sums go with those of the experts */
    attention_group_work(walk, TRAFFIC_FFN_GATHER, TRAFFIC_FFN_REDUCE);
}

/* ---- 5 to 7: the experts --------------------------------------------------------------------- */

static int group_of(const struct walk *walk, int32_t expert)
{
    return (int)(expert / (walk->shape->expert_count / walk->layout->experts.ep));
}

static bool group_has_expert_of(const struct walk *walk, int group, int token)
{
    for (int64_t choice = 0; choice < walk->shape->expert_top_k; choice++) {
        if (group_of(walk, walk->tokens[token].experts[choice]) == group)
            return true;
    }
    return false;
}

/* A rank's slice of those of the token's experts that its group holds. */
static void experts_work(struct walk *walk, int rank, int token)
{
    int tp = walk->layout->experts.tp;
    for (int64_t choice = 0; choice < walk->shape->expert_top_k; choice++) {
        if (group_of(walk, walk->tokens[token].experts[choice]) == rank / tp)
            work(walk, rank, token, (int)choice * tp + rank % tp);
    }
}

/* To the group's member that stands where the owner stands in its own group; from there to the
 * others. Back the same way. */
static void group_visit(struct walk *walk, int group, int token)
{
    int tp = walk->layout->experts.tp, owner = walk->tokens[token].owner;
    int receiver = group * tp + owner % tp;
    send_row(walk, TRAFFIC_DISPATCH, owner, receiver, token);
    send_choices(walk, owner, receiver);
    for (int member = 0; member < tp; member++) {
        int rank = group * tp + member;
        send_row(walk, TRAFFIC_EXPERT_GATHER, receiver, rank, token);
        send_choices(walk, receiver, rank);
        experts_work(walk, rank, token);
    }
    for (int member = 0; member < tp; member++)
        send_sum(walk, TRAFFIC_EXPERT_REDUCE, group * tp + member, receiver, token);
    send_sum(walk, TRAFFIC_COMBINE, receiver, owner, token);
}

static void experts_owned(struct walk *walk)
{
    int ranks = walk->layout->rank_count, groups = walk->layout->experts.ep;
    for (int from = 0; from < ranks; from++) {
        for (int to = 0; to < ranks; to++) {
            for (int group = 0; group < groups; group++)
                message(walk, TRAFFIC_COUNTS, from, to, 4);
        }
    }
    for (int token = 0; token < walk->token_count; token++) {
        for (int group = 0; group < groups; group++) {
            if (group_has_expert_of(walk, group, token))
                group_visit(walk, group, token);
        }
    }
}

/* Every token to every rank, and every rank's sum back to the owner. */
static void experts_everywhere(struct walk *walk, enum traffic gather)
{
    for (int token = 0; token < walk->token_count; token++) {
        int owner = walk->tokens[token].owner;
        for (int rank = 0; rank < walk->layout->rank_count; rank++) {
            send_row(walk, gather, owner, rank, token);
            send_choices(walk, owner, rank);
            experts_work(walk, rank, token);
        }
        for (int rank = 0; rank < walk->layout->rank_count; rank++)
            send_sum(walk, TRAFFIC_EXPERT_REDUCE, rank, owner, token);
    }
}

static void experts_replicated(struct walk *walk)
{
    for (int token = 0; token < walk->token_count; token++) {
        for (int rank = 0; rank < walk->layout->rank_count; rank++)
            experts_work(walk, rank, token);
    }
    all_reduce(walk, TRAFFIC_EXPERT_REDUCE);
}

void walk_experts(struct walk *walk)
{
    int share_count = (int)walk->shape->expert_top_k * walk->layout->experts.tp;
    cr_assert_leq(share_count, 64);
    uint64_t whole = share_count == 64 ? UINT64_MAX : ((uint64_t)1 << share_count) - 1;
    stage_begin(walk);
    if (walk->form == FORM_REPLICATED)
        experts_replicated(walk);
    else if (walk->form == FORM_GATHERED)
        experts_everywhere(walk, TRAFFIC_DISPATCH);
    else if (walk->layout->experts.ep == 1)
        experts_everywhere(walk, TRAFFIC_EXPERT_GATHER);
    else
        experts_owned(walk);
    for (int token = 0; token < walk->token_count; token++)
        check_sum(walk, token, whole);
}
