/* What upload takes between passes, beside what its parts take alone; see bench/README.md. On the
 * CPU the backup comes from the disk; to GPUs from locked memory, beside a copy from pinned memory.
 *
 * Inside the timed window of an upload: a whole transition_run to decode, of all layers, by all
 * ranks: reading, checksums, copies, dequantization, swaps. Outside: making the transition,
 * locking the backup or dropping it from the page cache, going back (nothing is read for that:
 * prefill's slots are taken as they are). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system.h"
#include "engine/engine_devices.h"
#include "exec/weight_slices.h"
#include "head.h"
#include "io/read_queue.h"
#include "layout/traffic.h"
#include "transition/transition.h"

#define ROUNDS_MAX 99
#define READ_BYTES ((size_t)4 << 20) /* of the reads that find the disk's rate, and so many */
#define READ_DEPTH 4
#define COPY_BYTES ((size_t)32 << 20) /* of pinned memory, copied again and again */

static struct checkpoint *checkpoint;
static struct backup *backup;
static struct plan_layouts layouts;
static struct model_shape shape;
static struct engine_devices devices;
static struct box *box;
static struct expert_slots slots[COMM_RANKS_MAX];
static struct transition *transition;

static void fail(const char *what)
{
    fprintf(stderr, "bench_upload: %s\n", what);
    exit(1);
}

static void check(enum status status, const struct error *err)
{
    if (status != STATUS_OK)
        fail(err->message);
}

/* ---- The model, as far as it is needed: slots that nobody fills --------------------------------
 */

static void note(void *context, enum log_level level, const char *message)
{
    (void)context;
    if (level != LOG_DEBUG)
        printf("# %s\n", message);
}

static void slots_open(void)
{
    struct weights_share share = {.layouts = layouts, .types = {DTYPE_BF16, DTYPE_BF16}};
    bool has_experts[MODEL_LAYERS_MAX];
    struct expert_slots_params params;
    struct error err;
    if (layouts.decode_is_packed)
        share.packed = backup_expert_type(&backup_form(backup)->settings, shape.hidden_dim);
    for (share.rank = 0; share.rank < box_rank_count(box); share.rank++) {
        weight_slices_slots(&params, &shape, has_experts, checkpoint_config(checkpoint), &share);
        check(expert_slots_init(&slots[share.rank], box_device(box, share.rank), &params, &err),
              &err);
    }
}

/* To CPUs from the disk, whatever would fit elsewhere; to GPUs from memory. */
static void transition_open(void)
{
    struct expert_slots *of[COMM_RANKS_MAX];
    struct error err;
    uint64_t memory = devices.cuda ? UINT64_MAX / 2 : 0;
    for (int r = 0; r < box_rank_count(box); r++)
        of[r] = &slots[r];
    check(transition_create(&transition,
                            &(struct transition_params){.box = box,
                                                        .checkpoint = checkpoint,
                                                        .backup = backup,
                                                        .shape = &shape,
                                                        .layouts = &layouts,
                                                        .slots = of,
                                                        .way = WAY_UPLOAD,
                                                        .memory_available = memory,
                                                        .memory_lockable = memory,
                                                        .log = {note, NULL}},
                            &err),
          &err);
}

static void all_open(const char *model, const char *path, const char *plan)
{
    struct error err;
    check(checkpoint_open(&checkpoint, model, &err), &err);
    check(backup_open(&backup, path, &err), &err);
    check(plan_layouts_parse(&layouts, plan, devices.rank_count, &err), &err);
    shape = weights_shape(checkpoint_config(checkpoint));
    check(plan_layouts_check(&layouts, &shape, &err), &err);
    check(box_open(&box,
                   &(struct box_params){.rank_count = devices.rank_count,
                                        .gpus = devices.cuda ? devices.gpus : NULL,
                                        .links = engine_devices_links(&devices),
                                        .log = {note, NULL},
                                        .tag_names = traffic_names,
                                        .tag_count = TRAFFIC_KIND_COUNT},
                   &err),
          &err);
    slots_open();
    transition_open();
}

/* Prefill's layout again, with anything in it. */
static void go_back(void)
{
    for (int64_t layer = 0; layer < shape.layer_count; layer++) {
        for (int r = 0; r < box_rank_count(box) && expert_slots_has(&slots[r], layer); r++) {
            if (!expert_slots_reserve(&slots[r], layer, PHASE_PREFILL))
                fail("no spare slot");
            expert_slots_swap(&slots[r], layer, PHASE_PREFILL);
            slots[r].layers[layer].is_int4 = false;
        }
    }
}

