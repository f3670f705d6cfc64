#include "layout/traffic.h"

const char *const traffic_names[TRAFFIC_KIND_COUNT] = {
    [TRAFFIC_EMBED] = "embedding rows",
    [TRAFFIC_ATTENTION_GATHER] = "attention gather",
    [TRAFFIC_ATTENTION_REDUCE] = "attention reduction",
    [TRAFFIC_COUNTS] = "dispatch counts",
    [TRAFFIC_CHOICES] = "expert ids and weights",
    [TRAFFIC_DISPATCH] = "dispatch",
    [TRAFFIC_EXPERT_GATHER] = "expert gather",
    [TRAFFIC_EXPERT_REDUCE] = "expert reduction",
    [TRAFFIC_COMBINE] = "combine",
    [TRAFFIC_FFN_GATHER] = "feed-forward gather",
    [TRAFFIC_FFN_REDUCE] = "feed-forward reduction",
    [TRAFFIC_HEAD] = "final rows",
    [TRAFFIC_TRANSITION] = "transition",
};

/* Ids and weights are 4 bytes each. */
#define CHOICE_BYTES 4

static int64_t group_sum(const int64_t *counts, int rank, int group_size)
{
    int64_t sum = 0;
    for (int i = 0; i < group_size; i++)
        sum += counts[rank / group_size * group_size + i];
    return sum;
}

/* ---- Collectives among groups of `group_size` neighbouring ranks; counts[rank] rows ---------- */

static void all_gather(struct traffic_bytes *to, enum traffic kind, const struct layout *layout,
                       int group_size, const int64_t *counts, int64_t row_bytes)
{
    for (int rank = 0; rank < layout->rank_count; rank++)
        to->bytes[rank][kind] += counts[rank] * row_bytes * (group_size - 1);
}

static void reduce_scatter(struct traffic_bytes *to, enum traffic kind, const struct layout *layout,
                           int group_size, const int64_t *counts, int64_t row_bytes)
{
    for (int rank = 0; rank < layout->rank_count; rank++) {
        int64_t all = group_sum(counts, rank, group_size);
        to->bytes[rank][kind] += (all - counts[rank]) * row_bytes;
    }
}

/* Over all ranks, of `row_count` rows of f32: a reduce-scatter and an all-gather of parts that are
 * equal but for the last ones, as comm_part cuts them. */
static void all_reduce(struct traffic_bytes *to, enum traffic kind, const struct layout *layout,
                       int64_t row_count, int64_t row_bytes)
{
    int64_t values = row_count * row_bytes / 4, size = layout->rank_count;
    int64_t each = round_up(ceil_div(values, size), 16);
    for (int rank = 0; rank < size; rank++) {
        int64_t first = rank * each < values ? rank * each : values;
        int64_t own = values - first < each ? values - first : each;
        to->bytes[rank][kind] += 4 * (values - own + own * (size - 1));
    }
}

static void check_form(const struct layout *layout, const struct traffic_pass *pass)
{
    ASSERT(pass->form != FORM_REPLICATED || layout->attention.dp == 1);
}

/* ---- The stages ------------------------------------------------------------------------------ */

void traffic_embed(struct traffic_bytes *to, const struct layout *layout,
                   const struct traffic_pass *pass, const int64_t *held)
{
    int size = layout->rank_count;
    check_form(layout, pass);
    for (int holder = 0; holder < size; holder++) {
        for (int owner = 0; owner < size; owner++) {
            if (owner != holder)
                to->bytes[holder][TRAFFIC_EMBED] += held[holder * size + owner] * pass->row_bytes;
        }
    }
}

void traffic_attention(struct traffic_bytes *to, const struct layout *layout,
                       const struct traffic_pass *pass)
{
    int size = layout->attention.tp;
    check_form(layout, pass);
    if (pass->form == FORM_REPLICATED) {
        all_reduce(to, TRAFFIC_ATTENTION_REDUCE, layout, pass->own_counts[0], pass->row_bytes);
        return;
    }
    all_gather(to, TRAFFIC_ATTENTION_GATHER, layout, size, pass->own_counts, pass->row_bytes);
    reduce_scatter(to, TRAFFIC_ATTENTION_REDUCE, layout, size, pass->own_counts, pass->row_bytes);
}

/* Rows that each rank receives from the owners, its own included, before its group gathers them:
 * owner r sends to the member r mod Et of each group. */
static void count_received(int64_t *received, const struct layout *layout, const int64_t *sent)
{
    int tp = layout->experts.tp, groups = layout->experts.ep;
    for (int rank = 0; rank < layout->rank_count; rank++) {
        received[rank] = 0;
        for (int owner = rank % tp; owner < layout->rank_count; owner += tp)
            received[rank] += sent[owner * groups + rank / tp];
    }
}

