#include "base/seconds_text.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

const char *seconds_text(char out[SECONDS_TEXT_BYTES], double seconds)
{
    bool is_long = fabs(seconds) >= 999.5 && fabs(seconds) < 1e15;
    snprintf(out, SECONDS_TEXT_BYTES, is_long ? "%.0f s" : "%.3g s", seconds);
    return out;
}
