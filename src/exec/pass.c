/* Who has which rows in a pass, and what each rank must know before the first stage. */
#include "exec/exec_state.h"

/* Rows of the groups, in the order of the segments; within a group, even shares of its ranks. So
 * rows are in the order of the ranks that own them. */
static void rows_share(struct pass *pass, const struct layout *layout)
{
    int64_t row = 0, s = 0;
    for (int g = 0; g < layout->attention.dp; g++) {
        pass->group[g].first = row;
        for (; s < pass->segment_count && pass->segments[s].group == g; s++)
            row += pass->segments[s].token_count;
        pass->group[g].count = row - pass->group[g].first;
    }
    ASSERT(s == pass->segment_count); /* groups rise and are within Ad */
    pass->row_count = row;
    for (int r = 0; r < layout->rank_count; r++) {
        struct layout_place place = layout_place(layout, r);
        const struct range *group = &pass->group[place.ad];
        pass->own[r] = layout_share(group->count, layout->attention.tp, place.at);
        pass->own[r].first += group->first;
        if (pass->form == FORM_REPLICATED)
            pass->own[r] = (struct range){0, row};
    }
}

void pass_start(struct exec *exec, const struct exec_segment *segments, int64_t segment_count)
{
    struct pass *pass = &exec->pass;
    ASSERT(segment_count <= exec->segment_max);
    ASSERT(pass->form != FORM_REPLICATED || exec->layout.attention.dp == 1);
    pass->segments = segments;
    pass->segment_count = segment_count;
    rows_share(pass, &exec->layout);
    ASSERT(pass->row_count <=
           (pass->form == FORM_OWNED ? exec->dim.token_max : exec->dim.decode_max));
    for (int g = 0; g < exec->layout.attention.dp; g++)
        ASSERT(pass->group[g].count <= exec->dim.group_max);
    int64_t positions = 0;
    for (int64_t s = 0; s < segment_count; s++) {
        int64_t end = segments[s].first_position + segments[s].token_count;
        positions = end > positions ? end : positions;
    }
    rope_table_extend(&exec->rope, exec->config, positions);
}

static void row_counts_fill(struct row_counts *counts, int member, int64_t rows,
                            const struct dimensions *dim)
{
    counts->rows[member] = rows;
    counts->values[member] = rows * dim->hidden;
    counts->bytes[member] = rows * dim->hidden * 4;
    counts->choice_bytes[member] = rows * dim->choices * 4;
}

static void rows_find(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    const struct pass *pass = &exec->pass;
    int tp = exec->layout.attention.tp;
    rank->own_count = pass->own[rank->index].count;
    rank->group_count = pass->group[rank->place.ad].count;
    rank->group_first = pass->group[rank->place.ad].first;
    rank->row_count = pass->row_count;
    for (int r = 0; r < exec->layout.rank_count; r++)
        row_counts_fill(&rank->world_rows, r, pass->own[r].count, &exec->dim);
    for (int m = 0; m < tp; m++)
        row_counts_fill(&rank->attention_rows, m, pass->own[rank->place.ad * tp + m].count,
                        &exec->dim);
}

static void segments_find(struct rank *rank)
{
    const struct pass *pass = &rank->exec->pass;
    int64_t row = 0;
    rank->segment_count = 0;
    for (int64_t s = 0; s < pass->segment_count; s++) {
        const struct exec_segment *in = &pass->segments[s];
        if (in->group != rank->place.ad)
            continue;
        rank->segments[rank->segment_count++] = (struct segment){
            .first_row = row,
            .token_count = in->token_count,
            .first_position = in->first_position,
            .pages = in->pages,
        };
        row += in->token_count;
    }
}

/* ---- Embedding rows: from the ranks that hold them to the owners ------------------------------
 */

/* Goes through all tokens of the pass in the order of their rows. */
struct token_walk {
    const struct pass *pass;
    int64_t segment, token, row;
};

static bool token_next(struct token_walk *walk, int32_t *id, int64_t *row)
{
    const struct pass *pass = walk->pass;
    while (walk->segment < pass->segment_count &&
           walk->token == pass->segments[walk->segment].token_count) {
        walk->segment++;
        walk->token = 0;
    }
    if (walk->segment == pass->segment_count)
        return false;
    *id = pass->segments[walk->segment].tokens[walk->token++];
    *row = walk->row++;
    return true;
}

