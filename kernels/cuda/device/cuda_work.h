/* What launches on a stream do, as it was put there: so that it can be put off, done again, and
 * held against what was done before. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_WORK_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_WORK_H

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/device/cuda_arrays.h"

struct cuda_stream;

struct cuda_launch_kind {
    enum status (*launch)(struct cuda_stream *cuda, const void *op, struct error *err);
    size_t bytes;                                                 /* of the operation */
    void (*array)(struct cuda_array *out, const void *operation); /* that it names; NULL: none */
    bool is_stage;                                                /* a change of the stage */
};

/* The argument of a command of COMMAND_LAUNCH. Bytes of the operation that mean nothing are 0. */
struct cuda_launch_once {
    const struct cuda_launch_kind *kind;
    _Alignas(16) unsigned char op[STREAM_CALL_BYTES];
};

/* An array, once where several launches name it. */
struct cuda_named_array {
    struct cuda_array array;
    struct cuda_array_facts facts;
};

struct cuda_work {
    struct cuda_launch_once *launches; /* [launch_count] */
    struct cuda_named_array *arrays;   /* [array_count] */
    int launch_count, array_count;
};

/* Of work that is zero: room for so many launches. What a failure leaves, deinit frees. */
enum status cuda_work_init(struct cuda_work *work, int launch_max, struct error *err) MUST_CHECK;
void cuda_work_deinit(struct cuda_work *work);

void cuda_work_clear(struct cuda_work *work);
void cuda_work_add(struct cuda_work *work, const struct cuda_launch_once *launch);

/* Of work that is zero. */
enum status cuda_work_copy(struct cuda_work *out, const struct cuda_work *of,
                           struct error *err) MUST_CHECK;

/* Whether the one does what the other does, but for what stands in memory and in the arrays'
 * copies. */
bool cuda_work_is_same(const struct cuda_work *work, const struct cuda_work *other);

/* How many of its launches change the stage, and how many read weights by groups. */
struct cuda_work_sums {
    int mark_count, read_count;
};
struct cuda_work_sums cuda_work_sum(const struct cuda_work *work);

#endif
