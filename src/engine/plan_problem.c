#include "engine/plan_problem.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/engine.h"
#include "engine/engine_backup.h"
#include "engine/generator.h"
#include "engine/run_limits.h"
#include "exec/exec.h"
#include "model/fingerprint.h"
#include "quant/int4.h"
#include "transition/transition.h"

_Static_assert(PLAN_TAIL_TOKENS == GENERATOR_TAIL, "weights go back when a run lets them");
_Static_assert(PLAN_ENTRY_SHARE == GENERATOR_ENTRY_SHARE &&
                   PLAN_ENTRY_PASSES == GENERATOR_ENTRY_PASSES,
               "and rows enter as they do there");

/* Waves and passes are chosen among powers of two of these. */
#define WAVE_MOST  256
#define PASS_LEAST 1024

/* Of a rank whose threads nobody knows: with more, no way takes more. */
#define WORKERS_MOST 64

_Static_assert(SEQUENCES_MAX == 1 << (PLAN_WAVES_MAX - 1), "all powers of two have a place");
_Static_assert(PLAN_PASS_MOST == PASS_LEAST << (PLAN_PASSES_MAX - 1), "and all passes");

/* ---- Memory ----------------------------------------------------------------------------------
 */

static struct weights_share share_of(const struct plan_subject *subject,
                                     const struct plan_layouts *layouts, enum plan_room room,
                                     enum dtype experts)
{
    return (struct weights_share){
        .layouts = *layouts,
        .packed = subject->problem.backup,
        .keeps_both = room == PLAN_ROOM_BOTH,
        .spare_count = room == PLAN_ROOM_SPARE ? 1 : 0,
        .rank = 0, /* shares that do not come out even are larger on the first ranks */
        .types = {subject->dtype, experts},
    };
}

/* All but routed experts: the same for every layout of these. */
static uint64_t resident_bytes(struct plan_subject *subject, const struct plan_layouts *layouts)
{
    const struct attention_layout *attention = &layouts->of[PHASE_PREFILL].attention;
    struct weights_bytes bytes;
    struct weights_share share;
    for (int i = 0; i < subject->resident_count; i++) {
        const struct plan_resident *known = &subject->resident[i];
        if (known->attention.tp == attention->tp &&
            known->attention.replicate_ffn == attention->replicate_ffn)
            return known->bytes;
    }
    share = share_of(subject, layouts, PLAN_ROOM_ONE, subject->dtype);
    weights_bytes(&bytes, subject->config, &share);
    ASSERT(subject->resident_count < PLAN_RESIDENT_MAX);
    subject->resident[subject->resident_count++] =
        (struct plan_resident){*attention, bytes.resident};
    return bytes.resident;
}

/* Starts anew with other layouts. */
static struct plan_known *known_of(struct plan_subject *subject, const struct plan_layouts *layouts)
{
    struct plan_known *known = &subject->known;
    if (!known->is_known || memcmp(&known->layouts, layouts, sizeof *layouts) != 0)
        *known = (struct plan_known){.is_known = true, .layouts = *layouts};
    return known;
}

/* Of the layouts that are known. */
static const struct plan_known_experts *experts_of(struct plan_subject *subject,
                                                   enum plan_room room, enum dtype experts)
{
    struct plan_known *known = &subject->known;
    struct plan_known_experts *of = &known->experts[room][experts == DTYPE_INT4];
    if (of->is_known)
        return of;
    struct weights_share share = share_of(subject, &known->layouts, room, experts);
    *of = (struct plan_known_experts){
        .is_known = true,
        .bytes = weights_expert_bytes(subject->config, &share),
    };
    share.spare_count++;
    if (room == PLAN_ROOM_SPARE)
        of->spare = weights_expert_bytes(subject->config, &share) - of->bytes;
    return of;
}

static int place_of(const int64_t *sizes, int count, int64_t size)
{
    int i = 0;
    while (i < count - 1 && sizes[i] != size)
        i++;
    return i;
}

/* Sizes that may be chosen are asked about often; a wave of all sequences may be none of them, and
 * stands at the last. */
static uint64_t activation_bytes(struct plan_subject *subject, struct plan_known *known,
                                 int64_t pass_tokens, int64_t sequences)
{
    const struct plan_problem *problem = &subject->problem;
    int pass = place_of(subject->passes, problem->pass_count, pass_tokens);
    int wave = place_of(subject->waves, problem->wave_count, sequences);
    bool is_known = subject->passes[pass] == pass_tokens &&
                    (subject->waves[wave] == sequences || sequences == problem->load.sequences);
    if (!is_known)
        return exec_bytes(subject->config, &known->layouts, pass_tokens, sequences);
    if (known->activations[pass][wave] == 0)
        known->activations[pass][wave] =
            exec_bytes(subject->config, &known->layouts, pass_tokens, sequences);
    return known->activations[pass][wave];
}

