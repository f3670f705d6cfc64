/* Weights on a device whose memory the host does not reach: packed piece by piece into memory for
 * copies and uploaded from there. What comes is to the byte what is packed in place, whatever the
 * shapes, and an upload that fails is the loading's failure. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/synth.h"
#include "model_runner.h"

TestSuite(staged_weights, .timeout = 100);

/* Pieces are half a MiB of f32: some matrices have several, the last of which fill no block of 16
 * where the width is odd; int4 needs whole blocks. Head and embedding are of several parts of 4
 * MiB.
 */
static const struct staged_case {
    int64_t expert_dim;
    const char *plan; /* a rank's slice begins within the matrices */
    struct weight_types types;
    int64_t spare_count;
} cases[] = {
    {200, "tp1|tp1", {DTYPE_F32, DTYPE_F32}, 0},   {200, "tp1|tp1", {DTYPE_BF16, DTYPE_BF16}, 0},
    {416, "tp2|tp2", {DTYPE_F32, DTYPE_F32}, 0},   {416, "tp2|tp2", {DTYPE_BF16, DTYPE_BF16}, 0},
    {416, "dp2|ep2", {DTYPE_BF16, DTYPE_INT4}, 0}, {416, "tp2|tp2>ep2", {DTYPE_F32, DTYPE_INT4}, 1},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

static const char config_text[] =
    "{\"architectures\": [\"MixtralForCausalLM\"], \"bos_token_id\": 1, \"eos_token_id\": 2,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 1024, \"intermediate_size\": %lld,"
    " \"max_position_embeddings\": 512, \"model_type\": \"mixtral\","
    " \"num_attention_heads\": 4, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 1,"
    " \"num_key_value_heads\": 2, \"num_local_experts\": 2, \"rms_norm_eps\": 1e-05,"
    " \"rope_theta\": 1000000.0, \"sliding_window\": null, \"tie_word_embeddings\": false,"
    " \"torch_dtype\": \"bfloat16\", \"vocab_size\": 2500}\n";

static struct checkpoint *checkpoint_make(char *dir, int64_t expert_dim)
{
    char path[160];
    struct checkpoint *checkpoint;
    struct error err;
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s.json", dir);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fprintf(file, config_text, (long long)expert_dim) > 0 &&
              fclose(file) == 0);
    enum status status = synth_write(
        &(struct synth_params){.preset = path, .dir = dir, .dtype = DTYPE_BF16, .seed = 1}, &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    remove(path);
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    return checkpoint;
}

static void checkpoint_remove(struct checkpoint *checkpoint, const char *dir)
{
    char command[128];
    checkpoint_close(checkpoint);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

/* ---- A device that the host does not reach --------------------------------------------------- */

/* Memory begins as what no weight is, and what is uploaded is counted. */
static struct {
    struct device_ops ops;
    const struct device_ops *real;
    atomic_int uploads;
    int fail_at; /* this upload; 0: none */
} apart;

static enum status get_filled(struct device *device, void **out, size_t bytes, const char *what,
                              struct error *err)
{
    TRY(apart.real->memory_get(device, out, bytes, what, err));
    memset(*out, 0xA5, bytes);
    return STATUS_OK;
}

static enum status upload(struct device *device, const struct op_copy *op, struct error *err)
{
    if (atomic_fetch_add(&apart.uploads, 1) + 1 == apart.fail_at)
        return error_set(err, STATUS_IO, "the device has failed");
    return apart.real->upload(device, op, err);
}

static struct device *device_new(bool host_reaches, int fail_at)
{
    struct cpu_share share = {.thread_count = 2, .first_cpu = -1};
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    apart.real = device->ops;
    apart.ops = *device->ops;
    apart.ops.memory_get = get_filled;
    apart.ops.upload = upload;
    apart.ops.host_reaches = host_reaches;
    apart.fail_at = fail_at;
    atomic_store(&apart.uploads, 0);
    device->ops = &apart.ops;
    return device;
}

static void device_end(struct device *device)
{
    device->ops = apart.real;
    device_destroy(device);
}

/* ---- The same bytes -------------------------------------------------------------------------- */

static struct weights_share share_of(const struct staged_case *c, const struct checkpoint *of)
{
    struct weights_share share = {.types = c->types, .spare_count = c->spare_count};
    struct model_shape shape = weights_shape(checkpoint_config(of));
    struct error err;
    cr_assert_eq(plan_layouts_parse(&share.layouts, c->plan, 0, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(plan_layouts_check(&share.layouts, &shape, &err), STATUS_OK, "%s", err.message);
    share.rank = share.layouts.of[PHASE_PREFILL].rank_count - 1;
    return share;
}

/* All that a rank has, spares included; the slots' memory begins alike. */
static char *bytes_of(const struct weights *weights)
{
    const struct expert_slots *slots = &weights->experts;
    uint64_t slot_bytes = expert_slots_slot_bytes(slots, PHASE_PREFILL), at = 0;
    char *out = memory_alloc((size_t)(weights->resident_bytes + slot_bytes), 1);
    memcpy(out, weights->slab, (size_t)weights->resident_bytes);
    at += weights->resident_bytes;
    memcpy(out + at, expert_slots_now(slots, 0), (size_t)slot_bytes);
    return out;
}

static char *load(uint64_t *bytes, struct device *device, const struct checkpoint *checkpoint,
                  const struct weights_share *share)
{
    struct weights_progress silent = {0};
    struct weights weights;
    struct error err;
    cr_assert_eq(weights_load(&weights, device, checkpoint, share, &silent, &err), STATUS_OK, "%s",
                 err.message);
    *bytes = weights.resident_bytes + expert_slots_slot_bytes(&weights.experts, PHASE_PREFILL);
    char *out = bytes_of(&weights);
    weights_deinit(&weights);
    return out;
}

Test(staged_weights, are_those_packed_in_place)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        char dir[] = "/tmp/phasor-test-XXXXXX";
        uint64_t bytes[2];
        char *found[2];
        struct checkpoint *checkpoint = checkpoint_make(dir, cases[i].expert_dim);
        struct weights_share share = share_of(&cases[i], checkpoint);
        for (int staged = 0; staged < 2; staged++) {
            struct device *device = device_new(!staged, 0);
            found[staged] = load(&bytes[staged], device, checkpoint, &share);
            int uploads = atomic_load(&apart.uploads);
            cr_assert(staged ? uploads > 30 : uploads == 0, "case %zu: %d uploads", i, uploads);
            device_end(device);
        }
        cr_assert_eq(bytes[0], bytes[1]);
        for (uint64_t b = 0; b < bytes[0]; b++)
            cr_assert_eq(found[0][b], found[1][b], "case %zu, byte %llu", i, (unsigned long long)b);
        memory_free(found[0]);
        memory_free(found[1]);
        checkpoint_remove(checkpoint, dir);
    }
}

/* ---- Failures -------------------------------------------------------------------------------- */

Test(staged_weights, an_upload_that_fails_leaves_nothing)
{
    struct checkpoint *checkpoint = test_checkpoint_open("mixtral");
    struct weights_share share = share_of(&cases[1], checkpoint);
    uint64_t live = memory_counters_get().live_count;
    enum status status = STATUS_IO;
    int n;
    for (n = 1; status != STATUS_OK; n++) {
        struct device *device = device_new(false, n);
        struct weights_progress silent = {0};
        struct weights weights;
        struct error err;
        status = weights_load(&weights, device, checkpoint, &share, &silent, &err);
        cr_assert(status == STATUS_OK || strcmp(err.message, "the device has failed") == 0, "%s",
                  err.message);
        if (status == STATUS_OK)
            weights_deinit(&weights);
        device_end(device);
        cr_assert_eq(memory_counters_get().live_count, live, "upload %d", n);
    }
    cr_assert_gt(n, 40);
    checkpoint_close(checkpoint);
}
