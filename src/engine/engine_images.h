/* The packed weights of a model's ranks in the cache (docs/weights-cache.md): where they are to be
 * found, and leaving them there for the next time. */
#ifndef PHASOR_ENGINE_ENGINE_IMAGES_H
#define PHASOR_ENGINE_ENGINE_IMAGES_H

#include "engine/engine.h"
#include "engine/engine_room.h"
#include "exec/weights_image.h"

struct engine_images {
    int count; /* 0: there are none, for a reason that was told */
    struct weights_image of[COMM_RANKS_MAX];
};

/* Of the ranks of a box. A cache that is not to be had, or GPUs, whose memory is no file's, are a
 * warning. */
enum status engine_images_find(struct engine_images *out, const struct engine_room *room,
                               const struct checkpoint *checkpoint, struct error *err) MUST_CHECK;
void engine_images_deinit(struct engine_images *images); /* zeros are allowed */

/* The rank's; NULL where there are none. */
const struct weights_image *engine_images_of(const struct engine_images *images, int rank);

/* Behind the load: says that the ranks' weights were mapped, or writes the images of those that
 * were not, each rank its own, while load_progress hears of it. What cannot be written is a
 * warning. STATUS_CANCELLED where load_progress says so. */
enum status engine_images_leave(const struct engine_images *images, struct box *box,
                                const struct weights *weights, const struct engine_params *params,
                                struct error *err) MUST_CHECK;

#endif
