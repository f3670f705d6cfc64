#include "rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "device_bytes.h"
#include "exec/weight_slices.h"
#include "layout/moves.h"
#include "model/config.h"
#include "rig_gpus.h"
#include "transition/transition_state.h"

static int refuse_setup(struct uring_ring **out, unsigned entries)
{
    (void)out, (void)entries;
    return -ENOSYS;
}

const struct uring_calls rig_no_uring = {.setup = refuse_setup};

static void hear(void *context, enum log_level level, const char *message)
{
    struct warnings *heard = context;
    if (level != LOG_WARNING)
        return;
    snprintf(heard->last, sizeof heard->last, "%s", message);
    heard->count++;
}

struct log_sink rig_hear(struct warnings *heard)
{
    memset(heard, 0, sizeof *heard);
    return (struct log_sink){hear, heard};
}

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

struct model_shape rig_shape(const char *model)
{
    struct checkpoint *checkpoint;
    struct error err;
    check(checkpoint_open(&checkpoint, scenario_checkpoint(model, DTYPE_F32), &err), &err);
    struct model_shape shape = weights_shape(checkpoint_config(checkpoint));
    checkpoint_close(checkpoint);
    return shape;
}

static const char *dir_of(const struct rig_params *params)
{
    return params->dir != NULL ? params->dir : scenario_checkpoint(params->model, params->dtype);
}

static void runner_open(struct model_runner *out, const struct rig_params *params, const char *plan,
                        struct expert_type packed)
{
    model_runner_open(
        out, &(struct runner_params){
                 .dir = dir_of(params),
                 .packed = packed,
                 .dtype = params->dtype,
                 .has_int4_experts = params->has_int4_experts,
                 .rank_count = params->rank_count,
                 .plan = plan,
                 .gpus = rig_gpus(params->rank_count),
                 .keeps_both = params->keeps_both || (!params->is_auto && params->way == WAY_KEEP),
                 .spare_count = params->spare_count,
                 .thread_count = params->rank_count + 1, /* one rank has two threads */
                 .token_max = scenario_token_max(&scenarios[0], params->rank_count),
                 .segment_max = SCENARIO_SEQUENCES_MAX,
                 .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                 .turn = params->turn,
                 .patience_seconds = params->patience_seconds,
             });
}

bool rig_is_packed(const struct rig_params *params)
{
    return strstr(params->plan, ":int4") != NULL;
}

bool rig_can(const struct rig_params *params, enum way way)
{
    if (rig_is_packed(params))
        return way == WAY_KEEP || way == WAY_UPLOAD;
    return way != WAY_UPLOAD || !params->has_int4_experts;
}

static void backup_get(struct rig *rig, const struct rig_params *params)
{
    struct checkpoint *checkpoint;
    struct backup_write_params write = {.path = rig->backup_path, .settings = params->settings};
    struct backup_report report;
    struct error err;
    check(checkpoint_open(&checkpoint, dir_of(params), &err), &err);
    if (write.settings.scheme == BACKUP_PER_GROUP && write.settings.group == 0)
        write.settings.group = BACKUP_GROUP_DEFAULT;
    snprintf(rig->backup_path, sizeof rig->backup_path, "%s/%d-%lld-%d-%d.backup",
             checkpoint_dir(checkpoint), (int)write.settings.scheme,
             (long long)write.settings.group, write.settings.is_asymmetric,
             write.settings.has_zstd);
    check(backup_write(&report, checkpoint, &write, &err), &err);
    check(backup_open(&rig->backup, rig->backup_path, &err), &err);
    checkpoint_close(checkpoint);
}

