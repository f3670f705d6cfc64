/* What --devices and --plan mean. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "engine/engine.h"
#include "exec/weights.h"

enum status engine_devices_parse(struct engine_devices *out, const char *devices, struct error *err)
{
    *out = (struct engine_devices){.rank_count = 1};
    if (devices == NULL || strcmp(devices, "cpu") == 0)
        return STATUS_OK;
    if (strcmp(devices, "cuda:0") == 0) {
        out->cuda = true;
        return STATUS_OK;
    }
    const char *digits = strncmp(devices, "cpu:", 4) == 0 ? devices + 4 : "";
    size_t length = strspn(digits, "0123456789");
    bool is_number = length >= 1 && length <= 2 && digits[0] != '0' && digits[length] == '\0';
    int count = is_number ? atoi(digits) : 0;
    if (count < 1 || count > COMM_RANKS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--devices: expected cpu, cpu:N with N from 1 to %d, or cuda:0, found "
                         "\"%s\"",
                         COMM_RANKS_MAX, devices);
    out->rank_count = count;
    return STATUS_OK;
}

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
