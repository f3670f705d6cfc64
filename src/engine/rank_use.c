#include "engine/rank_use.h"

void rank_use_get(struct rank_use *out, const struct exec *exec, const struct rank_use *before)
{
    const struct box *box = exec_box(exec);
    out->rank_count = box_rank_count(box);
    for (int r = 0; r < out->rank_count; r++) {
        const struct device *device = box_device(box, r);
        out->ranks[r].memory = device->ops->memory_use(device);
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            out->ranks[r].sent_bytes[kind] =
                comm_domain_bytes(box_domain(box), r, kind) -
                (before == NULL ? 0 : before->ranks[r].sent_bytes[kind]);
    }
}

void rank_use_add(struct rank_use *to, const struct rank_use *earlier)
{
    for (int r = 0; r < to->rank_count && r < earlier->rank_count; r++) {
        const struct device_memory *memory = &earlier->ranks[r].memory;
        if (memory->peak_bytes > to->ranks[r].memory.peak_bytes)
            to->ranks[r].memory.peak_bytes = memory->peak_bytes;
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            to->ranks[r].sent_bytes[kind] += earlier->ranks[r].sent_bytes[kind];
    }
}
