#include "replay/box_draw.h"

#include <math.h>
#include <stdbool.h>

#include "base/random.h"

struct drawing {
    struct random random;
    int count;
    bool is_short; /* of memory */
};

/* In the order of the file, all that there are. */
static void draw_below(json_t *place, struct drawing *drawing)
{
    const char *key;
    json_t *item;
    size_t index;
    const json_t *range = json_object_get(place, "range");
    if (json_array_size(range) == 2) {
        double low = json_number_value(json_array_get(range, 0));
        double high = json_number_value(json_array_get(range, 1));
        double value = low * pow(high / low, random_unit(random_next(&drawing->random)));
        json_t *drawn = json_real(fmin(fmax(value, low), high));
        drawing->is_short |= json_object_set_new(place, "value", drawn) != 0;
        drawing->count++;
    }
    json_object_foreach(place, key, item) draw_below(item, drawing);
    json_array_foreach(place, index, item) draw_below(item, drawing);
}

int box_draw(json_t *file, uint64_t seed)
{
    struct drawing drawing = {.random = {.seed = seed}};
    draw_below(file, &drawing);
    return drawing.is_short ? -1 : drawing.count;
}