static uint64_t cache_bytes(int64_t pages, uint64_t page_bytes)
{
    uint64_t bytes;
    return checked_mul(&bytes, (uint64_t)pages, page_bytes) && bytes < PLAN_CACHE_BYTES_MOST
               ? bytes
               : PLAN_CACHE_BYTES_MOST;
}

/* Of one group: a full page that sequences share is kept once. */
static int64_t group_pages(const struct plan_load *load, int64_t sequences)
{
    int64_t pages = sequences * kv_pages_for(load->prompt_tokens + load->output_tokens);
    double beginning = plan_load_beginning(load) / KV_PAGE_TOKENS;
    if (beginning == 0)
        return pages;
    double again = (double)sequences - ceil((double)sequences / load->shared.sharers);
    return pages - (int64_t)(beginning * again + 1e-6); /* means do not come out even */
}

/* The cache keeps all positions of a sequence, also of layers with a sliding window: its pages are
 * of all layers, and go when the sequence ends. */
static struct plan_memory memory_with(struct plan_subject *subject,
                                      const struct plan_layouts *layouts, enum plan_room room,
                                      int64_t pass_tokens, int64_t sequences, enum dtype experts)
{
    const struct layout *layout = &layouts->of[PHASE_PREFILL];
    const struct plan_load *load = &subject->problem.load;
    struct plan_known *known = known_of(subject, layouts);
    const struct plan_known_experts *of_experts = experts_of(subject, room, experts);
    int64_t pages = group_pages(load, ceil_div(sequences, layout->attention.dp));
    pages = pages > subject->pages_least ? pages : subject->pages_least;
    uint64_t cache = cache_bytes(pages, kv_page_bytes(subject->config, layout, subject->dtype));
    if (subject->cache_bytes > 0) /* a run has all of it; what is more does not fit */
        cache = cache > subject->cache_bytes ? PLAN_CACHE_BYTES_MOST : subject->cache_bytes;
    return (struct plan_memory){
        .weights = resident_bytes(subject, layouts),
        .experts = of_experts->bytes,
        .spare = of_experts->spare,
        .cache = cache,
        .activations =
            activation_bytes(subject, known, pass_tokens,
                             subject->wave_opened > sequences ? subject->wave_opened : sequences),
    };
}

static struct plan_memory memory_of(void *context, const struct plan_layouts *layouts,
                                    enum plan_room room, int64_t pass_tokens, int64_t sequences)
{
    struct plan_subject *subject = context;
    return memory_with(subject, layouts, room, pass_tokens, sequences,
                       subject->problem.native.dtype);
}

static struct plan_memory int4_memory_of(void *context, const struct plan_layouts *layouts,
                                         enum plan_room room, int64_t pass_tokens,
                                         int64_t sequences)
{
    return memory_with(context, layouts, room, pass_tokens, sequences, DTYPE_INT4);
}

/* ---- What there is to choose from ------------------------------------------------------------
 */

/* `most`, which may be no power of two, and what is below it. */
static int sizes_between(int64_t *out, int64_t least, int64_t most, int count_max)
{
    int count = 0;
    for (int64_t size = least; size < most && count < count_max - 1; size *= 2)
        out[count++] = size;
    out[count++] = most;
    return count;
}

static void sizes_find(struct plan_subject *subject, const struct plan_subject_params *params)
{
    int64_t sequences = params->load.sequences;
    int64_t wave_max = params->wave_max > 0 ? params->wave_max : WAVE_MOST;
    int64_t pass = params->max_num_batched_tokens; /* it has a token of each who decodes */
    wave_max = pass > 0 && pass < wave_max ? pass : wave_max;
    int64_t computed = params->load.prompt_tokens - (int64_t)params->load.shared.tokens;
    int64_t tokens = sequences < PLAN_PASS_MOST ? sequences * computed : PLAN_PASS_MOST;
    struct plan_problem *problem = &subject->problem;
    subject->waves[0] = params->max_num_seqs;
    subject->passes[0] = params->max_num_batched_tokens;
    problem->wave_count = problem->pass_count = 1;
    if (params->max_num_seqs == 0)
        problem->wave_count = sizes_between(
            subject->waves, 1, sequences < wave_max ? sequences : wave_max, PLAN_WAVES_MAX);
    if (pass > 0) {
        /* Whoever runs has no longer passes: nobody waits for more tokens than that. */
        problem->entry_tokens = pass < problem->entry_tokens ? pass : problem->entry_tokens;
        return;
    }
    /* The usual one is there also where nobody fills it:
     * what is chosen for these rows is then no less than what is taken where nothing is chosen. */
    int64_t together = params->max_num_seqs > 0 ? params->max_num_seqs : params->wave_max;
    int64_t least = together > PASS_LEAST ? together : PASS_LEAST;
    int64_t most = tokens > ENGINE_PASS_TOKENS ? tokens : ENGINE_PASS_TOKENS;
    most = most < PLAN_PASS_MOST ? most : PLAN_PASS_MOST;
    problem->pass_count =
        sizes_between(subject->passes, least, most > least ? most : least, PLAN_PASSES_MAX);
}

