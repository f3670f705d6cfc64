#include "planner/pass_cost.h"

#include <math.h>

/* Everything that the stages ask about. */
struct stages {
    const struct profile *profile;
    const struct model_shape *shape;
    const struct layout *layout;
    const struct cost_types *types;
    const struct routing *routing;
    const struct pass_shape *pass;
    double fullest;    /* at least 1 */
    double own, group; /* rows of a rank of the fullest attention group, and of that group */
    double even;       /* rows of a rank, if all had as many */
    double row_bytes;
    struct pass_cost cost;
};

#define ACTIVATION_BYTES 4
#define CHOICE_BYTES     8 /* id and weight of an expert */

static void add(struct stages *stages, int part, double layers, double seconds)
{
    if (layers > 0)
        stages->cost.seconds[part] += layers * seconds;
}

/* Sizes are means: rounded up, so that a part of a row is a row. */
static int64_t whole(double value)
{
    return (int64_t)ceil(value - 1e-9);
}

static double work_seconds(const struct stages *stages, struct work_shape work)
{
    return profile_work_seconds(stages->profile, &work);
}

static double rows_seconds(const struct stages *stages, double rows, int64_t values)
{
    return work_seconds(
        stages,
        (struct work_shape){.kind = WORK_ROWS, .dtype = DTYPE_F32, .dims = {whole(rows), values}});
}

/* What a point of WORK_ROWS is measured by, a norm and the sum of its result, moves a row so often
 * (src/measure/meter.h). */
#define ROWS_PASSES 5

/* Of an operation that moves each row so often: as of fewer rows of a point. */
static double moves_seconds(const struct stages *stages, double rows, int64_t values, double passes)
{
    return rows > 0 ? rows_seconds(stages, rows * passes / ROWS_PASSES, values) : 0;
}

static double matmul_seconds(const struct stages *stages, double rows, int64_t outputs,
                             int64_t inputs)
{
    return work_seconds(stages, (struct work_shape){.kind = WORK_MATMUL,
                                                    .dtype = stages->types->matrices,
                                                    .dims = {whole(rows), outputs, inputs}});
}

static double ffn_seconds(const struct stages *stages, enum dtype dtype, double rows,
                          double experts, int64_t width)
{
    struct work_shape work = {
        .kind = WORK_FFN_UP,
        .dtype = dtype,
        .dims = {whole(rows), whole(experts), width, stages->shape->hidden_dim}};
    double up = work_seconds(stages, work);
    work.kind = WORK_FFN_DOWN;
    return up + work_seconds(stages, work);
}

/* Among `size` neighbours, or, with a stride, those `size` that stand apart. */
static void exchange(struct stages *stages, enum traffic kind, double layers, enum group_op op,
                     int size, bool is_strided, double bytes)
{
    if (layers > 0)
        add(stages, COST_EXCHANGE + (int)kind, layers,
            profile_collective_seconds(stages->profile, op, size, is_strided, bytes));
}

/* Among those that hold the same slices of experts, the fullest of which is reached by `bytes`. Of
 * what it sends back, and of one that has most to send, it is taken to be the same. */
static void exchange_apart(struct stages *stages, enum traffic kind, double layers, double bytes,
                           double fullest)
{
    int tp = stages->layout->experts.tp, ep = stages->layout->experts.ep;
    add(stages, COST_EXCHANGE + (int)kind, layers,
        profile_all_to_all_seconds(stages->profile, ep, tp > 1, bytes, fullest));
}

/* ---- Attention: stages 1 to 3 ---------------------------------------------------------------- */

/* Pairs and tokens of all groups, of which the fullest has its share. More than can be counted, of
 * a wave that no memory holds, is as good as the most. */
static double attention_seconds(const struct stages *stages, double pairs, double seen)
{
    const struct model_shape *shape = stages->shape;
    const struct layout *layout = stages->layout;
    int64_t heads = layout_heads(layout, shape, 0).count;
    double most = 0x1p56 / (double)(heads * shape->head_dim),
           groups = layout->attention.dp / stages->fullest;
    return work_seconds(
        stages,
        (struct work_shape){.kind = WORK_ATTENTION,
                            .dtype = stages->types->cache,
                            .dims = {whole(stages->group), whole(fmin(pairs / groups, most)),
                                     whole(fmin(seen / groups, most)), heads,
                                     layout_kv_heads(layout, shape, 0).count, shape->head_dim}});
}

