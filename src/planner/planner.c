#include "planner/planner.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "planner/plan_table.h"
#include "planner/turns.h"

const char *const plan_way_names[PLAN_WAY_COUNT] = {
    [PLAN_NONE] = "none",     [PLAN_KEEP] = "keep",     [PLAN_RESHARD] = "reshard",
    [PLAN_UPLOAD] = "upload", [PLAN_RELOAD] = "reload",
};

/* ---- Transitions ----------------------------------------------------------------------------- */

/* A batch goes in as many whole waves as it has, and one of the rest, which may be of nobody. */
enum wave_part { WAVE_WHOLE, WAVE_REST, WAVE_PARTS };

/* What phases cost, once for each (layout, format, pass, size of a wave): the rests of many waves
 * are of one size, or of another wave's. */
struct phase_table {
    int64_t *sizes; /* [size] */
    size_t size_count;
    size_t *size_of;              /* [wave][part] */
    double *times;                /* [wave][part]: so many waves */
    struct prefill_cost *prefill; /* [layout][pass][size] */
    double *prefill_total;        /* the same */
    struct pass_cost *decode;     /* [layout][packed][size]: of a wave into which nobody comes */
    double *decode_total, *step;  /* the same; seconds of a step of all of the wave */
    /* Of the batch, where others come. */
    struct pass_cost *refilled_prefill; /* [layout][pass][wave] */
    double *refilled_prefill_total;
    struct pass_cost *refilled; /* [layout][packed][wave]: decode */
    double *refilled_total;
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

/* Of it, those on the link from the host. */
static double layer_link_seconds(const struct search *search, int from, int to, enum plan_way way)
{
    const struct changes *changes = &search->changes[search->class_of[from]][search->class_of[to]];
    const struct profile *profile = search->problem->profile;
    if (way == PLAN_UPLOAD)
        return change_link_seconds(profile, &changes->upload);
    return way == PLAN_RELOAD ? change_link_seconds(profile, &changes->reload) : 0;
}

static double exchange_seconds(const struct pass_cost *cost)
{
    double sum = 0;
    for (int part = COST_EXCHANGE; part < COST_PART_COUNT; part++)
        sum += cost->seconds[part];
    return sum;
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

static size_t prefill_at(const struct search *search, int layout, int p, size_t size)
{
    return ((size_t)layout * (size_t)search->problem->pass_count + (size_t)p) *
               search->phases.size_count +
           size;
}

static size_t decode_at(const struct search *search, int layout, bool is_packed, size_t size)
{
    return ((size_t)layout * 2 + is_packed) * search->phases.size_count + size;
}

/* Both phases, where others come for those that end. */
static void refilled_take(struct plan_candidate *out, const struct search *search, int prefill,
                          int decode, int p, int w)
{
    const struct phase_table *phases = &search->phases;
    const struct plan_problem *problem = search->problem;
    size_t waves = (size_t)problem->wave_count;
    size_t first = ((size_t)prefill * (size_t)problem->pass_count + (size_t)p) * waves + (size_t)w;
    size_t second = ((size_t)decode * 2 + out->layouts.decode_is_packed) * waves + (size_t)w;
    out->prefill = phases->refilled_prefill_total[first];
    out->prefill_cost = phases->refilled_prefill[first];
    out->decode = phases->refilled_total[second];
    out->decode_cost = phases->refilled[second];
}

/* Decode of waves into which nobody comes. */
static void waves_take(struct plan_candidate *out, const struct search *search, int decode,
                       bool is_packed, int w)
{
    const struct phase_table *phases = &search->phases;
    out->decode = 0;
    out->decode_cost = (struct pass_cost){{0}};
    for (int part = 2 * w; part < 2 * w + WAVE_PARTS; part++) {
        if (phases->times[part] == 0)
            continue;
        size_t at = decode_at(search, decode, is_packed, phases->size_of[part]);
        out->decode += phases->times[part] * phases->decode_total[at];
        pass_cost_add(&out->decode_cost, &phases->decode[at], phases->times[part]);
    }
}

/* In place of a change of layout, where that is sooner done. */
static void stay(struct plan_candidate *out, const struct search *search, int prefill, int w)
{
    struct plan_candidate staying = *out;
    waves_take(&staying, search, prefill, false, w);
    staying.transition = staying.way_back = 0;
    staying.stays = 1;
    if (plan_candidate_total(&staying) < plan_candidate_total(out))
        *out = staying;
}

static void prefill_take(struct plan_candidate *out, const struct search *search, int prefill,
                         int p, int w)
{
    const struct phase_table *phases = &search->phases;
    out->prefill = 0;
    out->prefill_cost = (struct pass_cost){{0}};
    for (int part = 2 * w; part < 2 * w + WAVE_PARTS; part++) {
        if (phases->times[part] == 0)
            continue;
        size_t at = prefill_at(search, prefill, p, phases->size_of[part]);
        out->prefill += phases->times[part] * phases->prefill_total[at];
        pass_cost_add(&out->prefill_cost, &phases->prefill[at].cost, phases->times[part]);
    }
}

/* Of the way back, `back` seconds for all layers: what the spares take while the last tokens of a
 * wave are generated, in steps of `step` seconds. */
static double tail_hides(const struct search *search, const struct plan_candidate *candidate,
                         double back, double step)
{
    const struct plan_problem *problem = search->problem;
    int64_t steps = problem->load.output_tokens - 1;
    double tail = step * (double)(steps < PLAN_TAIL_TOKENS ? steps : PLAN_TAIL_TOKENS);
    double ahead = back * (double)candidate->spares / (double)problem->shape->moe_layer_count;
    return candidate->way == PLAN_RESHARD ? 0 : fmin(ahead, tail);
}

/* What a change costs beyond the passes of each wave: those of the rest hide less. */
static void change_take(struct plan_candidate *out, const struct search *search, int prefill,
                        int decode, int p, int w)
{
    const struct plan_problem *problem = search->problem;
    const struct phase_table *phases = &search->phases;
    double back =
        (double)problem->shape->moe_layer_count * layer_back(search, prefill, decode, out->way);
    double last = 0;
    bool is_packed = out->layouts.decode_is_packed;
    struct hiding hiding = {
        .layers = problem->shape->moe_layer_count,
        .spares = out->spares,
        .is_beside = out->way != PLAN_RESHARD,
        .layer = layer_seconds(search, prefill, decode, is_packed, out->way),
        .layer_link = layer_link_seconds(search, prefill, decode, out->way),
        .link_sharing = profile_link_sharing(problem->profile),
    };
    out->transition = out->way_back = 0;
    for (int part = 2 * w; part < 2 * w + WAVE_PARTS; part++) {
        if (phases->times[part] == 0)
            continue;
        size_t first = prefill_at(search, prefill, p, phases->size_of[part]);
        size_t second = decode_at(search, decode, is_packed, phases->size_of[part]);
        hiding.prefill = phases->prefill_total[first];
        hiding.last_pass = phases->prefill[first].last_pass;
        hiding.exchanging = exchange_seconds(&phases->prefill[first].cost);
        hiding.decode_layer = phases->step[second] / (double)problem->shape->layer_count;
        out->transition += phases->times[part] * hiding_exposed(&hiding);
        last = back > 0 ? fmax(0, back - tail_hides(search, out, back, phases->step[second])) : 0;
        out->way_back += phases->times[part] * last;
    }
    if (!problem->is_queue)
        out->way_back =
            phases->times[2 * w] + phases->times[2 * w + 1] > 1 ? out->way_back - last : 0;
}

/* Seconds of the batch with one pass size and wave; those of its parts go to `out`. Where nothing
 * moves, others come for those that end (src/engine/generator_admission.c). */
static double price(struct plan_candidate *out, const struct search *search, int prefill,
                    int decode, int p, int w)
{
    if (!plan_way_moves(out->way)) {
        refilled_take(out, search, prefill, decode, p, w);
        return plan_candidate_total(out);
    }
    prefill_take(out, search, prefill, p, w);
    waves_take(out, search, decode, out->layouts.decode_is_packed, w);
    change_take(out, search, prefill, decode, p, w);
    if (search->problem->may_stay)
        stay(out, search, prefill, w);
    return plan_candidate_total(out);
}

/* As many sequences at a time as there are, or may be chosen. */
static int64_t wave_of(const struct plan_problem *problem, int w)
{
    int64_t all = problem->load.sequences;
    return problem->waves[w] < all ? problem->waves[w] : all;
}

/* As src/engine/engine_room.c gives them: more than one where they add no more than an eighth, and
 * weights with as much again stay below half and leave what runs take. */
static int64_t spares_of(const struct plan_problem *problem, const struct plan_memory *memory)
{
    uint64_t there = problem->memory_bytes, weights = memory->weights + memory->experts;
    uint64_t all = plan_memory_total(memory), layers = (uint64_t)problem->shape->moe_layer_count;
    if (memory->spare == 0 || weights >= there / 2 || all >= there)
        return 1;
    uint64_t more = there / 8 / memory->spare;
    uint64_t in_half = (there / 2 - weights) / (2 * memory->spare);
    uint64_t beside = (there - all) / (2 * memory->spare);
    more = more < in_half ? more : in_half;
    more = more < beside ? more : beside;
    return more + 1 >= layers ? (int64_t)layers : 1 + (int64_t)more;
}

/* Redistribution goes layer by layer, whatever room there is. */
static void spares_take(struct plan_candidate *candidate, const struct plan_problem *problem)
{
    bool has_spares = plan_way_room(candidate->way) == PLAN_ROOM_SPARE;
    candidate->spares = !has_spares                      ? 0
                        : candidate->way == PLAN_RESHARD ? 1
                                                         : spares_of(problem, &candidate->memory);
    if (candidate->spares > 1)
        candidate->memory.experts += (uint64_t)(candidate->spares - 1) * candidate->memory.spare;
}

static bool fits(struct plan_candidate *candidate, const struct search *search, int p, int w)
{
    const struct plan_problem *problem = search->problem;
    int64_t wave = wave_of(problem, w);
    candidate->memory = plan_candidate_memory(problem, candidate, problem->passes[p], wave);
    candidate->pass_tokens = problem->passes[p];
    candidate->wave = wave;
    spares_take(candidate, problem);
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
            double judged = seconds;
            if (problem->passes[p] == problem->usual_pass)
                judged /= PLAN_GAIN_WORTH_A_LAYOUT;
            bool is_better = has_room ? best.verdict == PLAN_TOO_LARGE || judged < least
                                      : best.verdict == PLAN_TOO_LARGE &&
                                            plan_memory_total(&tried.memory) < smallest;
            if (!is_better)
                continue;
            best = tried;
            least = has_room ? judged : least;
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
        if (search->problem->moves_only && !plan_way_moves(candidate->way)) {
            candidate->verdict = PLAN_UNKNOWN;
            continue;
        }
        candidate_price(candidate, search, prefill, decode);
        candidate->has_times = candidate->verdict == PLAN_POSSIBLE;
        if (takes_int4 && !search->problem->allows_int4)
            candidate->verdict = PLAN_NOT_ALLOWED;
    }
}

static void candidates_add(struct search *search)
{
    for (int prefill = 0; prefill < search->layout_count; prefill++) {
        for (int decode = 0; decode < search->layout_count; decode++) {
            if (!plan_is_same_attention(&search->layouts[prefill], &search->layouts[decode]))
                continue;
            pair_add(search, prefill, decode, false);
            pair_add(search, prefill, decode, true);
        }
    }
}

/* With every way and both formats. */
static int candidates_most(const struct search *search)
{
    int pairs = 0;
    for (int prefill = 0; prefill < search->layout_count; prefill++) {
        for (int decode = 0; decode < search->layout_count; decode++)
            pairs += plan_is_same_attention(&search->layouts[prefill], &search->layouts[decode]);
    }
    return pairs * 2 * PLAN_WAY_COUNT + search->refused_count;
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

static size_t size_place(struct phase_table *phases, int64_t size)
{
    size_t at = 0;
    while (at < phases->size_count && phases->sizes[at] != size)
        at++;
    if (at == phases->size_count)
        phases->sizes[phases->size_count++] = size;
    return at;
}

static enum status sizes_find(struct phase_table *phases, const struct plan_problem *problem,
                              struct error *err)
{
    size_t most = WAVE_PARTS * (size_t)problem->wave_count;
    const char *what = "the plans";
    TRY(memory_get((void **)&phases->sizes, most, sizeof *phases->sizes, what, err));
    TRY(memory_get((void **)&phases->size_of, most, sizeof *phases->size_of, what, err));
    TRY(memory_get((void **)&phases->times, most, sizeof *phases->times, what, err));
    for (int w = 0; w < problem->wave_count; w++) {
        int64_t wave = wave_of(problem, w), rest = problem->load.sequences % wave;
        size_t *size_of = phases->size_of + WAVE_PARTS * w;
        double *times = phases->times + WAVE_PARTS * w;
        size_of[WAVE_WHOLE] = size_place(phases, wave);
        times[WAVE_WHOLE] = (double)(problem->load.sequences / wave);
        if (rest == 0)
            continue;
        size_of[WAVE_REST] = size_place(phases, rest);
        times[WAVE_REST] = 1;
    }
    return STATUS_OK;
}

static void prefill_price(struct search *search, size_t layouts)
{
    const struct plan_problem *problem = search->problem;
    struct phase_table *phases = &search->phases;
    size_t passes = (size_t)problem->pass_count, sizes = phases->size_count;
    for (size_t i = 0; i < layouts * passes * sizes; i++) {
        phases->prefill[i] =
            plan_prefill_cost(problem, &search->layouts[i / sizes / passes],
                              problem->passes[i / sizes % passes], phases->sizes[i % sizes]);
        phases->prefill_total[i] = pass_cost_total(&phases->prefill[i].cost);
    }
}

static void decode_price(struct search *search, size_t layouts)
{
    const struct plan_problem *problem = search->problem;
    struct phase_table *phases = &search->phases;
    size_t sizes = phases->size_count;
    double steps = (double)(problem->load.output_tokens - 1);
    for (size_t i = 0; i < layouts * 2 * sizes; i++) {
        const struct layout *layout = &search->layouts[i / sizes / 2];
        int64_t size = phases->sizes[i % sizes];
        bool is_packed = i / sizes % 2 == 1;
        if (is_packed && !problem->can_have_backup)
            continue;
        struct pass_cost mean = plan_decode_cost(problem, layout, is_packed, size);
        phases->step[i] = steps > 0 ? pass_cost_total(&mean) / steps : 0;
        phases->decode[i] = problem->mix_count <= 1
                                ? mean
                                : plan_wave_decode_cost(problem, layout, is_packed, size);
        phases->decode_total[i] = pass_cost_total(&phases->decode[i]);
    }
}

/* Sequences of one length end together, so that others come as a wave does. */
static bool come_as_waves(const struct plan_problem *problem, int w)
{
    const struct plan_load *loads = problem->mix_count > 0 ? problem->mix : &problem->load;
    int count = problem->mix_count > 0 ? problem->mix_count : 1;
    double together = turns_together(loads, count, wave_of(problem, w));
    return together == 0 || together >= (double)wave_of(problem, w);
}

static struct pass_cost refilled_prefill_of(const struct search *search, int layout, int p, int w)
{
    const struct plan_problem *problem = search->problem;
    struct plan_candidate waves;
    if (!come_as_waves(problem, w))
        return plan_refilled_prefill_cost(problem, &search->layouts[layout], problem->passes[p],
                                          wave_of(problem, w));
    prefill_take(&waves, search, layout, p, w);
    return waves.prefill_cost;
}

static struct pass_cost refilled_decode_of(const struct search *search, int layout, bool is_packed,
                                           int w)
{
    const struct plan_problem *problem = search->problem;
    struct plan_candidate waves;
    if (problem->mix_count > 1 || !come_as_waves(problem, w))
        return plan_refilled_decode_cost(problem, &search->layouts[layout], is_packed,
                                         wave_of(problem, w));
    waves_take(&waves, search, layout, is_packed, w);
    return waves.decode_cost;
}

static void refilled_price(struct search *search, size_t layouts)
{
    struct phase_table *phases = &search->phases;
    size_t waves = (size_t)search->problem->wave_count;
    size_t passes = (size_t)search->problem->pass_count;
    for (size_t i = 0; i < layouts * passes * waves; i++) {
        phases->refilled_prefill[i] = refilled_prefill_of(
            search, (int)(i / waves / passes), (int)(i / waves % passes), (int)(i % waves));
        phases->refilled_prefill_total[i] = pass_cost_total(&phases->refilled_prefill[i]);
    }
    for (size_t i = 0; i < layouts * 2 * waves; i++) {
        phases->refilled[i] =
            refilled_decode_of(search, (int)(i / waves / 2), i / waves % 2 == 1, (int)(i % waves));
        phases->refilled_total[i] = pass_cost_total(&phases->refilled[i]);
    }
}

static enum status phases_price(struct search *search, struct error *err)
{
    const struct plan_problem *problem = search->problem;
    struct phase_table *phases = &search->phases;
    const char *what = "the plans";
    TRY(sizes_find(phases, problem, err));
    size_t layouts = (size_t)search->layout_count;
    size_t first = layouts * (size_t)problem->pass_count * phases->size_count;
    size_t second = layouts * 2 * phases->size_count;
    size_t third = layouts * (size_t)problem->pass_count * (size_t)problem->wave_count;
    size_t fourth = layouts * 2 * (size_t)problem->wave_count;
    TRY(memory_get((void **)&phases->prefill, first, sizeof *phases->prefill, what, err));
    TRY(memory_get((void **)&phases->prefill_total, first, sizeof(double), what, err));
    TRY(memory_get((void **)&phases->decode, second, sizeof *phases->decode, what, err));
    TRY(memory_get((void **)&phases->decode_total, second, sizeof(double), what, err));
    TRY(memory_get((void **)&phases->step, second, sizeof(double), what, err));
    TRY(memory_get((void **)&phases->refilled_prefill, third, sizeof(struct pass_cost), what, err));
    TRY(memory_get((void **)&phases->refilled_prefill_total, third, sizeof(double), what, err));
    TRY(memory_get((void **)&phases->refilled, fourth, sizeof *phases->refilled, what, err));
    TRY(memory_get((void **)&phases->refilled_total, fourth, sizeof(double), what, err));
    prefill_price(search, layouts);
    decode_price(search, layouts);
    if (!problem->moves_only)
        refilled_price(search, layouts);
    return STATUS_OK;
}

static void phases_free(struct phase_table *phases)
{
    memory_free(phases->sizes);
    memory_free(phases->size_of);
    memory_free(phases->times);
    memory_free(phases->prefill);
    memory_free(phases->prefill_total);
    memory_free(phases->decode);
    memory_free(phases->decode_total);
    memory_free(phases->step);
    memory_free(phases->refilled_prefill);
    memory_free(phases->refilled_prefill_total);
    memory_free(phases->refilled);
    memory_free(phases->refilled_total);
}

static enum status search_run(struct search *search, struct error *err)
{
    layouts_list(search);
    classes_find(search);
    TRY(phases_price(search, err));
    search->capacity = candidates_most(search);
    TRY(memory_get_raw((void **)&search->table->candidates, (size_t)search->capacity,
                       sizeof *search->table->candidates, "the plans", err));
    candidates_add(search);
    refused_add(search);
    plan_table_find_statics(search->table, search->problem);
    plan_table_choose(search->table);
    return STATUS_OK;
}

enum status plan_find(struct plan_table *out, const struct plan_problem *problem, struct error *err)
{
    *out = plan_table_none;
    struct search search = {.problem = problem, .table = out};
    enum status status = search_run(&search, err);
    phases_free(&search.phases);
    if (status != STATUS_OK)
        plan_table_deinit(out);
    return status;
}

void plan_illegal_reason(struct error *reason, const struct plan_problem *problem,
                         const struct plan_candidate *candidate)
{
    *reason = (struct error){0};
    if (plan_layouts_check(&candidate->layouts, problem->shape, reason) == STATUS_OK)
        return;
}
