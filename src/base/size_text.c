#include "base/size_text.h"

#include <stdio.h>

const char *size_text(char out[SIZE_TEXT_BYTES], uint64_t bytes)
{
    const uint64_t kib = UINT64_C(1) << 10, mib = UINT64_C(1) << 20;
    uint64_t unit = bytes >= 10 * mib ? mib : bytes >= 10 * kib ? kib : 1;
    const char *name = unit == mib ? "MiB" : unit == kib ? "KiB" : "B";
    snprintf(out, SIZE_TEXT_BYTES, "%llu %s", (unsigned long long)(bytes / unit), name);
    return out;
}