void rig_load(struct rig *out, const struct rig_params *params)
{
    struct expert_type packed = {.dtype = DTYPE_INT4};
    memset(out, 0, sizeof *out);
    if (params->has_backup || rig_is_packed(params) ||
        (!params->is_auto && params->way == WAY_UPLOAD))
        backup_get(out, params);
    if (rig_is_packed(params))
        packed = backup_expert_type(&backup_form(out->backup)->settings,
                                    backup_form(out->backup)->hidden_dim);
    runner_open(&out->runner, params, params->plan, packed);
    out->shape = weights_shape(out->runner.config);
    for (int r = 0; r < params->rank_count; r++)
        out->slots[r] = &out->runner.weights[r].experts;
}

enum status rig_start(struct rig *rig, const struct rig_params *params, struct error *err)
{
    return transition_create(&rig->transition,
                             &(struct transition_params){
                                 .box = rig->runner.box,
                                 .checkpoint = rig->runner.checkpoint,
                                 .backup = rig->backup,
                                 .shape = &rig->shape,
                                 .layouts = &rig->runner.layouts,
                                 .slots = rig->slots,
                                 .is_auto = params->is_auto,
                                 .keeps_format = params->keeps_format,
                                 .way = params->way,
                                 .memory_available = params->memory_available,
                                 .memory_lockable = params->memory_lockable,
                                 .poisons_freed = !params->leaves_freed,
                                 .prefill_seconds = params->prefill_seconds,
                                 .uring = params->uring,
                                 .log = params->log,
                             },
                             err);
}

void rig_open(struct rig *out, const struct rig_params *params)
{
    struct error err;
    rig_load(out, params);
    check(rig_start(out, params, &err), &err);
}

void rig_close(struct rig *rig)
{
    transition_destroy(rig->transition);
    model_runner_close(&rig->runner);
    backup_close(rig->backup);
}

static void way_reopen(struct transition *transition, enum way way)
{
    struct error err;
    for (int r = 0; r < transition->rank_count && !transition->is_open[way]; r++)
        check(ways[way]->open(&transition->ranks[r], &err), &err);
    transition->is_open[way] = true;
}

void rig_take_way(const struct rig *rig, enum way way)
{
    way_reopen(rig->transition, way);
    if (way == WAY_UPLOAD)
        way_reopen(rig->transition, WAY_RELOAD);
    rig->transition->way[PHASE_DECODE] = way;
}

void cold_open(struct cold *out, const struct rig_params *params)
{
    struct plan_layouts layouts;
    struct rig_params alone = *params;
    struct error err;
    alone.turn = NULL;
    alone.keeps_both = false;
    alone.way = WAY_RESHARD;
    check(plan_layouts_parse(&layouts, params->plan, params->rank_count, &err), &err);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        char text[LAYOUT_TEXT_BYTES];
        layout_format(text, &layouts.of[phase]);
        runner_open(&out->of[phase], &alone, text, (struct expert_type){.dtype = DTYPE_INT4});
    }
}

void cold_close(struct cold *cold)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        model_runner_close(&cold->of[phase]);
}

/* ---- Passes that compute nothing ------------------------------------------------------------- */

struct empty_pass {
    const struct rig *rig;
    struct transition *transition;
};

static enum status release_all(void *context, int rank, struct error *err)
{
    const struct empty_pass *pass = context;
    struct device *device = box_device(pass->rig->runner.box, rank);
    for (int64_t layer = 0; layer < pass->rig->shape.layer_count; layer++) {
        if (expert_slots_has(pass->rig->slots[rank], layer))
            transition_release(pass->transition, rank, layer);
    }
    return device->ops->synchronize(device->stream, err);
}

static enum status await_all(void *context, int rank, struct error *err)
{
    const struct empty_pass *pass = context;
    for (int64_t layer = 0; layer < pass->rig->shape.layer_count; layer++) {
        if (expert_slots_has(pass->rig->slots[rank], layer))
            TRY(transition_await(pass->transition, rank, layer, err));
    }
    return STATUS_OK;
}

