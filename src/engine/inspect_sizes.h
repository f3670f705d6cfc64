/* How many parameters and bytes each part of a model has. */
#ifndef PHASOR_ENGINE_INSPECT_SIZES_H
#define PHASOR_ENGINE_INSPECT_SIZES_H

#include <stdint.h>

#include "model/checkpoint.h"
#include "model/config.h"

enum model_part {
    PART_EMBEDDING, /* the table and the LM head */
    PART_ATTENTION,
    PART_EXPERTS, /* routed */
    PART_SHARED_EXPERTS,
    PART_ROUTER,
    PART_DENSE_FFN,
    PART_NORMS,
    PART_COUNT
};
const char *model_part_name(enum model_part part);
enum model_part model_part_of(enum weight weight);

struct model_sizes {
    uint64_t parameters[PART_COUNT];
    uint64_t bytes[PART_COUNT]; /* on disk */
};

/* Parameters follow from the config alone. */
struct model_sizes model_sizes_count(const struct model_config *config);

/* Adds the bytes that the parts take in the checkpoint. */
enum status model_sizes_weigh(struct model_sizes *sizes, const struct checkpoint *checkpoint,
                              struct error *err) MUST_CHECK;

/* Parameters that one token meets: all but the routed experts that are not chosen for it. */
uint64_t model_sizes_active(const struct model_sizes *sizes, const struct model_config *config);

#endif
