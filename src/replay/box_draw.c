#include "replay/box_draw.h"

#include <math.h>

#include "base/random.h"

/* In the order of the file, all that there are. */
static void draw_below(json_t *place, struct random *random)
{
    const char *key;
    json_t *item;
    size_t index;
    const json_t *range = json_object_get(place, "range");
    if (json_array_size(range) == 2) {
        double low = json_number_value(json_array_get(range, 0));
        double high = json_number_value(json_array_get(range, 1));
        double value = low * pow(high / low, random_unit(random_next(random)));
        json_object_set_new(place, "value", json_real(fmin(fmax(value, low), high)));
    }
    json_object_foreach(place, key, item) draw_below(item, random);
    json_array_foreach(place, index, item) draw_below(item, random);
}

void box_draw(json_t *file, uint64_t seed)
{
    struct random random = {.seed = seed};
    draw_below(file, &random);
}
