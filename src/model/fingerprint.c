#include "model/fingerprint.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/checkpoint.h"

/* Larger than any configuration or tokenizer that can be loaded. */
#define FILE_BYTES_MAX (256u << 20)

/* Of a fine-tuned model hardly a tensor is as it was. */
#define SAMPLE_TENSORS 64
#define SAMPLE_BYTES   1024

void fingerprint_format(char out[FINGERPRINT_DIGITS + 1], const struct fingerprint *fingerprint)
{
    snprintf(out, FINGERPRINT_DIGITS + 1, "%016llx%016llx", (unsigned long long)fingerprint->high,
             (unsigned long long)fingerprint->low);
}

static enum status add_file(XXH3_state_t *hash, const char *dir, const char *name,
                            struct error *err)
{
    struct text path = {0};
    char *bytes;
    size_t length = 0;
    text_append_format(&path, "%s/%s", dir, name);
    enum status status = text_check(&path, "the name of a file", err);
    if (status == STATUS_OK)
        status = file_read_whole(&bytes, &length, path.bytes, FILE_BYTES_MAX, err);
    if (status == STATUS_OK) {
        XXH3_128bits_update(hash, bytes, length);
        memory_free(bytes);
    } else if (status == STATUS_NOT_FOUND) {
        status = STATUS_OK; /* as an empty one */
    }
    XXH3_128bits_update(hash, &length, sizeof length);
    text_deinit(&path);
    return status;
}

static void add_description(XXH3_state_t *hash, const struct tensor_info *tensor)
{
    XXH3_128bits_update(hash, tensor->name, strlen(tensor->name) + 1);
    XXH3_128bits_update(hash, tensor->dtype_text, strlen(tensor->dtype_text) + 1);
    XXH3_128bits_update(hash, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
}

/* The middle of tensors that lie evenly over the checkpoint. */
static enum status add_sample(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                              const struct tensor_info *tensor, struct error *err)
{
    char sample[SAMPLE_BYTES];
    uint64_t bytes = tensor->bytes < sizeof sample ? tensor->bytes : sizeof sample;
    TRY(checkpoint_read(checkpoint, tensor, (tensor->bytes - bytes) / 2, sample, bytes, err));
    XXH3_128bits_update(hash, sample, (size_t)bytes);
    return STATUS_OK;
}

static enum status add_weights(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                               struct error *err)
{
    int64_t count = checkpoint_tensor_count(checkpoint);
    int64_t step = 1 + (count - 1) / SAMPLE_TENSORS;
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_info *tensor = checkpoint_tensor(checkpoint, i);
        add_description(hash, tensor);
        if (i % step == 0)
            TRY(add_sample(hash, checkpoint, tensor, err));
    }
    return STATUS_OK;
}

static enum status add_all(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                           struct error *err)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(add_file(hash, checkpoint_dir(checkpoint), names[i], err));
    return add_weights(hash, checkpoint, err);
}

static enum status digest_of(struct fingerprint *out, const struct checkpoint *checkpoint,
                             enum status (*add)(XXH3_state_t *, const struct checkpoint *,
                                                struct error *),
                             struct error *err)
{
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL || XXH3_128bits_reset(hash) != XXH_OK) {
        XXH3_freeState(hash);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    enum status status = add(hash, checkpoint, err);
    XXH128_hash_t digest = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    if (status == STATUS_OK)
        *out = (struct fingerprint){.high = digest.high64, .low = digest.low64};
    return status;
}

enum status fingerprint_checkpoint(struct fingerprint *out, const struct checkpoint *checkpoint,
                                   struct error *err)
{
    return digest_of(out, checkpoint, add_all, err);
}

enum status fingerprint_weights(struct fingerprint *out, const struct checkpoint *checkpoint,
                                struct error *err)
{
    return digest_of(out, checkpoint, add_weights, err);
}