static void scores(struct stages *stages)
{
    const struct model_shape *shape = stages->shape;
    double layers = (double)shape->layer_count, sliding = (double)shape->sliding_layer_count;
    add(stages, COST_ATTENTION, layers - sliding,
        attention_seconds(stages, stages->pass->pairs, stages->pass->seen));
    if (sliding > 0)
        add(stages, COST_ATTENTION, sliding,
            attention_seconds(stages, stages->pass->sliding_pairs, stages->pass->sliding_seen));
}

static void attention(struct stages *stages)
{
    const struct model_shape *shape = stages->shape;
    const struct layout *layout = stages->layout;
    double layers = (double)shape->layer_count;
    int tp = layout->attention.tp;
    int64_t heads = layout_heads(layout, shape, 0).count;
    int64_t kv_heads = layout_kv_heads(layout, shape, 0).count;
    double rows = stages->group;
    add(stages, COST_ROWS, layers,
        2 * rows_seconds(stages, stages->own, shape->hidden_dim) +
            moves_seconds(stages, rows, (heads + 2 * kv_heads) * shape->head_dim, 2));
    add(stages, COST_PROJECTION, layers,
        matmul_seconds(stages, rows, (heads + 2 * kv_heads) * shape->head_dim, shape->hidden_dim) +
            matmul_seconds(stages, rows, shape->hidden_dim, heads * shape->head_dim));
    scores(stages);
    double bytes = rows * stages->row_bytes * (tp - 1) / tp;
    if (stages->pass->form == FORM_REPLICATED) {
        exchange(stages, TRAFFIC_ATTENTION_REDUCE, layers, GROUP_ALL_REDUCE, tp, false, 2 * bytes);
        return;
    }
    exchange(stages, TRAFFIC_ATTENTION_GATHER, layers, GROUP_ALL_GATHER, tp, false, bytes);
    exchange(stages, TRAFFIC_ATTENTION_REDUCE, layers, GROUP_REDUCE_SCATTER, tp, false, bytes);
}

/* ---- Experts: stages 4 to 7 ------------------------------------------------------------------ */

/* Where ranks own rows and experts are spread over groups, rows are sent to those that have one of
 * their experts. */
static bool sends_apart(const struct stages *stages)
{
    return stages->pass->form == FORM_OWNED && stages->layout->experts.ep > 1;
}

/* Copies of its own rows that a rank sends to groups, its own group among them. */
static double sent_rows(const struct stages *stages, double own)
{
    int ep = stages->layout->experts.ep;
    return own * routing_group_chance(stages->shape, ep) * ep;
}

/* Rows that the experts of the fullest group have before them. */
static double received_rows(const struct stages *stages, double imbalance)
{
    return sends_apart(stages) ? fmin(sent_rows(stages, stages->even) * imbalance,
                                      stages->even * stages->layout->experts.ep) *
                                     stages->layout->experts.tp
                               : stages->pass->rows;
}

/* Rows go to the groups and come back: an all-to-all among the ranks that hold the same slices. */
static void experts_owned(struct stages *stages, double layers, double imbalance)
{
    const struct model_shape *shape = stages->shape;
    int tp = stages->layout->experts.tp, ep = stages->layout->experts.ep;
    double choice_bytes = CHOICE_BYTES * (double)shape->expert_top_k;
    double gathered = stages->own; /* rows of the rank of its group that has most, before that */
    if (ep > 1) {
        double received = received_rows(stages, imbalance) / tp;
        double fullest = fmax(received, sent_rows(stages, stages->own));
        double leave = fullest / ep * (ep - 1), most = fullest / sent_rows(stages, stages->even);
        gathered = fmin(received * stages->fullest, stages->own * ep);
        exchange(stages, TRAFFIC_COUNTS, layers, GROUP_ALL_GATHER, stages->layout->rank_count,
                 false, 4.0 * ep * (stages->layout->rank_count - 1));
        exchange_apart(stages, TRAFFIC_CHOICES, layers, leave * choice_bytes, most);
        add(stages, COST_EXCHANGE + TRAFFIC_DISPATCH, layers, /* gathered one behind another */
            moves_seconds(stages, sent_rows(stages, stages->own), shape->hidden_dim, 2));
        exchange_apart(stages, TRAFFIC_DISPATCH, layers, leave * stages->row_bytes, most);
        exchange_apart(stages, TRAFFIC_COMBINE, layers, leave * stages->row_bytes, most);
    }
    exchange(stages, TRAFFIC_CHOICES, layers, GROUP_ALL_GATHER, tp, false,
             gathered * (tp - 1) * choice_bytes);
    exchange(stages, TRAFFIC_EXPERT_GATHER, layers, GROUP_ALL_GATHER, tp, false,
             gathered * (tp - 1) * stages->row_bytes);
    exchange(stages, TRAFFIC_EXPERT_REDUCE, layers, GROUP_REDUCE_SCATTER, tp, false,
             gathered * (tp - 1) * stages->row_bytes);
}

