#include "planner/planner.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

const char *const plan_way_names[PLAN_WAY_COUNT] = {
    [PLAN_NONE] = "none",     [PLAN_KEEP] = "keep",     [PLAN_RESHARD] = "reshard",
    [PLAN_UPLOAD] = "upload", [PLAN_RELOAD] = "reload",
};

/* ---- Transitions ----------------------------------------------------------------------------- */

/* What phases cost, once for each (layout, format, pass, wave). */
struct phase_table {
    struct prefill_cost *prefill; /* [layout][pass][wave] */
    double *prefill_total;        /* the same */
    struct pass_cost *decode;     /* [layout][packed][wave][whether nobody comes into the wave] */
    double *decode_total;
};

/* Bytes of one layer from one layout of the experts to another. */
struct changes {
    struct change reshard, reload, upload;
    struct change whole; /* every byte of the target from the checkpoint */
};

/* Degrees of experts are divisors of at most 64 ranks. */
#define CLASSES_MAX 12

struct search {
    const struct plan_problem *problem;
    struct layout layouts[2 * LAYOUT_LIST_MAX]; /* legal */
    int class_of[2 * LAYOUT_LIST_MAX];
    int layout_count;
    struct layout refused[LAYOUT_LIST_MAX]; /* illegal */
    int refused_count;
    struct changes changes[CLASSES_MAX][CLASSES_MAX];
    struct phase_table phases;
    struct plan_table *table;
    int capacity;
};

static struct changes changes_of(const struct plan_problem *problem, const struct layout *from,
                                 const struct layout *to)
{
    const struct model_shape *shape = problem->shape;
    return (struct changes){
        .reshard = change_by_reshard(shape, from, to, problem->native),
        .reload = change_by_reload(shape, from, to, problem->native),
        .upload = change_by_upload(shape, to, problem->backup),
        .whole = change_by_upload(shape, to, problem->native),
    };
}

/* Of a step of a whole wave, before any of its sequences has ended. */
static double decode_layer_seconds(const struct search *search, double decode)
{
    double steps = (double)(search->problem->load.output_tokens - 1);
    return steps > 0 ? decode / steps / (double)search->problem->shape->layer_count : 0;
}

/* Of one layer, by each way, from the experts' layout of one class to that of another. */
static double layer_seconds(const struct search *search, int from, int to, bool is_packed,
                            enum plan_way way)
{
    const struct changes *changes = &search->changes[search->class_of[from]][search->class_of[to]];
    const struct profile *profile = search->problem->profile;
    switch (way) {
    case PLAN_RESHARD:
        return change_reshard_seconds(profile, &changes->reshard, search->problem->rank_count);
    case PLAN_RELOAD:
        return change_reload_seconds(profile, &changes->reload);
    case PLAN_UPLOAD:
        return change_upload_seconds(profile, &changes->upload, is_packed);
    default:
        return 0;
    }
}

/* Back to prefill: by reload, whole, from the backup's weights; else as it came. */
static double layer_back(const struct search *search, int prefill, int decode, enum plan_way way)
{
    const struct changes *changes =
        &search->changes[search->class_of[decode]][search->class_of[prefill]];
    if (way == PLAN_UPLOAD)
        return change_reload_seconds(search->problem->profile, &changes->whole);
    return layer_seconds(search, decode, prefill, false, way);
}

/* Layouts whose experts lie alike, whatever their attention, are of one class. */
static void classes_find(struct search *search)
{
    int first_of[CLASSES_MAX], count = 0;
    for (int i = 0; i < search->layout_count; i++) {
        int class = 0;
        while (class < count &&
               search->layouts[first_of[class]].experts.tp != search->layouts[i].experts.tp)
            class ++;
        if (class == count) {
            ASSERT(count < CLASSES_MAX);
            first_of[count++] = i;
        }
        search->class_of[i] = class;
    }
    for (int from = 0; from < count; from++) {
        for (int to = 0; to < count; to++)
            search->changes[from][to] = changes_of(
                search->problem, &search->layouts[first_of[from]], &search->layouts[first_of[to]]);
    }
}

/* ---- Candidates ------------------------------------------------------------------------------ */

