/* The weights that one rank holds, packed and ready to run: its slices of a layout. */
#ifndef PHASOR_EXEC_WEIGHTS_H
#define PHASOR_EXEC_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "layout/layout.h"
#include "model/checkpoint.h"
#include "store/expert_slots.h"

/* Vectors are f32, padded with zeros to a multiple of 16; matrices are packed (layout/packing.h).
 * Dimensions with "own" are this rank's slice. What a model does not have, or a rank does not hold,
 * is NULL (matrix.data, vectors). */
struct layer_weights {
    const float *input_norm; /* [hidden_dim] */
    struct matrix q;         /* [own heads x head_dim][hidden_dim] */
    struct matrix k;         /* [own kv heads x head_dim][hidden_dim] */
    struct matrix v;         /* [own kv heads x head_dim][hidden_dim] */
    struct matrix qkv;       /* all three, each padded to 16 rows: they lie one behind another */
    struct matrix o;         /* [hidden_dim][own heads x head_dim] */
    const float *q_bias, *k_bias, *v_bias; /* as the matrices: q_bias begins that of qkv */
    const float *o_bias;          /* on the first rank of an attention group: it is added once */
    const float *q_norm, *k_norm; /* [head_dim] */

    const float *ffn_norm;       /* [hidden_dim] */
    struct matrix router;        /* [expert_count][hidden_dim]; f32 whatever the weights are */
    struct ffn_weights shared;   /* own width of shared_expert_dim */
    const float *shared_sigmoid; /* [hidden_dim] */
    struct ffn_weights dense;    /* own width of dense_dim: a layer without experts */
};

/* Number types in memory. */
struct weight_types {
    enum dtype matrices; /* DTYPE_F32 or DTYPE_BF16; the router is f32 in any case */
    enum dtype experts;  /* of routed experts: the same, or DTYPE_INT4 in groups of INT4_GROUP */
};

struct weights_image;

/* What a rank is to hold. Legal for the model (plan_layouts_check). */
struct weights_share {
    struct plan_layouts layouts; /* experts are loaded as they lie in prefill */
    struct expert_type packed;   /* layouts.decode_is_packed: the backup's, which decode has */
    bool keeps_both;             /* memory for the experts of both layouts; see expert_slots */
    int64_t spare_count;         /* else; see expert_slots */
    int rank;
    struct weight_types types;
    const struct weights_image *image; /* exec/weights_image.h: mapped where it is there and whole,
                                        * of a device where packed_image_is_possible; NULL: none */
};

struct weights {
    struct weight_types types;
    struct range vocab;           /* rows of embedding and head that are here; may be none */
    struct matrix embedding;      /* [own vocab][hidden_dim] */
    struct matrix head;           /* [own vocab][hidden_dim]; the embedding's when tied */
    const float *final_norm;      /* [hidden_dim] */
    struct layer_weights *layers; /* [layer_count] */
    struct expert_slots experts;  /* routed experts, whose layout may change */

    uint64_t resident_bytes; /* everything but routed experts */
    uint64_t expert_bytes;   /* routed experts: the slots of all layers, and the spare */
    uint64_t bytes_read;     /* from the checkpoint's files */
    bool is_mapped;          /* nothing of it: all is the image */

    /* private */
    struct device *device;
    void *slab; /* resident weights */
};

/* The sizes of a config that a layout depends on. */
struct model_shape weights_shape(const struct model_config *config);

/* Bytes of a rank's weights in the memory of its device, exactly as weights_load takes them. */
struct weights_bytes {
    uint64_t by_weight[WEIGHT_KIND_COUNT];
    uint64_t resident, experts; /* the sums of the above, each weight rounded up to 64; of experts
                                 * all slots, where there is a second layout */
};
void weights_bytes(struct weights_bytes *out, const struct model_config *config,
                   const struct weights_share *share);

/* `experts` of the above alone. */
uint64_t weights_expert_bytes(const struct model_config *config, const struct weights_share *share);

/* The routed experts' numbers as slots and move lists have them. */
struct expert_type weights_expert_type(const struct weight_types *types);

/* Bytes of the checkpoint's files that weights_load will read for a rank. */
enum status weights_bytes_on_disk(uint64_t *out, const struct checkpoint *checkpoint,
                                  const struct layout *layout, int rank,
                                  struct error *err) MUST_CHECK;

struct weights_progress {
    /* Bytes that have come for this rank, of those that weights_bytes_on_disk says; from threads of
     * the device, several at a time; of an image the same part of them as has come of it. A
     * failure ends the loading. Or NULL. */
    enum status (*report)(void *context, uint64_t bytes_done, struct error *err);
    void *context;
    /* Why an image that is there was of no use, and the weights are read; or NULL. */
    void (*image_refused)(void *context, const struct error *reason);
};

/* Reads and packs the rank's slices and nothing else, with all of the device's host workers,
 * through staging of up to 1 MiB each (or what is packed together needs), and half of that again
 * where the host does not reach the device's memory; there is never a second full copy.
 * STATUS_UNSUPPORTED when the sizes do not allow int4 experts. The checkpoint is needed only during
 * the call. On failure nothing is kept. */
enum status weights_load(struct weights *out, struct device *device,
                         const struct checkpoint *checkpoint, const struct weights_share *share,
                         const struct weights_progress *progress, struct error *err) MUST_CHECK;
void weights_deinit(struct weights *weights);

#endif
