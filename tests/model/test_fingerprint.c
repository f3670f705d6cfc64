/* What tells one model from another: a value of any of its matrices. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <unistd.h>

#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model_tools.h"

TestSuite(fingerprint, .timeout = 60);

static struct fingerprint weights_of(const struct checkpoint *checkpoint)
{
    struct fingerprint found;
    struct error err;
    cr_assert_eq(fingerprint_weights(&found, checkpoint, &err), STATUS_OK, "%s", err.message);
    return found;
}

static bool is_same(struct fingerprint a, struct fingerprint b)
{
    return a.high == b.high && a.low == b.low;
}

static void byte_flip(int fd, uint64_t at)
{
    unsigned char byte;
    cr_assert_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    cr_assert_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
}

/* Of all tensors, and of all experts that are fused into one, a value at a time. */
static void check_each(const struct checkpoint *checkpoint, int fd)
{
    const struct fingerprint before = weights_of(checkpoint);
    int64_t parts = 0;
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor_info *tensor = checkpoint_tensor(checkpoint, i);
        uint64_t count = tensor->rank == 3 ? (uint64_t)tensor->shape[0] : 1;
        uint64_t bytes = tensor->bytes / count;
        for (uint64_t part = 0; part < count; part++, parts++) {
            uint64_t at = tensor->offset + part * bytes + bytes / 2;
            byte_flip(fd, at);
            cr_assert_not(is_same(before, weights_of(checkpoint)), "%s", tensor->name);
            byte_flip(fd, at);
        }
    }
    cr_assert_gt(parts, 64);
    cr_assert(is_same(before, weights_of(checkpoint)));
}

/* Training of a few may leave all others as they were: attention's alone, or some experts'. */
Test(fingerprint, a_value_of_any_matrix_tells)
{
    for (int fused = 0; fused < 2; fused++) {
        struct error err;
        struct checkpoint *checkpoint;
        char *dir = temp_dir_make();
        checkpoint_make(dir, (struct synth_params){.preset = "tiny-qwen3moe",
                                                   .layer_count = 8,
                                                   .seed = 1,
                                                   .dtype = DTYPE_BF16,
                                                   .fused = fused == 1});
        int fd = open(path_of(dir, "model.safetensors"), O_RDWR | O_CLOEXEC);
        cr_assert_geq(fd, 0);
        cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
        check_each(checkpoint, fd);
        checkpoint_close(checkpoint);
        close(fd);
        temp_dir_remove(dir);
    }
}
