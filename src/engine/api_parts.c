#include "engine/api_parts.h"

#include <string.h>

enum phasor_status api_tell(struct phasor_error *out, enum status status, const struct error *err)
{
    if (status != STATUS_OK && out != NULL) {
        out->status = (enum phasor_status)status;
        memcpy(out->message, err->message, sizeof out->message);
    }
    return (enum phasor_status)status;
}

void api_log(void *context, enum log_level level, const char *message)
{
    const struct log_bridge *bridge = context;
    if (bridge->log != NULL)
        bridge->log(bridge->context, (enum phasor_log_level)level, message);
}

enum status api_complete(void *whole, size_t whole_bytes, const void *params, struct error *err)
{
    size_t size = 0;
    if (params != NULL)
        memcpy(&size, params, sizeof size);
    if (size < sizeof size)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the parameters are missing or have no size; take them from the "
                         "*_default function");
    memcpy(whole, params, size < whole_bytes ? size : whole_bytes);
    memcpy(whole, &whole_bytes, sizeof whole_bytes);
    return STATUS_OK;
}

enum status api_check_experts(enum phasor_dtype dtype, struct error *err)
{
    if (dtype != PHASOR_DTYPE_AUTO && dtype != PHASOR_DTYPE_INT4)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "expert_dtype: %d is neither PHASOR_DTYPE_AUTO nor PHASOR_DTYPE_INT4",
                         (int)dtype);
    return STATUS_OK;
}

enum status api_check_model(const char *model, enum phasor_dtype dtype, struct error *err)
{
    if (model == NULL || *model == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a model is needed");
    if (dtype != PHASOR_DTYPE_AUTO && dtype != PHASOR_DTYPE_FLOAT32 &&
        dtype != PHASOR_DTYPE_BFLOAT16)
        return error_set(err, STATUS_INVALID_ARGUMENT, "dtype: %d is none of enum phasor_dtype",
                         (int)dtype);
    return STATUS_OK;
}
