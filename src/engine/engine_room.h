/* What a model takes of memory, and what a plan with two layouts may take beside: slots for both,
 * or spares to write layers to ahead, and a copy of the INT4 backup. */
#ifndef PHASOR_ENGINE_ENGINE_ROOM_H
#define PHASOR_ENGINE_ENGINE_ROOM_H

#include "comm/box.h"
#include "engine/engine.h"
#include "quant/backup_file.h"

/* While a model is opened. What is pointed at is borrowed. */
struct engine_room {
    const struct engine_params *params;
    const struct model_config *config;
    const struct model_shape *shape;
    const struct plan_layouts *layouts;
    const struct backup *backup; /* NULL: none is used */
    const struct box *box;       /* whose memory it is */
    struct weight_types types;
    uint64_t cache_bytes; /* of the KV cache, all ranks', which the plan was priced with; 0: none */

    /* Chosen: */
    bool keeps_both;     /* layouts are resident */
    int64_t spare_count; /* else; slots for layers that are written before they change */
};

/* Both layouts stay resident where that was asked for; or where nobody says, and they take at most
 * half of what there is (caches and activations are to have as much) and leave what runs ask for.
 * Else there are spares. */
void engine_room_choose(struct engine_room *room);

/* The rank's share of the weights, as chosen. */
struct weights_share engine_room_share(const struct engine_room *room, int rank);

/* STATUS_NO_MEMORY where the weights do not fit: a sentence now rather than the kernel's killer
 * later. */
enum status engine_room_check(const struct engine_room *room, struct error *err) MUST_CHECK;

/* Bytes of the box that are left, as of now. */
uint64_t engine_room_left(const struct engine_room *room);

/* Bytes of the host that a copy of the backup may take, once the weights are there. */
uint64_t engine_room_for_backup(const struct engine_room *room);

/* What may be done for want of memory beside what a sentence names already; "" where nothing. */
const char *room_advice(bool keeps_both, bool is_packed);

#endif