static struct plan_candidate *candidate_add(struct search *search)
{
    ASSERT(search->table->count < search->capacity);
    return &search->table->candidates[search->table->count++];
}

enum plan_room plan_way_room(enum plan_way way)
{
    return way == PLAN_NONE ? PLAN_ROOM_ONE : way == PLAN_KEEP ? PLAN_ROOM_BOTH : PLAN_ROOM_SPARE;
}

/* Decode of all waves by passes of this one. */
static void decode_take(struct plan_candidate *out, const struct search *search, int index,
                        double waves)
{
    out->decode = waves * search->phases.decode_total[index];
    out->decode_cost = (struct pass_cost){{0}};
    pass_cost_add(&out->decode_cost, &search->phases.decode[index], waves);
}

/* In place of a change of layout, where that is sooner done. */
static void stay(struct plan_candidate *out, const struct search *search, int decode, double waves)
{
    double staying = waves * search->phases.decode_total[decode];
    if (!(staying < out->decode + out->transition + out->way_back))
        return;
    decode_take(out, search, decode, waves);
    out->transition = out->way_back = 0;
    out->stays = 1;
}

/* Seconds of the batch with one pass size and wave; those of its parts go to `out`. */
static double price(struct plan_candidate *out, const struct search *search, int prefill,
                    int decode, int p, int w)
{
    const struct plan_problem *problem = search->problem;
    int64_t wave =
        problem->waves[w] < problem->load.sequences ? problem->waves[w] : problem->load.sequences;
    double waves = ceil((double)problem->load.sequences / (double)wave);
    int first = (prefill * problem->pass_count + p) * problem->wave_count + w;
    bool moves = out->way != PLAN_NONE && out->way != PLAN_KEEP;
    int second =
        ((decode * 2 + out->layouts.decode_is_packed) * problem->wave_count + w) * 2 + moves;
    double back = layer_back(search, prefill, decode, out->way);
    double layers = (double)problem->shape->moe_layer_count;
    struct hiding hiding = {
        .layers = problem->shape->moe_layer_count,
        .spares = 1,
        .is_beside = out->way != PLAN_RESHARD,
        .layer = layer_seconds(search, prefill, decode, out->layouts.decode_is_packed, out->way),
        .prefill = search->phases.prefill_total[first],
        .last_pass = search->phases.prefill[first].last_pass,
        .decode_layer = decode_layer_seconds(search, search->phases.decode_total[second - moves]),
    };
    double ways_back = waves - !problem->is_queue;
    out->prefill = waves * hiding.prefill;
    out->transition = moves ? waves * hiding_exposed(&hiding) : 0;
    out->way_back = moves && ways_back > 0 ? ways_back * layers * back : 0;
    out->prefill_cost = (struct pass_cost){{0}};
    pass_cost_add(&out->prefill_cost, &search->phases.prefill[first].cost, waves);
    decode_take(out, search, second, waves);
    if (moves && problem->may_stay)
        stay(out, search, (prefill * 2 * problem->wave_count + w) * 2 + 1, waves);
    return plan_candidate_total(out);
}

static bool fits(struct plan_candidate *candidate, const struct search *search, int p, int w)
{
    const struct plan_problem *problem = search->problem;
    int64_t wave =
        problem->waves[w] < problem->load.sequences ? problem->waves[w] : problem->load.sequences;
    candidate->memory = problem->memory(problem->memory_context, &candidate->layouts,
                                        plan_way_room(candidate->way), problem->passes[p], wave);
    candidate->pass_tokens = problem->passes[p];
    candidate->wave = wave;
    return plan_memory_total(&candidate->memory) <= problem->memory_bytes;
}

/* Sums of infinite parts may be no number: neither is ever less than another. */
static double known_or_infinite(double seconds)
{
    return seconds >= 0 ? seconds : INFINITY;
}

