#include "base/numeric.h"

static float load(const void *in, enum dtype dtype, int64_t i)
{
    if (dtype == DTYPE_F32)
        return ((const float *)in)[i];
    uint16_t value = ((const uint16_t *)in)[i];
    return dtype == DTYPE_BF16 ? bf16_to_f32(value) : f16_to_f32(value);
}

void numeric_convert(void *out, enum dtype out_dtype, const void *in, enum dtype in_dtype,
                     int64_t count)
{
    if (out_dtype == in_dtype) {
        memcpy(out, in, (size_t)(count * dtype_bytes(in_dtype)));
        return;
    }
    if (out_dtype == DTYPE_F32 && in_dtype == DTYPE_BF16) { /* what most weights are: in vectors */
        for (int64_t i = 0; i < count; i++)
            ((float *)out)[i] = bf16_to_f32(((const uint16_t *)in)[i]);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float value = load(in, in_dtype, i);
        if (out_dtype == DTYPE_F32)
            ((float *)out)[i] = value;
        else
            ((uint16_t *)out)[i] =
                out_dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
    }
}
