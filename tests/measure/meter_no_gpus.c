#include "meter_gpus.h"

#include <stddef.h>

const int *meter_gpus(int rank_count)
{
    (void)rank_count;
    return NULL;
}