static bool owns(const struct range *own, int64_t row)
{
    return row >= own->first && row < own->first + own->count;
}

/* What a rank sends to each, and what comes to it from each. */
struct embedding_rows {
    int64_t sent[COMM_RANKS_MAX], coming[COMM_RANKS_MAX];
};

/* One walk over all tokens. Owners follow one another as their rows do, so that the ids which go to
 * one owner stand together. Replicated rows go to everybody from one place. */
static void embedding_count(struct rank *rank, struct embedding_rows *rows)
{
    const struct exec *exec = rank->exec;
    const struct pass *pass = &exec->pass;
    const struct range vocab = rank->weights->vocab;
    struct token_walk walk = {.pass = pass};
    int64_t per_rank = exec->ranks[0].weights->vocab.count, row;
    int owner = 0;
    int32_t id;
    rank->held_count = 0;
    while (token_next(&walk, &id, &row)) {
        while (!owns(&pass->own[owner], row))
            owner++;
        if (owns(&pass->own[rank->index], row))
            rows->coming[id / per_rank]++;
        if (id < vocab.first || id >= vocab.first + vocab.count)
            continue;
        rank->staging.ids[rank->held_count++] = (int32_t)(id - vocab.first);
        rows->sent[owner]++;
    }
    for (int r = 0; pass->form == FORM_REPLICATED && r < exec->layout.rank_count; r++)
        rows->sent[r] = rank->held_count;
}

/* Own rows arrive in the order of the ranks that hold them: embed_rows says which of those that
 * arrived is a token's. */
static void arrivals_sort(struct rank *rank, int64_t *next)
{
    const struct exec *exec = rank->exec;
    const struct range *own = &exec->pass.own[rank->index];
    struct token_walk walk = {.pass = &exec->pass};
    int64_t per_rank = exec->ranks[0].weights->vocab.count, row;
    int32_t id;
    while (token_next(&walk, &id, &row)) {
        if (owns(own, row))
            rank->staging.embed_rows[row - own->first] = (int32_t)next[id / per_rank]++;
    }
}

static void embedding_plan(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    struct exchange_counts *counts = &rank->embedding;
    struct embedding_rows rows = {{0}, {0}};
    int64_t row_bytes = exec->dim.hidden * 4;
    int64_t first_of[COMM_RANKS_MAX];
    int64_t sent = 0, arrived = 0;
    embedding_count(rank, &rows);
    for (int r = 0; r < exec->layout.rank_count; r++) {
        counts->send[r] = rows.sent[r] * row_bytes;
        counts->send_at[r] = exec->pass.form == FORM_REPLICATED ? 0 : sent * row_bytes;
        counts->receive[r] = rows.coming[r] * row_bytes;
        counts->receive_at[r] = arrived * row_bytes;
        first_of[r] = arrived;
        sent += rows.sent[r];
        arrived += rows.coming[r];
    }
    arrivals_sort(rank, first_of);
}

static void send(struct rank *rank, void *out, const void *in, int64_t value_count)
{
    rank->ops->copy(rank->stream,
                    &(struct op_copy){.out = out, .in = in, .bytes = value_count * 4});
}

void pass_prepare(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    struct staging *staging = &rank->staging;
    rows_find(rank);
    segments_find(rank);
    embedding_plan(rank);
    rope_fill(staging->rope, exec->config, &exec->rope, rank->segments, rank->segment_count);
    const int64_t rows[ROW_KIND_COUNT] = {rank->own_count, rank->group_count, rank->row_count};
    for (int kind = 0; kind < ROW_KIND_COUNT; kind++) {
        staging->row_offsets[2 * kind] = 0;
        staging->row_offsets[2 * kind + 1] = (int32_t)rows[kind];
    }
    send(rank, rank->act.rope, staging->rope, rank->group_count * exec->config->head_dim);
    send(rank, rank->act.ids, staging->ids, rank->held_count);
    send(rank, rank->act.embed_rows, staging->embed_rows, rank->own_count);
    send(rank, rank->act.row_offsets, staging->row_offsets, 2 * ROW_KIND_COUNT);
}