/* The best of all pass sizes and waves that fit. What is too large tells of the least. */
static void candidate_price(struct plan_candidate *candidate, const struct search *search,
                            int prefill, int decode)
{
    const struct plan_problem *problem = search->problem;
    struct plan_candidate best = *candidate;
    double least = INFINITY;
    uint64_t smallest = UINT64_MAX;
    best.verdict = PLAN_TOO_LARGE;
    for (int w = 0; w < problem->wave_count; w++) {
        for (int p = 0; p < problem->pass_count; p++) {
            struct plan_candidate tried = *candidate;
            bool has_room = fits(&tried, search, p, w);
            double seconds = has_room
                                 ? known_or_infinite(price(&tried, search, prefill, decode, p, w))
                                 : INFINITY;
            tried.verdict = !has_room           ? PLAN_TOO_LARGE
                            : isfinite(seconds) ? PLAN_POSSIBLE
                                                : PLAN_UNKNOWN;
            bool is_better = has_room ? best.verdict == PLAN_TOO_LARGE || seconds < least
                                      : best.verdict == PLAN_TOO_LARGE &&
                                            plan_memory_total(&tried.memory) < smallest;
            if (!is_better)
                continue;
            best = tried;
            least = has_room ? seconds : least;
            smallest = plan_memory_total(&tried.memory);
        }
    }
    *candidate = best;
}

static bool way_fits(const struct plan_layouts *layouts, enum plan_way way)
{
    bool differ = plan_layouts_differ(layouts);
    if (!differ || way == PLAN_NONE)
        return !differ && way == PLAN_NONE;
    return !layouts->decode_is_packed || way == PLAN_KEEP || way == PLAN_UPLOAD;
}

static void pair_add(struct search *search, int prefill, int decode, bool is_packed)
{
    struct plan_layouts layouts = {.of = {search->layouts[prefill], search->layouts[decode]},
                                   .decode_is_packed = is_packed};
    struct error ignored;
    bool is_legal = plan_layouts_check(&layouts, search->problem->shape, &ignored) == STATUS_OK;
    for (int way = 0; way < PLAN_WAY_COUNT; way++) {
        if (!way_fits(&layouts, (enum plan_way)way))
            continue;
        struct plan_candidate *candidate = candidate_add(search);
        bool takes_int4 = is_packed || way == PLAN_UPLOAD;
        *candidate = (struct plan_candidate){.layouts = layouts,
                                             .way = (enum plan_way)way,
                                             .verdict = is_legal ? PLAN_NOT_ALLOWED : PLAN_ILLEGAL};
        if (!is_legal || (takes_int4 && !search->problem->can_have_backup))
            continue;
        candidate_price(candidate, search, prefill, decode);
        candidate->has_times = candidate->verdict == PLAN_POSSIBLE;
        if (takes_int4 && !search->problem->allows_int4)
            candidate->verdict = PLAN_NOT_ALLOWED;
    }
}

static bool is_same_attention(const struct layout *a, const struct layout *b)
{
    return a->attention.tp == b->attention.tp &&
           a->attention.replicate_ffn == b->attention.replicate_ffn;
}

static void candidates_add(struct search *search)
{
    for (int prefill = 0; prefill < search->layout_count; prefill++) {
        for (int decode = 0; decode < search->layout_count; decode++) {
            if (!is_same_attention(&search->layouts[prefill], &search->layouts[decode]))
                continue;
            pair_add(search, prefill, decode, false);
            pair_add(search, prefill, decode, true);
        }
    }
}

/* Behind the others: one for each layout, so that who asks why it is not among them is told. */
static void refused_add(struct search *search)
{
    for (int i = 0; i < search->refused_count; i++)
        *candidate_add(search) =
            (struct plan_candidate){.layouts = plan_layouts_static(&search->refused[i]),
                                    .way = PLAN_NONE,
                                    .verdict = PLAN_ILLEGAL};
}

/* ---- The table ------------------------------------------------------------------------------- */

/* Replicated shared parts stand apart only where they could be cut. */
static void layouts_list(struct search *search)
{
    const struct model_shape *shape = search->problem->shape;
    struct layout all[LAYOUT_LIST_MAX];
    int count = layout_list(all, LAYOUT_LIST_MAX, search->problem->rank_count);
    for (int i = 0; i < count; i++) {
        struct error ignored;
        if (layout_check(&all[i], shape, &ignored) != STATUS_OK) {
            search->refused[search->refused_count++] = all[i];
            continue;
        }
        search->layouts[search->layout_count++] = all[i];
        bool can_cut = all[i].attention.tp > 1 &&
                       ((shape->shared_expert_dim > 0 &&
                         layout_ffn_is_cut(&all[i], shape->shared_expert_dim)) ||
                        (shape->dense_dim > 0 && layout_ffn_is_cut(&all[i], shape->dense_dim)));
        if (!can_cut)
            continue;
        all[i].attention.replicate_ffn = true;
        search->layouts[search->layout_count++] = all[i];
    }
}