/* Owners and expert groups: rows and choices there, rows back; nothing moves within the owner. */
static void exchange(struct traffic_bytes *to, const struct layout *layout,
                     const struct traffic_pass *pass, int64_t choice_bytes, const int64_t *sent)
{
    int tp = layout->experts.tp, groups = layout->experts.ep;
    for (int owner = 0; owner < layout->rank_count; owner++) {
        for (int group = 0; group < groups; group++) {
            int64_t rows = sent[owner * groups + group];
            int receiver = group * tp + owner % tp;
            if (receiver == owner)
                continue;
            to->bytes[owner][TRAFFIC_CHOICES] += rows * choice_bytes;
            to->bytes[owner][TRAFFIC_DISPATCH] += rows * pass->row_bytes;
            to->bytes[receiver][TRAFFIC_COMBINE] += rows * pass->row_bytes;
        }
    }
}

static void experts_owned(struct traffic_bytes *to, const struct layout *layout,
                          const struct traffic_pass *pass, int64_t choice_bytes,
                          const int64_t *sent)
{
    int tp = layout->experts.tp, groups = layout->experts.ep;
    int64_t received[LAYOUT_RANKS_MAX];
    const int64_t *rows = pass->own_counts; /* with one group all that are owned */
    if (groups > 1) {
        for (int rank = 0; rank < layout->rank_count; rank++)
            to->bytes[rank][TRAFFIC_COUNTS] +=
                (int64_t)sizeof(int32_t) * groups * (layout->rank_count - 1);
        exchange(to, layout, pass, choice_bytes, sent);
        count_received(received, layout, sent);
        rows = received;
    }
    all_gather(to, TRAFFIC_CHOICES, layout, tp, rows, choice_bytes);
    all_gather(to, TRAFFIC_EXPERT_GATHER, layout, tp, rows, pass->row_bytes);
    reduce_scatter(to, TRAFFIC_EXPERT_REDUCE, layout, tp, rows, pass->row_bytes);
}

static void experts_gathered(struct traffic_bytes *to, const struct layout *layout,
                             const struct traffic_pass *pass, int64_t choice_bytes)
{
    int size = layout->rank_count;
    const int64_t *rows = pass->own_counts;
    all_gather(to, TRAFFIC_CHOICES, layout, size, rows, choice_bytes);
    all_gather(to, TRAFFIC_DISPATCH, layout, size, rows, pass->row_bytes);
    reduce_scatter(to, TRAFFIC_EXPERT_REDUCE, layout, size, rows, pass->row_bytes);
}

void traffic_experts(struct traffic_bytes *to, const struct layout *layout,
                     const struct model_shape *shape, const struct traffic_pass *pass,
                     const int64_t *sent)
{
    int64_t choice_bytes = 2 * shape->expert_top_k * CHOICE_BYTES;
    check_form(layout, pass);
    if (pass->form == FORM_OWNED)
        experts_owned(to, layout, pass, choice_bytes, sent);
    else if (pass->form == FORM_GATHERED)
        experts_gathered(to, layout, pass, choice_bytes);
    else
        all_reduce(to, TRAFFIC_EXPERT_REDUCE, layout, pass->own_counts[0], pass->row_bytes);
}

/* Whether a shared expert's rows and sums come and go with those of the routed experts. */
static bool shared_rides(const struct layout *layout, enum layer_form form)
{
    bool all_meet =
        layout->attention.tp == layout->rank_count && layout->experts.tp == layout->rank_count;
    return form != FORM_OWNED || all_meet;
}

void traffic_ffn(struct traffic_bytes *to, const struct layout *layout,
                 const struct traffic_pass *pass, int64_t width, bool beside_experts)
{
    int size = layout->attention.tp;
    check_form(layout, pass);
    if (!layout_ffn_is_cut(layout, width) || (beside_experts && shared_rides(layout, pass->form)))
        return;
    if (pass->form == FORM_REPLICATED) {
        all_reduce(to, TRAFFIC_FFN_REDUCE, layout, pass->own_counts[0], pass->row_bytes);
        return;
    }
    all_gather(to, TRAFFIC_FFN_GATHER, layout, size, pass->own_counts, pass->row_bytes);
    reduce_scatter(to, TRAFFIC_FFN_REDUCE, layout, size, pass->own_counts, pass->row_bytes);
}

void traffic_head(struct traffic_bytes *to, const struct layout *layout,
                  const struct traffic_pass *pass, const int64_t *wanted)
{
    check_form(layout, pass);
    if (pass->form != FORM_REPLICATED)
        all_gather(to, TRAFFIC_HEAD, layout, layout->rank_count, wanted, pass->row_bytes);
}
