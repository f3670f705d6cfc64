/* The inside of a checkpoint, for the files that build and check it. */
#ifndef PHASOR_MODEL_CHECKPOINT_PARTS_H
#define PHASOR_MODEL_CHECKPOINT_PARTS_H

#include <stdbool.h>

#include "model/checkpoint.h"
#include "model/shard_index.h"

struct shard {
    char *path;       /* as the user knows it, for messages; memory_free */
    const char *name; /* the last part of path */
    int fd;           /* -1: not open */
    struct safetensors contents;
};

struct checkpoint {
    struct model_config config;
    char *dir;
    struct arena arena; /* tensor tables of all shards */
    struct shard *shards;
    int64_t shard_count;
    const struct tensor_info **tensors; /* shard by shard, by offset */
    const struct tensor_info **by_name; /* the same, sorted; each name once */
    int64_t tensor_count;
    bool fused[MODEL_LAYERS_MAX]; /* whether the experts of the layer are fused tensors */
};

/* The tensor of a weight under its first or second name; NULL when there is none. */
const struct tensor_info *checkpoint_find_weight(const struct checkpoint *checkpoint,
                                                 enum weight weight, int64_t layer, int64_t expert);

/* Every weight that the config calls for must be there once, with the expected shape and type.
 * Sets `fused`. */
enum status checkpoint_check_weights(struct checkpoint *checkpoint, struct error *err) MUST_CHECK;

/* Every entry of the index must lie in the shard that it names. */
enum status checkpoint_check_index(const struct checkpoint *checkpoint,
                                   const struct shard_index *index, struct error *err) MUST_CHECK;

/* " (layer 3)" for a tensor name that holds a layer, else "". */
#define LAYER_NOTE_BYTES 32
void layer_note(char out[LAYER_NOTE_BYTES], const char *tensor_name);

#endif
