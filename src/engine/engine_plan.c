/* What --plan means. */
#include <string.h>

#include "engine/engine.h"
#include "exec/weights.h"

enum status engine_plan_parse(struct plan_layouts *out, const char *plan,
                              const struct model_config *config, int rank_count, struct error *err)
{
    struct model_shape shape = weights_shape(config);
    enum status status;
    if (plan == NULL || strcmp(plan, ENGINE_PLAN_STATIC) == 0) {
        struct layout layout;
        status = layout_static_tp(&layout, &shape, rank_count > 0 ? rank_count : 1, err);
        if (status != STATUS_OK)
            return error_prefix(err, STATUS_INVALID_ARGUMENT, "--devices");
        *out = plan_layouts_static(&layout);
        return STATUS_OK;
    }
    status = plan_layouts_parse(out, plan, rank_count, err);
    if (status == STATUS_OK && plan_layouts_check(out, &shape, err) != STATUS_OK)
        return error_prefix(err, STATUS_INVALID_ARGUMENT, "--plan %s", plan);
    return status == STATUS_OK ? status : error_prefix(err, status, "--plan");
}