enum status rig_move(const struct rig *rig, struct transition *transition, enum phase phase,
                     bool is_beside, struct error *err)
{
    struct empty_pass pass = {rig, transition};
    if (is_beside) {
        /* What is under way may go to the other phase. */
        if (!transition_is_under_way(transition))
            transition_start(transition, phase);
        enum status status = box_run(rig->runner.box, release_all, &pass, err);
        if (status == STATUS_OK)
            status = box_run(rig->runner.box, await_all, &pass, err);
        while (status != STATUS_OK && transition_is_under_way(transition))
            continue;
        TRY(status);
    }
    return transition_run(transition, phase, err);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* Array by array: between them may be a gap that nobody writes. */
static bool slices_equal(const struct expert_form *form, const char *a, const char *b)
{
    const struct expert_slice *slice = &form->slice;
    for (int64_t e = slice->first_expert; e < slice->first_expert + slice->expert_count; e++) {
        for (int i = 0; i < form->array_count; i++) {
            int64_t at = expert_form_offset(form, i, e, slice->blocks.first);
            int64_t bytes = slice->blocks.count * form->arrays[i].block_bytes;
            if (memcmp(a + at, b + at, (size_t)bytes) != 0)
                return false;
        }
    }
    return true;
}

/* One matrix of a granule as the reference has it, in the numbers of the form. */
static void reference_matrix(void *out, enum dtype dtype, const struct backup_form *form,
                             const void *content, enum backup_matrix which)
{
    struct matrix matrix = backup_granule_matrix(form, content, which);
    const uint8_t *nibbles = matrix.data;
    if (dtype == DTYPE_BF16)
        backup_granule_dequantize(out, form, content, which);
    for (int64_t i = 0; dtype == DTYPE_F32 && i < matrix.rows * matrix.columns; i++) {
        int64_t row = i / matrix.columns, column = i % matrix.columns;
        int64_t from =
            packed_index(matrix.packing, DTYPE_INT4, matrix.rows, matrix.columns, row, column);
        int64_t to =
            packed_index(matrix.packing, DTYPE_F32, matrix.rows, matrix.columns, row, column);
        int64_t group = packed_scale_index(&matrix, row, column);
        float scale = bf16_to_f32(matrix.scales[group]);
        float minimum = matrix.minima == NULL ? -8 * scale : bf16_to_f32(matrix.minima[group]);
        ((float *)out)[to] = scale * (float)(nibbles[from / 2] >> from % 2 * 4 & 15) + minimum;
    }
}

/* A granule's arrays as they are, at its blocks in a packed slice. */
static void reference_copy(char *out, const struct expert_form *to, const struct backup_form *form,
                           const char *content, int64_t expert, int64_t block)
{
    for (int m = 0; m < BACKUP_MATRICES; m++) {
        enum backup_matrix which = (enum backup_matrix)m;
        const struct range ranges[] = {backup_nibbles(form, which), backup_scales(form, which),
                                       backup_minima(form, which)};
        int arrays = form->settings.is_asymmetric ? 3 : 2;
        cr_assert_eq(to->array_count, BACKUP_MATRICES * arrays);
        for (int i = 0; i < arrays; i++)
            memcpy(out + expert_form_offset(to, m * arrays + i, expert, block),
                   content + ranges[i].first, (size_t)ranges[i].count);
    }
}

/* A layer's slice for decode on a rank as the reference has it, into a place of the form `to`. */
static void reference_slice(char *out, const struct expert_form *to, const struct rig *rig,
                            int64_t layer)
{
    const struct expert_slice *slice = &to->slice;
    const struct backup_form *form = backup_form(rig->backup);
    int64_t moe_layer = backup_moe_layer(rig->runner.config, layer);
    int64_t blocks = form->granule_width / PACK_BLOCK,
            end = slice->blocks.first + slice->blocks.count;
    char *bytes = memory_alloc((size_t)backup_granule_bytes_max(rig->backup), 1);
    char *scratch = memory_alloc((size_t)form->content_bytes, 1);
    for (int64_t e = slice->first_expert; e < slice->first_expert + slice->expert_count; e++) {
        for (int64_t block = slice->blocks.first; block < end; block += blocks) {
            const void *content;
            struct error err;
            check(backup_granule_read(&content, rig->backup,
                                      backup_granule(form, moe_layer, e, block / blocks), bytes,
                                      scratch, &err),
                  &err);
            if (to->type.dtype == DTYPE_INT4)
                reference_copy(out, to, form, content, e, block);
            for (int m = 0; m < BACKUP_MATRICES && to->type.dtype != DTYPE_INT4; m++)
                reference_matrix(out + expert_form_offset(to, m, e, block), to->type.dtype, form,
                                 content, (enum backup_matrix)m);
        }
    }
    memory_free(bytes);
    memory_free(scratch);
}

/* The slice that the layer has, in the host's memory. */
static char *slice_copy(struct device *device, const struct expert_slots *slots, int64_t layer)
{
    const struct expert_form *form = &slots->forms[slots->layers[layer].phase];
    return device_copy(device, expert_slots_now(slots, layer), (size_t)expert_form_bytes(form));
}

static bool slice_is_reference(const struct rig *rig, int64_t layer, int rank)
{
    const struct expert_form *form = &rig->slots[rank]->forms[PHASE_DECODE];
    char *expected = memory_alloc((size_t)expert_form_bytes(form), 1);
    char *found = slice_copy(box_device(rig->runner.box, rank), rig->slots[rank], layer);
    reference_slice(expected, form, rig, layer);
    bool equal = slices_equal(form, found, expected);
    memory_free(found);
    memory_free(expected);
    return equal;
}

static bool slice_is_cold(const struct rig *rig, const struct model_runner *cold, int64_t layer,
                          int rank)
{
    const struct expert_slots *slots = rig->slots[rank];
    char *found = slice_copy(box_device(rig->runner.box, rank), slots, layer);
    char *expected = slice_copy(box_device(cold->box, rank), &cold->weights[rank].experts, layer);
    bool equal = slices_equal(&slots->forms[slots->layers[layer].phase], found, expected);
    memory_free(found);
    memory_free(expected);
    return equal;
}

/* The cold start's slice of a layer becomes the reference. */
static void slice_dequantize(struct model_runner *cold, const struct rig *rig, int64_t layer,
                             int rank)
{
    const struct expert_slots *slots = &cold->weights[rank].experts;
    const struct expert_form *form = &slots->forms[PHASE_DECODE];
    struct device *device = box_device(cold->box, rank);
    char *slice = slice_copy(device, slots, layer);
    reference_slice(slice, form, rig, layer);
    device_write(device, expert_slots_now(slots, layer), slice, (size_t)expert_form_bytes(form));
    memory_free(slice);
}

void rig_dequantize(struct model_runner *cold, const struct rig *rig)
{
    for (int64_t layer = 0; layer < rig->shape.layer_count; layer++) {
        for (int r = 0; r < rig->runner.layout.rank_count; r++) {
            if (expert_slots_has(&cold->weights[r].experts, layer))
                slice_dequantize(cold, rig, layer, r);
        }
    }
}

int64_t rig_check(const struct rig *rig, const struct cold *cold, enum phase phase,
                  const char *label)
{
    int64_t found = 0;
    for (int64_t layer = 0; layer < rig->shape.layer_count; layer++) {
        enum phase has = rig->slots[0]->layers[layer].phase;
        if (!expert_slots_has(rig->slots[0], layer))
            continue;
        found += has == phase;
        for (int r = 0; r < rig->runner.layout.rank_count; r++) {
            cr_assert_eq(rig->slots[r]->layers[layer].phase, has, "%s: layer %lld of rank %d",
                         label, (long long)layer, r);
            bool is_int4 = rig->slots[0]->layers[layer].is_int4;
            bool is_right = is_int4 ? slice_is_reference(rig, layer, r)
                                    : slice_is_cold(rig, &cold->of[has], layer, r);
            cr_assert_eq(rig->slots[r]->layers[layer].is_int4, is_int4);
            cr_assert(!is_int4 || has == PHASE_DECODE, "%s: layer %lld", label, (long long)layer);
            cr_assert(is_right, "%s: layer %lld of rank %d is not as a cold start has it%s", label,
                      (long long)layer, r, is_int4 ? ", from the backup" : "");
        }
    }
    return found;
}

/* {0} where there is no backup. */
static struct upload_bytes upload_said(const struct rig *rig, int rank)
{
    const struct device *device = box_device(rig->runner.box, rank);
    if (rig->backup == NULL)
        return (struct upload_bytes){0, 0};
    return transition_upload_bytes(rig->backup, device, rig->runner.layouts.decode_is_packed);
}

uint64_t rig_host_memory_said(const struct rig *rig, int rank)
{
    return upload_said(rig, rank).host;
}

uint64_t rig_way_memory_said(const struct rig *rig, int rank, enum way way)
{
    struct weights_share share = model_runner_share(&rig->runner, rank);
    struct expert_slots_params slots;
    struct model_shape shape;
    bool has_experts[MODEL_LAYERS_MAX];
    weight_slices_slots(&slots, &shape, has_experts, rig->runner.config, &share);
    return transition_way_bytes(way, &slots, box_device(rig->runner.box, rank));
}

uint64_t rig_memory_said(const struct rig *rig, int rank)
{
    const struct model_runner *runner = &rig->runner;
    struct weights_share share = model_runner_share(runner, rank);
    struct weights_bytes weights;
    weights_bytes(&weights, runner->config, &share);
    return weights.resident + weights.experts + upload_said(rig, rank).device +
           exec_bytes(runner->config, &runner->layouts,
                      scenario_token_max(&scenarios[0], runner->layout.rank_count),
                      SCENARIO_SEQUENCES_MAX) +
           (uint64_t)runner->cache.page_count *
               kv_page_bytes(runner->config, &runner->layout, runner->types.matrices);
}

void rig_check_memory(const struct rig *rig, const char *label)
{
    for (int r = 0; r < rig->runner.layout.rank_count; r++) {
        struct device *device = box_device(rig->runner.box, r);
        uint64_t said = rig_memory_said(rig, r);
        uint64_t peak = device->ops->memory_use(device).peak_bytes;
        cr_assert_eq(peak, said, "%s, rank %d: %llu bytes at the peak, not %llu", label, r,
                     (unsigned long long)peak, (unsigned long long)said);
    }
}

void rig_bytes(int64_t bytes[COMM_RANKS_MAX], const struct rig *rig)
{
    for (int r = 0; r < rig->runner.layout.rank_count; r++)
        bytes[r] = (int64_t)comm_domain_bytes(box_domain(rig->runner.box), r, TRAFFIC_TRANSITION);
}

int64_t rig_moe_layers(const struct rig *rig)
{
    return rig->shape.moe_layer_count;
}

int64_t rig_predicted_bytes(const struct rig *rig, enum phase phase, int rank)
{
    static int64_t sent[COMM_RANKS_MAX * COMM_RANKS_MAX];
    const struct plan_layouts *layouts = &rig->runner.layouts;
    enum phase other = phase == PHASE_PREFILL ? PHASE_DECODE : PHASE_PREFILL;
    int64_t blocks = 0;
    int n = rig->runner.layout.rank_count;
    moves_sent_blocks(sent, &rig->shape, &layouts->of[other], &layouts->of[phase]);
    for (int r = 0; r < n; r++)
        blocks += sent[rank * n + r];
    return blocks * expert_block_bytes(&rig->shape, rig->slots[0]->forms[0].type) *
           rig->shape.moe_layer_count;
}
