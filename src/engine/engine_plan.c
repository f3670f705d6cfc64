/* What --devices and --plan mean. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "engine/engine.h"
#include "exec/weights.h"

#define GPU_MAX 999

/* A number from `least` to `most`, behind which *text then stands; false: there is none. */
static bool number_take(int *out, const char **text, int least, int most)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits < 1 || digits > 3 || ((*text)[0] == '0' && digits > 1))
        return false;
    *out = atoi(*text);
    *text += digits;
    return *out >= least && *out <= most;
}

static bool has_gpu(const struct engine_devices *devices, int gpu)
{
    for (int r = 0; r < devices->rank_count; r++) {
        if (devices->gpus[r] == gpu)
            return true;
    }
    return false;
}

static bool ranks_add(struct engine_devices *out, int gpu, int count)
{
    if (has_gpu(out, gpu) || count > COMM_RANKS_MAX - out->rank_count)
        return false;
    for (int i = 0; i < count; i++)
        out->gpus[out->rank_count++] = gpu;
    return true;
}

/* "0", "0-3" or "0x4"; *text then stands behind it. */
static bool gpus_take(struct engine_devices *out, const char **text)
{
    int first, last, count = 1;
    if (!number_take(&first, text, 0, GPU_MAX))
        return false;
    last = first;
    if (**text == '-') {
        (*text)++;
        if (!number_take(&last, text, first, GPU_MAX))
            return false;
    } else if (**text == 'x') {
        (*text)++;
        if (!number_take(&count, text, 1, COMM_RANKS_MAX))
            return false;
    }
    for (int gpu = first; gpu <= last; gpu++) {
        if (!ranks_add(out, gpu, count))
            return false;
    }
    return true;
}

/* What stands behind "cuda:". */
static bool gpus_parse(struct engine_devices *out, const char *text)
{
    *out = (struct engine_devices){.cuda = true};
    while (gpus_take(out, &text)) {
        if (*text == '\0')
            return true;
        if (*text++ != ',')
            return false;
    }
    return false;
}

static bool cpus_parse(struct engine_devices *out, const char *text)
{
    *out = (struct engine_devices){0};
    return number_take(&out->rank_count, &text, 1, COMM_RANKS_MAX) && *text == '\0';
}

enum status engine_devices_parse(struct engine_devices *out, const char *devices, struct error *err)
{
    *out = (struct engine_devices){.rank_count = 1};
    if (devices == NULL || strcmp(devices, "cpu") == 0)
        return STATUS_OK;
    if (strncmp(devices, "cpu:", 4) == 0 && cpus_parse(out, devices + 4))
        return STATUS_OK;
    if (strncmp(devices, "cuda:", 5) == 0 && gpus_parse(out, devices + 5))
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--devices: expected cpu, cpu:N with N from 1 to %d, or GPUs such as cuda:0, "
                     "cuda:0-3, cuda:0,2 or cuda:0x4 (four ranks on cuda:0), each once, of at most "
                     "%d ranks, found \"%s\"",
                     COMM_RANKS_MAX, COMM_RANKS_MAX, devices);
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
