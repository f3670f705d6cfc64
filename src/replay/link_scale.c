#include "replay/link_scale.h"

static bool counts(const struct recording_node *node)
{
    bool is_product = node->work == WORK_MATMUL || node->work == WORK_ATTENTION ||
                      node->work == WORK_FFN_UP || node->work == WORK_FFN_DOWN;
    return is_product && node->kind == NODE_COMPUTE && node->phase == RECORD_PREFILL &&
           node->flops > 0;
}

enum status link_scale_get(double *out, const struct recording *recording,
                           const struct box_model *box, struct error *err)
{
    double recorded = 0, modelled = 0;
    for (uint32_t i = 0; i < recording->node_count; i++) {
        const struct recording_node *node = &recording->nodes[i];
        if (!counts(node))
            continue;
        recorded += (double)node->duration_ns * 1e-9;
        modelled += (double)node->flops /
                    (box->device.peak_flops * box->device.flops_efficiency[node->work]);
    }
    if (!(recorded > 0 && modelled > 0))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--scale needs a recording of prefill, and this one has no matrix product "
                         "or attention of it; leave --scale away");
    *out = modelled / recorded;
    return STATUS_OK;
}