static double copy_began[COMM_RANKS_MAX], copy_ended[COMM_RANKS_MAX];

/* ---- What is measured ------------------------------------------------------------------------ */

static double timed_run(enum status (*work)(void *context, int rank, struct error *err))
{
    struct error err;
    double start = system_seconds();
    check(box_run(box, work, NULL, &err), &err);
    return system_seconds() - start;
}

static uint64_t data_bytes(void)
{
    return backup_file_bytes(backup) - backup_granule_offset(backup, 0);
}

static void drop_backup(void)
{
    fdatasync(backup_fd(backup));
    posix_fadvise(backup_fd(backup), 0, 0, POSIX_FADV_DONTNEED);
}

/* A rank's share of the file, in order and as fast as the disk gives it. */
static enum status read_share(void *context, int rank, struct error *err)
{
    (void)context;
    struct read_queue *queue;
    struct read_queue_params params = {.backend = READ_URING,
                                       .fd = backup_fd(backup),
                                       .path = backup_path(backup),
                                       .buffer_count = READ_DEPTH,
                                       .buffer_bytes = READ_BYTES,
                                       .avoids_cache = true,
                                       .thread_count = READ_DEPTH,
                                       .patience_seconds = 60};
    uint64_t blocks = backup_file_bytes(backup) / READ_BYTES, ranks = (uint64_t)box_rank_count(box);
    uint64_t next = blocks * (uint64_t)rank / ranks, end = blocks * ((uint64_t)rank + 1) / ranks;
    enum status status = read_queue_create(&queue, &params, err);
    if (status == STATUS_UNSUPPORTED) {
        params.backend = READ_THREADS;
        status = read_queue_create(&queue, &params, err);
    }
    TRY(status);
    int flying = 0;
    for (; flying < READ_DEPTH && next < end; flying++, next++)
        read_queue_submit(queue, next, flying, next * READ_BYTES, READ_BYTES);
    while (flying > 0) {
        struct read_done done;
        TRY(read_queue_wait(queue, &done, 60, err));
        if (next < end) {
            read_queue_submit(queue, next, done.buffer, next * READ_BYTES, READ_BYTES);
            next++;
        } else {
            flying--;
        }
    }
    read_queue_destroy(queue);
    return STATUS_OK;
}

/* The granules that a rank has of a layer, dequantized to where they belong in its spare slot; each
 * from the same memory, which stays in a cache. */
static enum status dequantize_share(void *context, int rank, struct error *err)
{
    (void)context;
    struct device *device = box_device(box, rank);
    const struct backup_form *form = backup_form(backup);
    const struct expert_form *to = &slots[rank].forms[PHASE_DECODE];
    int64_t blocks = form->granule_width / PACK_BLOCK;
    int64_t end = to->slice.first_expert + to->slice.expert_count;
    void *content;
    TRY(device->ops->memory_get(device, &content, (size_t)form->content_bytes, "a bench", err));
    device->ops->fill(device->stream, &(struct op_fill){content, form->content_bytes, 0x55});
    for (int64_t layer = 0; layer < form->moe_layer_count; layer++) {
        for (int64_t e = to->slice.first_expert; e < end; e++) {
            for (int64_t b = 0; b < to->slice.blocks.count; b += blocks) {
                int64_t block = to->slice.blocks.first + b;
                for (int m = 0; m < BACKUP_MATRICES; m++) {
                    struct op_dequantize op = {
                        .out = (char *)slots[rank].spares[0] + expert_form_offset(to, m, e, block),
                        .dtype = to->type.dtype,
                        .in = backup_granule_matrix(form, content, (enum backup_matrix)m)};
                    device->ops->dequantize(device->stream, &op);
                }
            }
        }
    }
    enum status status = device->ops->synchronize(device->stream, err);
    device->ops->memory_free(device, content);
    return status;
}

/* As many bytes as a rank's share of the file, from pinned memory of the host to the device. */
static enum status copy_share(void *context, int rank, struct error *err)
{
    (void)context;
    struct device *device = box_device(box, rank);
    uint64_t left = data_bytes() / (uint64_t)box_rank_count(box);
    void *from, *to;
    TRY(device->ops->host_memory_get(device, &from, COPY_BYTES, "a bench", err));
    memset(from, 0x55, COPY_BYTES);
    TRY(device->ops->memory_get(device, &to, COPY_BYTES, "a bench", err));
    copy_began[rank] = system_seconds();
    for (uint64_t bytes; left > 0; left -= bytes) {
        bytes = left < COPY_BYTES ? left : COPY_BYTES;
        device->ops->copy(device->stream,
                          &(struct op_copy){.out = to, .in = from, .bytes = (int64_t)bytes});
    }
    enum status status = device->ops->synchronize(device->stream, err);
    copy_ended[rank] = system_seconds();
    device->ops->memory_free(device, to);
    device->ops->host_memory_free(device, from);
    return status;
}

