#include "exec/weights_image.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/memory.h"

enum status weights_image_name(struct weights_image *out, const struct fingerprint *files,
                               const struct weights_share *share, struct error *err)
{
    const struct layout *layout = &share->layouts.of[PHASE_PREFILL];
    char digits[FINGERPRINT_DIGITS + 1], text[LAYOUT_TEXT_BYTES];
    fingerprint_format(digits, files);
    layout_format(text, layout);
    int length = snprintf(out->key, sizeof out->key,
                          "weights %s, rank %d of %d of %s, matrices %s, experts %s", digits,
                          share->rank, layout->rank_count, text, dtype_name(share->types.matrices),
                          dtype_name(share->types.experts));
    ASSERT(length > 0 && length < (int)sizeof out->key);
    return packed_image_path(&out->path, out->key, err);
}

/* All that is not an expert, then the experts of each layer. `parts` has room for all layers and
 * one. */
static size_t parts_of(const struct weights *weights, struct packed_part *parts)
{
    const struct expert_slots *experts = &weights->experts;
    uint64_t bytes = (uint64_t)expert_form_bytes(&experts->forms[PHASE_PREFILL]);
    size_t count = 0;
    parts[count++] = (struct packed_part){weights->slab, weights->resident_bytes};
    for (int64_t i = 0; i < experts->layer_count; i++) {
        ASSERT(experts->layers[i].phase == PHASE_PREFILL);
        if (expert_slots_has(experts, i) && bytes > 0)
            parts[count++] = (struct packed_part){expert_slots_now(experts, i), bytes};
    }
    return count;
}

static enum status parts_get(struct packed_part **out, size_t *count, const struct weights *weights,
                             struct error *err)
{
    TRY(memory_get((void **)out, (size_t)weights->experts.layer_count + 1, sizeof **out,
                   "the parts of packed weights", err));
    *count = parts_of(weights, *out);
    return STATUS_OK;
}

uint64_t weights_image_bytes(const struct weights *weights)
{
    const struct expert_slots *experts = &weights->experts;
    uint64_t bytes = weights->resident_bytes;
    for (int64_t i = 0; i < experts->layer_count; i++) {
        if (expert_slots_has(experts, i))
            bytes += (uint64_t)expert_form_bytes(&experts->forms[PHASE_PREFILL]);
    }
    return bytes;
}

struct image_loading {
    const struct weights_progress *progress;
    uint64_t bytes, bytes_on_disk;
    atomic_uint_fast64_t done; /* of `bytes` */
    atomic_bool is_ended;      /* by the answer to a report */
};

static enum status image_report(void *context, uint64_t bytes, struct error *err)
{
    struct image_loading *loading = context;
    const struct weights_progress *progress = loading->progress;
    uint64_t done = atomic_fetch_add(&loading->done, bytes) + bytes;
    double share = (double)done / (double)loading->bytes;
    if (progress->report == NULL)
        return STATUS_OK;
    enum status status = progress->report(progress->context,
                                          (uint64_t)((double)loading->bytes_on_disk * share), err);
    if (status != STATUS_OK)
        atomic_store(&loading->is_ended, true);
    return status;
}

/* Whether the load goes on without: what was found is nothing of the image's own, or fatal. */
static bool is_about_image(const struct image_loading *loading, enum status status)
{
    return !atomic_load(&loading->is_ended) &&
           (status == STATUS_FORMAT || status == STATUS_IO || status == STATUS_LIMIT);
}

enum status weights_image_map(struct weights *weights, const struct weights_image *image,
                              uint64_t bytes_on_disk, const struct weights_progress *progress,
                              struct error *err)
{
    struct image_loading loading = {.progress = progress,
                                    .bytes = weights_image_bytes(weights),
                                    .bytes_on_disk = bytes_on_disk};
    const struct packed_read_progress report = {.report = image_report, .context = &loading};
    struct packed_part *parts;
    struct packed_image packed = {.path = image->path, .key = image->key};
    struct error reason;
    TRY(parts_get(&parts, &packed.part_count, weights, err));
    packed.parts = parts;
    enum status status = packed_image_map(&packed, weights->device, &report, &reason);
    memory_free(parts);
    weights->is_mapped = status == STATUS_OK;
    if (is_about_image(&loading, status)) {
        if (progress->image_refused != NULL)
            progress->image_refused(progress->context, &reason);
        return STATUS_OK;
    }
    if (status == STATUS_OK || (status == STATUS_NOT_FOUND && !atomic_load(&loading.is_ended)))
        return STATUS_OK;
    if (err != NULL)
        *err = reason;
    return status;
}

enum status weights_image_write(const struct weights *weights, const struct weights_image *image,
                                const struct packed_read_progress *report, struct error *err)
{
    struct packed_part *parts;
    struct packed_image packed = {.path = image->path, .key = image->key};
    TRY(parts_get(&parts, &packed.part_count, weights, err));
    packed.parts = parts;
    enum status status = packed_image_write(&packed, report, err);
    memory_free(parts);
    return status;
}