static enum status phases_price(struct search *search, struct error *err)
{
    const struct plan_problem *problem = search->problem;
    struct phase_table *phases = &search->phases;
    size_t layouts = (size_t)search->layout_count, waves = (size_t)problem->wave_count;
    size_t first = layouts * (size_t)problem->pass_count * waves, second = layouts * 2 * waves * 2;
    const char *what = "the plans";
    TRY(memory_get((void **)&phases->prefill, first, sizeof *phases->prefill, what, err));
    TRY(memory_get((void **)&phases->prefill_total, first, sizeof(double), what, err));
    TRY(memory_get((void **)&phases->decode, second, sizeof *phases->decode, what, err));
    TRY(memory_get((void **)&phases->decode_total, second, sizeof(double), what, err));
    for (size_t i = 0; i < first; i++) {
        int64_t wave = problem->waves[i % waves];
        int64_t pass_tokens = problem->passes[i / waves % (size_t)problem->pass_count];
        wave = wave < problem->load.sequences ? wave : problem->load.sequences;
        phases->prefill[i] = plan_prefill_cost(
            problem, &search->layouts[i / waves / (size_t)problem->pass_count], pass_tokens, wave);
        phases->prefill_total[i] = pass_cost_total(&phases->prefill[i].cost);
    }
    for (size_t i = 0; i < second; i++) {
        int64_t wave = problem->waves[i / 2 % waves];
        const struct layout *layout = &search->layouts[i / 2 / waves / 2];
        bool is_packed = i / 2 / waves % 2 == 1, is_closed = i % 2 == 1;
        wave = wave < problem->load.sequences ? wave : problem->load.sequences;
        if (is_closed && problem->mix_count <= 1)
            phases->decode[i] = phases->decode[i - 1];
        else
            phases->decode[i] = (is_closed ? plan_wave_decode_cost
                                           : plan_decode_cost)(problem, layout, is_packed, wave);
        phases->decode_total[i] = pass_cost_total(&phases->decode[i]);
    }
    return STATUS_OK;
}

static bool is_static(const struct plan_candidate *candidate)
{
    return candidate->verdict == PLAN_POSSIBLE && candidate->way == PLAN_NONE;
}

static int find_static(const struct plan_table *table, const struct layout *layout)
{
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        const struct layout *own = &candidate->layouts.of[PHASE_PREFILL];
        if (is_static(candidate) && is_same_attention(own, layout) &&
            own->experts.tp == layout->experts.tp)
            return i;
    }
    return -1;
}

static double seconds_of(const struct plan_table *table, int index)
{
    return index < 0 ? INFINITY : plan_candidate_total(&table->candidates[index]);
}

/* Of equal ones the first of the two. */
static int faster_of(const struct plan_table *table, int one, int other)
{
    return seconds_of(table, other) < seconds_of(table, one) ? other : one;
}

static bool is_in_layout(const struct plan_candidate *candidate, const struct layout *layout)
{
    const struct layout *own = candidate->layouts.of;
    return is_same_attention(&own[PHASE_PREFILL], layout) &&
           own[PHASE_PREFILL].experts.tp == layout->experts.tp &&
           own[PHASE_DECODE].experts.tp == layout->experts.tp;
}

int plan_table_pick(const struct plan_table *table,
                    bool (*may)(const void *context, const struct plan_candidate *candidate),
                    const void *context)
{
    const struct plan_candidate *tp =
        table->static_tp < 0 ? NULL : &table->candidates[table->static_tp];
    int fastest = -1, native = -1, in_layout = -1;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE || (may != NULL && !may(context, candidate)))
            continue;
        fastest = faster_of(table, fastest, i);
        if (tp != NULL && is_in_layout(candidate, &tp->layouts.of[PHASE_PREFILL]))
            in_layout = faster_of(table, in_layout, i);
        if (i == table->static_tp)
            native = i;
    }
    double enough = seconds_of(table, fastest) * PLAN_GAIN_WORTH_A_LAYOUT;
    if (native >= 0 && seconds_of(table, native) < enough)
        return native;
    return in_layout >= 0 && seconds_of(table, in_layout) < enough ? in_layout : fastest;
}

