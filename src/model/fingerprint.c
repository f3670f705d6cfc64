#include "model/fingerprint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/checkpoint_parts.h"

/* Larger than any configuration or tokenizer that can be loaded. */
#define FILE_BYTES_MAX (256u << 20)

/* Of each matrix: who tunes a model may leave all but a few of them as they were. */
#define SAMPLE_BYTES 1024

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

static enum status add_sample(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                              const struct tensor_info *tensor, uint64_t first, uint64_t bytes,
                              struct error *err)
{
    char sample[SAMPLE_BYTES];
    uint64_t taken = bytes < sizeof sample ? bytes : sizeof sample;
    TRY(checkpoint_read(checkpoint, tensor, first + (bytes - taken) / 2, sample, taken, err));
    XXH3_128bits_update(hash, sample, (size_t)taken);
    return STATUS_OK;
}

/* The middle of the tensor; of experts that are fused into one the middle of each. */
static enum status add_samples(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                               const struct tensor_info *tensor, struct error *err)
{
    bool is_fused = tensor->rank == 3 && tensor->shape[0] <= MODEL_EXPERTS_MAX &&
                    tensor->bytes >= (uint64_t)tensor->shape[0] * SAMPLE_BYTES;
    uint64_t count = is_fused && tensor->bytes > 0 ? (uint64_t)tensor->shape[0] : 1;
    uint64_t bytes = tensor->bytes / count;
    for (uint64_t i = 0; i < count; i++)
        TRY(add_sample(hash, checkpoint, tensor, i * bytes, bytes, err));
    return STATUS_OK;
}

static enum status add_weights(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                               struct error *err)
{
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor_info *tensor = checkpoint_tensor(checkpoint, i);
        add_description(hash, tensor);
        TRY(add_samples(hash, checkpoint, tensor, err));
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

static enum status add_files(XXH3_state_t *hash, const struct checkpoint *checkpoint,
                             struct error *err)
{
    TRY(add_weights(hash, checkpoint, err));
    for (int64_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = &checkpoint->shards[i];
        struct stat about;
        if (fstat(shard->fd, &about) != 0)
            return error_set_errno(err, errno, "cannot look at %s", shard->path);
        const int64_t numbers[] = {(int64_t)about.st_ino, (int64_t)about.st_size,
                                   (int64_t)about.st_mtim.tv_sec, (int64_t)about.st_mtim.tv_nsec};
        XXH3_128bits_update(hash, numbers, sizeof numbers);
    }
    return STATUS_OK;
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

enum status fingerprint_files(struct fingerprint *out, const struct checkpoint *checkpoint,
                              struct error *err)
{
    return digest_of(out, checkpoint, add_files, err);
}