static void experts_exchange(struct stages *stages, double layers, double imbalance)
{
    int size = stages->layout->rank_count;
    double bytes = stages->own * stages->row_bytes * (size - 1);
    switch (stages->pass->form) {
    case FORM_OWNED:
        experts_owned(stages, layers, imbalance);
        break;
    case FORM_GATHERED:
        exchange(stages, TRAFFIC_CHOICES, layers, GROUP_ALL_GATHER, size, false,
                 stages->own * (size - 1) * CHOICE_BYTES * (double)stages->shape->expert_top_k);
        exchange(stages, TRAFFIC_DISPATCH, layers, GROUP_ALL_GATHER, size, false, bytes);
        exchange(stages, TRAFFIC_EXPERT_REDUCE, layers, GROUP_REDUCE_SCATTER, size, false, bytes);
        break;
    case FORM_REPLICATED:
        exchange(stages, TRAFFIC_EXPERT_REDUCE, layers, GROUP_ALL_REDUCE, size, false,
                 2 * stages->pass->rows * stages->row_bytes * (size - 1) / size);
        break;
    }
}

/* Times are of devices that all have as much to do. Where some share a core, the fullest has it to
 * itself when the others are done: all together are done when the cores have done everything, or
 * the fullest with a core of its own, whichever is later. */
static double felt_imbalance(const struct stages *stages, double draws)
{
    double fullest = routing_imbalance(stages->routing, stages->shape, stages->pass->phase,
                                       stages->layout->experts.ep, draws);
    return fmax(fullest / fmax(stages->profile->sharing, 1), 1);
}

/* Each row's results of experts are read, and their sum written; where rows were sent, their owner
 * adds up what comes back. */
static double sums_seconds(const struct stages *stages, double pairs, double imbalance)
{
    int64_t hidden = stages->shape->hidden_dim;
    double received = received_rows(stages, imbalance);
    double seconds = moves_seconds(stages, received, hidden, 1 + pairs / received);
    if (sends_apart(stages))
        seconds += moves_seconds(stages, stages->own, hidden,
                                 1 + sent_rows(stages, stages->own) / stages->own);
    return seconds;
}

static void experts(struct stages *stages)
{
    const struct model_shape *shape = stages->shape;
    int ep = stages->layout->experts.ep;
    double layers = (double)shape->moe_layer_count, tokens = stages->pass->rows;
    if (layers == 0)
        return;
    double draws = tokens * (double)shape->expert_top_k;
    double imbalance = felt_imbalance(stages, draws);
    double held = (double)shape->expert_count / ep;
    int64_t width = layout_expert_width(stages->layout, shape, 0).count;
    double pairs = fmin(draws / ep * imbalance, tokens * fmin((double)shape->expert_top_k, held));
    double met = fmin(routing_experts_met(stages->routing, shape, held, tokens) * imbalance,
                      fmin(held, pairs));
    add(stages, COST_ROWS, layers,
        matmul_seconds(stages, stages->own, shape->expert_count, shape->hidden_dim) +
            moves_seconds(stages, stages->own, shape->expert_count, 2) +
            sums_seconds(stages, pairs, imbalance));
    add(stages, COST_EXPERTS, layers,
        ffn_seconds(stages, stages->types->experts, pairs, met, width));
    experts_exchange(stages, layers, imbalance);
}

/* ---- Shared experts and dense layers: stage 8 ------------------------------------------------ */