void plan_table_choose(struct plan_table *table)
{
    table->fastest = table->best_static = -1;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE)
            continue;
        table->fastest = faster_of(table, table->fastest, i);
        if (is_static(candidate))
            table->best_static = faster_of(table, table->best_static, i);
    }
    table->best = plan_table_pick(table, NULL, NULL);
}

static void statics_find(struct plan_table *table, const struct plan_problem *problem)
{
    struct layout layout;
    struct error ignored;
    table->static_tp = table->static_ep = -1;
    if (layout_static_tp(&layout, problem->shape, problem->rank_count, &ignored) == STATUS_OK)
        table->static_tp = find_static(table, &layout);
    if (layout_static_ep(&layout, problem->shape, problem->rank_count, &ignored) == STATUS_OK)
        table->static_ep = find_static(table, &layout);
}

static void phases_free(struct phase_table *phases)
{
    memory_free(phases->prefill);
    memory_free(phases->prefill_total);
    memory_free(phases->decode);
    memory_free(phases->decode_total);
}

static enum status search_run(struct search *search, struct error *err)
{
    layouts_list(search);
    classes_find(search);
    TRY(phases_price(search, err));
    search->capacity =
        search->layout_count * search->layout_count * 2 * PLAN_WAY_COUNT + search->refused_count;
    TRY(memory_get((void **)&search->table->candidates, (size_t)search->capacity,
                   sizeof *search->table->candidates, "the plans", err));
    candidates_add(search);
    refused_add(search);
    statics_find(search->table, search->problem);
    plan_table_choose(search->table);
    return STATUS_OK;
}

static const struct plan_table no_table = {
    .fastest = -1, .best = -1, .static_tp = -1, .static_ep = -1, .best_static = -1};

enum status plan_find(struct plan_table *out, const struct plan_problem *problem, struct error *err)
{
    *out = no_table;
    struct search search = {.problem = problem, .table = out};
    enum status status = search_run(&search, err);
    phases_free(&search.phases);
    if (status != STATUS_OK)
        plan_table_deinit(out);
    return status;
}

void plan_table_deinit(struct plan_table *table)
{
    memory_free(table->candidates);
    *table = no_table;
}

static void candidate_join(struct plan_candidate *to, const struct plan_candidate *more, int part)
{
    ASSERT(to->way == more->way);
    bool is_larger = plan_memory_total(&more->memory) > plan_memory_total(&to->memory);
    if (to->verdict == PLAN_POSSIBLE)
        to->verdict = more->verdict;
    to->has_times &= more->has_times;
    if (is_larger) {
        to->memory = more->memory;
        to->pass_tokens = more->pass_tokens;
        to->wave = more->wave;
    }
    to->stays |= more->stays << part;
    to->prefill += more->prefill;
    to->transition += more->transition;
    to->decode += more->decode;
    to->way_back += more->way_back;
    pass_cost_add(&to->prefill_cost, &more->prefill_cost, 1);
    pass_cost_add(&to->decode_cost, &more->decode_cost, 1);
}

static int still_possible(const struct plan_table *table, int index)
{
    return index >= 0 && is_static(&table->candidates[index]) ? index : -1;
}

void plan_table_add(struct plan_table *table, const struct plan_table *more, int part)
{
    ASSERT(table->count == more->count);
    for (int i = 0; i < table->count; i++)
        candidate_join(&table->candidates[i], &more->candidates[i], part);
    table->static_tp = still_possible(table, table->static_tp);
    table->static_ep = still_possible(table, table->static_ep);
    plan_table_choose(table);
}

void plan_illegal_reason(struct error *reason, const struct plan_problem *problem,
                         const struct plan_candidate *candidate)
{
    *reason = (struct error){0};
    if (plan_layouts_check(&candidate->layouts, problem->shape, reason) == STATUS_OK)
        return;
}
