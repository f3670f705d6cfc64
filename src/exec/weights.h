/* The weights of a model on one device, packed and ready to run. */
#ifndef PHASOR_EXEC_WEIGHTS_H
#define PHASOR_EXEC_WEIGHTS_H

#include <stdint.h>

#include "device/device.h"
#include "model/checkpoint.h"

/* Vectors are f32, padded with zeros to a multiple of 16; matrices are packed (layout/packing.h).
 * What a model does not have is NULL (matrix.data, vectors). */
struct layer_weights {
    const float *input_norm; /* [hidden_dim] */
    struct matrix q;         /* [head_count x head_dim][hidden_dim] */
    struct matrix k;         /* [kv_head_count x head_dim][hidden_dim] */
    struct matrix v;         /* [kv_head_count x head_dim][hidden_dim] */
    struct matrix o;         /* [hidden_dim][head_count x head_dim] */
    const float *q_bias, *k_bias, *v_bias, *o_bias;
    const float *q_norm, *k_norm; /* [head_dim] */

    const float *ffn_norm;       /* [hidden_dim] */
    struct matrix router;        /* [expert_count][hidden_dim]; f32 whatever the weights are */
    struct ffn_weights *experts; /* [expert_count], width expert_dim; host memory */
    struct ffn_weights shared;   /* width shared_expert_dim */
    const float *shared_sigmoid; /* [hidden_dim] */
    struct ffn_weights dense;    /* width dense_dim: a layer without experts */
};

struct weights {
    enum dtype dtype;             /* of the matrices */
    struct matrix embedding;      /* [vocab][hidden_dim] */
    struct matrix head;           /* [vocab][hidden_dim]; the embedding's when tied */
    const float *final_norm;      /* [hidden_dim] */
    struct layer_weights *layers; /* [layer_count] */

    uint64_t resident_bytes; /* everything but routed experts */
    uint64_t expert_bytes;   /* routed experts, all layers */

    /* private */
    struct device *device;
    struct ffn_weights *all_experts;
    void **slabs; /* [1 + layer_count]: resident weights, then one slot of experts per layer */
    int64_t slab_count;
};

struct weights_progress {
    void (*report)(void *context, uint64_t bytes_done, uint64_t bytes_total); /* or NULL */
    void *context;
};

/* Reads and packs every weight, with all of the device's host workers, through staging of 4 MiB
 * each; there is never a second full copy. `dtype` is DTYPE_F32 or DTYPE_BF16. The checkpoint is
 * needed only during the call. The progress callback runs on the calling thread.
 * On failure nothing is kept. */
enum status weights_load(struct weights *out, struct device *device,
                         const struct checkpoint *checkpoint, enum dtype dtype,
                         const struct weights_progress *progress, struct error *err) MUST_CHECK;
void weights_deinit(struct weights *weights);

#endif
