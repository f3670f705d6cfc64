/* model.safetensors.index.json: which shard holds which tensor. */
#ifndef PHASOR_MODEL_SHARD_INDEX_H
#define PHASOR_MODEL_SHARD_INDEX_H

#include <jansson.h>

#include "base/status.h"

#define SHARDS_MAX        1000 /* each is an open file; the usual limit of a process is 1024 */
#define SHARD_SINGLE_NAME "model.safetensors"
#define SHARD_INDEX_NAME  "model.safetensors.index.json"

struct shard_index {
    json_t *root;
    json_t *weight_map;       /* borrowed from root: tensor name -> shard name, all strings */
    const char **shard_names; /* sorted, each once; the strings belong to root */
    size_t shard_count;
};

/* Reads the index of `dir`. Start with {0}; deinit also after a failure. */
enum status shard_index_load(struct shard_index *index, const char *dir,
                             struct error *err) MUST_CHECK;
void shard_index_deinit(struct shard_index *index);

#endif