/* From the first rank's beginning to the last one's end, without pinning. */
static double timed_copy(void)
{
    struct error err;
    check(box_run(box, copy_share, NULL, &err), &err);
    double began = copy_began[0], ended = copy_ended[0];
    for (int r = 1; r < box_rank_count(box); r++) {
        began = copy_began[r] < began ? copy_began[r] : began;
        ended = copy_ended[r] > ended ? copy_ended[r] : ended;
    }
    return ended - began;
}

static double timed_upload(void)
{
    struct error err;
    if (!devices.cuda)
        drop_backup();
    double start = system_seconds();
    check(transition_run(transition, PHASE_DECODE, &err), &err);
    double seconds = system_seconds() - start;
    go_back();
    return seconds;
}

/* ---- Report ---------------------------------------------------------------------------------- */

/* Bringing: reading from the disk, or copying from pinned memory. */
enum column { COLUMN_BRING, COLUMN_DEQUANTIZE, COLUMN_UPLOAD, COLUMN_RATIO, COLUMN_COUNT };
static const char *const columns[] = {"reading or copying alone", "dequantizing alone", "upload",
                                      "upload / the longer of the two"};
static double results[COLUMN_COUNT][ROUNDS_MAX];

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(enum column column, int rounds)
{
    double *of = results[column];
    qsort(of, (size_t)rounds, sizeof *of, by_value);
    double middle = of[rounds / 2];
    if (column == COLUMN_RATIO)
        printf("%-32s %8.3f    (%.3f to %.3f)\n", columns[column], middle, of[0], of[rounds - 1]);
    else
        printf("%-32s %8.3f s  (%.3f to %.3f) %7.2f GB/s of the backup\n", columns[column], middle,
               of[0], of[rounds - 1], (double)data_bytes() / middle / 1e9);
}

static void round_run(int r)
{
    if (!devices.cuda)
        drop_backup();
    double bring = devices.cuda ? timed_copy() : timed_run(read_share);
    double dequantize = layouts.decode_is_packed ? 0 : timed_run(dequantize_share);
    double upload = timed_upload(), longer = bring > dequantize ? bring : dequantize;
    results[COLUMN_BRING][r] = bring;
    results[COLUMN_DEQUANTIZE][r] = dequantize;
    results[COLUMN_UPLOAD][r] = upload;
    results[COLUMN_RATIO][r] = upload / longer;
}

int main(int argc, char **argv)
{
    const char *plan = argc > 3 ? argv[3] : "dp2|ep2>tp2";
    const char *of = argc > 4 ? argv[4] : "cpu:2";
    int rounds = argc > 5 ? atoi(argv[5]) : 7;
    struct error err;
    if (argc < 3 || rounds < 1 || rounds > ROUNDS_MAX)
        fail("usage: bench_upload MODEL BACKUP [plan] [devices] [rounds]");
    check(engine_devices_parse(&devices, of, &err), &err);
    bench_print_head(argc, argv);
    all_open(argv[1], argv[2], plan);
    timed_upload(); /* memory that nobody has written to has no pages */
    for (int r = 0; r < rounds; r++) {
        round_run(r);
        fprintf(stderr, "round %d of %d\n", r + 1, rounds);
    }
    printf("# %s on %s, %.3f GB of granules of %lld KiB\n"
           "# clock: CLOCK_MONOTONIC; median (least to most) of %d rounds\n",
           plan, of, (double)data_bytes() / 1e9, (long long)backup_granule_bytes_max(backup) / 1024,
           rounds);
    for (int column = 0; column < COLUMN_COUNT; column++) {
        if (column != COLUMN_DEQUANTIZE || !layouts.decode_is_packed)
            report((enum column)column, rounds);
    }
    transition_destroy(transition);
    for (int r = 0; r < devices.rank_count; r++)
        expert_slots_deinit(&slots[r]);
    box_close(box);
    backup_close(backup);
    checkpoint_close(checkpoint);
    return 0;
}