/* As a run refuses them. */
static enum status int4_check(const struct model_config *config, struct error *err)
{
    struct model_shape shape = weights_shape(config);
    if (shape.hidden_dim % PACK_BLOCK != 0 || shape.expert_dim % PACK_BLOCK != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--expert-dtype int4 needs a hidden size and a width of experts that are "
                         "multiples of %d, found %lld and %lld; --expert-dtype auto takes them as "
                         "they are",
                         PACK_BLOCK, (long long)shape.hidden_dim, (long long)shape.expert_dim);
    return STATUS_OK;
}

enum status plan_load_check(const struct plan_subject_params *params, struct error *err)
{
    const struct plan_load *load = &params->load;
    int64_t most = params->config->position_count_max;
    int64_t sequences = params->max_num_seqs == 0 ? 1 : params->max_num_seqs;
    int64_t tokens =
        params->max_num_batched_tokens == 0 ? sequences : params->max_num_batched_tokens;
    if (params->has_int4_experts)
        TRY(int4_check(params->config, err));
    TRY(run_limits_check(sequences, tokens, params->config, 1, err));
    if (load->prompt_tokens > most || load->output_tokens > most - load->prompt_tokens)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%lld prompt and %lld output tokens are more than the model's context of "
                         "%lld; take less",
                         (long long)load->prompt_tokens, (long long)load->output_tokens,
                         (long long)most);
    return STATUS_OK;
}

/* What upload works with on a rank, of a backup that need not be there. Of sizes that none can have
 * nothing is decoded on one. */
static uint64_t upload_bytes(const struct plan_subject_params *params, bool is_packed)
{
    static const struct fingerprint none;
    const struct backup_settings *settings =
        params->backup != NULL ? params->backup : &engine_backup_settings;
    int workers = params->worker_count > 0 ? params->worker_count : WORKERS_MOST;
    struct backup_form form;
    struct error ignored;
    if (backup_form_make(&form, settings, params->config, &none, &ignored) != STATUS_OK)
        return 0;
    struct upload_bytes bytes =
        transition_upload_bytes_of(&form, workers, params->is_gpu, is_packed);
    return bytes.device + (params->is_gpu ? 0 : bytes.host);
}

enum status plan_subject_init(struct plan_subject *out, const struct plan_subject_params *params,
                              struct error *err)
{
    TRY(plan_load_check(params, err));
    const struct expert_type native = {
        .dtype = params->has_int4_experts ? DTYPE_INT4 : params->dtype,
        .group = params->has_int4_experts ? INT4_GROUP : 0,
    };
    *out = (struct plan_subject){
        .config = params->config,
        .shape = weights_shape(params->config),
        .dtype = params->dtype,
        .wave_opened = params->wave_max,
        .cache_bytes = params->kv_bytes / (uint64_t)params->rank_count,
        .pages_least = kv_pages_for(params->longest_tokens),
    };
    out->problem = (struct plan_problem){
        .rank_count = params->rank_count,
        .shape = &out->shape,
        .profile = params->profile,
        .types = {params->dtype, native.dtype, params->dtype},
        .native = native,
        .routing = params->routing != NULL ? *params->routing : (struct routing){0},
        .load = params->load,
        .mix = params->mix,
        .mix_count = params->mix_count,
        .may_stay = params->may_stay,
        .moves_only = params->moves_only,
        .entry_tokens = generator_entry_tokens(params->config, params->is_gpu),
        .is_queue = params->is_queue,
        .allows_int4 = params->allows_int4 && !params->has_int4_experts,
        .can_have_backup = !params->has_int4_experts,
        .passes = out->passes,
        .waves = out->waves,
        .memory_bytes = params->memory_bytes,
        .pass_least = params->wave_max,
        .usual_pass = params->max_num_batched_tokens == 0 ? ENGINE_PASS_TOKENS : 0,
        .memory = memory_of,
        .memory_context = out,
    };
    if (out->shape.hidden_dim % PACK_BLOCK == 0 && out->shape.expert_dim % PACK_BLOCK == 0)
        out->problem.backup =
            backup_expert_type(params->backup != NULL ? params->backup : &engine_backup_settings,
                               out->shape.hidden_dim);
    else
        out->problem.allows_int4 = out->problem.can_have_backup = false;
    if (out->problem.can_have_backup) {
        out->problem.upload_bytes = upload_bytes(params, false);
        out->problem.upload_packed_bytes = upload_bytes(params, true);
    }
    if (out->problem.allows_int4 && out->shape.moe_layer_count > 0)
        out->problem.int4_memory = int4_memory_of;
    sizes_find(out, params);
    return STATUS_OK;
}
