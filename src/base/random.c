#include "base/random.h"

#include <math.h>

double random_normal(struct random *random)
{
    double radius = sqrt(-2.0 * log(random_unit(random_next(random))));
    return radius * cos(6.283185307179586 * random_unit(random_next(random)));
}