/* As traffic_ffn has it. */
static void ffn(struct stages *stages, double layers, int64_t width, bool beside_experts)
{
    const struct layout *layout = stages->layout;
    int tp = layout->attention.tp;
    bool is_cut = layout_ffn_is_cut(layout, width);
    if (width == 0 || layers == 0)
        return;
    double rows = is_cut ? stages->group : stages->own;
    add(stages, COST_SHARED, layers,
        ffn_seconds(stages, stages->types->matrices, rows, 1,
                    layout_ffn_width(layout, width, 0).count));
    bool to_all = tp == layout->rank_count && layout->experts.ep == 1;
    bool rides = beside_experts && (to_all || stages->pass->form != FORM_OWNED);
    if (beside_experts) /* their sum */
        add(stages, COST_SHARED, layers,
            moves_seconds(stages, is_cut && rides ? rows : stages->own, stages->shape->hidden_dim,
                          4));
    if (!is_cut || tp == 1 || rides)
        return;
    double bytes = stages->group * stages->row_bytes * (tp - 1) / tp;
    if (stages->pass->form == FORM_REPLICATED) {
        exchange(stages, TRAFFIC_FFN_REDUCE, layers, GROUP_ALL_REDUCE, tp, false, 2 * bytes);
        return;
    }
    exchange(stages, TRAFFIC_FFN_GATHER, layers, GROUP_ALL_GATHER, tp, false, bytes);
    exchange(stages, TRAFFIC_FFN_REDUCE, layers, GROUP_REDUCE_SCATTER, tp, false, bytes);
}

/* ---- Embedding and head: stages 0 and 9 ------------------------------------------------------ */

/* Rotations of the group's rows before the pass; ids, counts, and what devices choose of the logits
 * are little beside them. */
static double copy_seconds(const struct stages *stages)
{
    double values = stages->group * (double)stages->shape->head_dim;
    return profile_rate_seconds(values * ACTIVATION_BYTES, stages->profile->host_to_device);
}

static void ends(struct stages *stages)
{
    const struct model_shape *shape = stages->shape;
    int size = stages->layout->rank_count;
    double wanted = stages->pass->logit_rows;
    double bytes = wanted * stages->row_bytes * (size - 1) / size;
    exchange(stages, TRAFFIC_EMBED, 1, GROUP_ALL_TO_ALL, size, false,
             stages->own * stages->row_bytes * (size - 1) / size);
    if (stages->pass->form != FORM_REPLICATED)
        exchange(stages, TRAFFIC_HEAD, 1, GROUP_ALL_GATHER, size, false, bytes);
    add(stages, COST_ROWS, 1, rows_seconds(stages, stages->own, shape->hidden_dim));
    int64_t vocab = layout_vocab(shape, size, 0).count;
    add(stages, COST_HEAD, 1,
        matmul_seconds(stages, wanted, vocab, shape->hidden_dim) +
            moves_seconds(stages, wanted, vocab, 1)); /* of which a token is chosen */
    add(stages, COST_HOST, 1, stages->profile->host_step + copy_seconds(stages));
}

static struct stages stages_of(const struct profile *profile, const struct model_shape *shape,
                               const struct layout *layout, const struct cost_types *types,
                               const struct routing *routing, const struct pass_shape *pass)
{
    double fullest = fmax(pass->fullest, 1);
    ASSERT(pass->form != FORM_REPLICATED || layout->attention.dp == 1);
    return (struct stages){
        .profile = profile,
        .shape = shape,
        .layout = layout,
        .types = types,
        .routing = routing,
        .pass = pass,
        .fullest = fullest,
        .group = fullest * pass->rows / layout->attention.dp,
        .own =
            pass->form == FORM_REPLICATED ? pass->rows : fullest * pass->rows / layout->rank_count,
        .even = pass->rows / layout->rank_count,
        .row_bytes = ACTIVATION_BYTES * (double)round_up(shape->hidden_dim, PACK_BLOCK),
    };
}

struct pass_cost pass_cost(const struct profile *profile, const struct model_shape *shape,
                           const struct layout *layout, const struct cost_types *types,
                           const struct routing *routing, const struct pass_shape *pass)
{
    struct stages stages = stages_of(profile, shape, layout, types, routing, pass);
    attention(&stages);
    experts(&stages);
    ffn(&stages, (double)shape->moe_layer_count, shape->shared_expert_dim, true);
    ffn(&stages, (double)(shape->layer_count - shape->moe_layer_count), shape->dense_dim, false);
    ends(&stages);
    return stages.cost;
}

double pass_attention_seconds(const struct profile *profile, const struct model_shape *shape,
                              const struct layout *layout, const struct cost_types *types,
                              const struct pass_shape *pass)
{
    struct stages stages = stages_of(profile, shape, layout, types, NULL, pass);
    scores(&stages);
    return stages.cost.seconds[COST_ATTENTION];
}
