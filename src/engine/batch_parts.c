#include "engine/batch_parts.h"

#include <string.h>

#include "engine/run_limits.h"

void batch_parts_name(struct text *out, const struct batch_parts *parts)
{
    for (int p = 0; p < parts->count; p++) {
        char layouts[LAYOUT_TEXT_BYTES];
        plan_layouts_format(layouts, &parts->of[p].layouts);
        text_append_format(out, "%s%s", p > 0 ? ", then " : "", layouts);
    }
}

/* ---- As JSON --------------------------------------------------------------------------------- */

static json_t *choice_json(const struct engine_choice *choice, int class_end)
{
    char layouts[LAYOUT_TEXT_BYTES];
    plan_layouts_format(layouts, &choice->layouts);
    return json_pack("{s:s, s:s?, s:I, s:I, s:i}", "plan", layouts, "transition",
                     choice->has_way ? way_names[choice->way] : NULL, "pass_tokens",
                     (json_int_t)choice->pass_tokens, "planned_cache_bytes",
                     (json_int_t)choice->cache_bytes, "class_end", class_end);
}

/* Takes the reference, and NULL as out of memory. */
static bool append(json_t *to, json_t *value)
{
    return json_array_append_new(to, value) == 0;
}

json_t *batch_parts_json(const struct batch_parts *parts)
{
    if (parts == NULL || parts->count == 0)
        return json_null();
    json_t *bins = json_array(), *of = json_array();
    bool is_whole = bins != NULL && of != NULL;
    for (int i = 0; is_whole && i < parts->bin_count; i++)
        is_whole = append(bins, json_integer(parts->classes.of_bin[i]));
    for (int p = 0; is_whole && p < parts->count; p++)
        is_whole = append(of, choice_json(&parts->of[p], parts->class_end[p]));
    if (is_whole)
        return json_pack("{s:o, s:o}", "class_of_bin", bins, "of", of);
    json_decref(bins);
    json_decref(of);
    return NULL;
}

static bool way_parse(enum way *out, const char *name)
{
    for (int way = 0; name != NULL && way < WAY_COUNT; way++) {
        if (strcmp(way_names[way], name) == 0) {
            *out = (enum way)way;
            return true;
        }
    }
    return false;
}

bool batch_choice_parse(struct engine_choice *out, const json_t *from,
                        const struct model_shape *shape, int rank_count)
{
    struct error ignored;
    const char *text = json_string_value(json_object_get(from, "plan"));
    struct engine_choice choice = {.is_made = true};
    if (text == NULL ||
        plan_layouts_parse(&choice.layouts, text, rank_count, &ignored) != STATUS_OK ||
        plan_layouts_check(&choice.layouts, shape, &ignored) != STATUS_OK)
        return false;
    if (plan_layouts_differ(&choice.layouts))
        choice.has_way =
            way_parse(&choice.way, json_string_value(json_object_get(from, "transition")));
    json_int_t pass = json_integer_value(json_object_get(from, "pass_tokens"));
    choice.pass_tokens = pass > 0 && pass <= BATCH_TOKENS_MAX ? pass : 0;
    json_int_t cache = json_integer_value(json_object_get(from, "planned_cache_bytes"));
    choice.cache_bytes = cache > 0 ? (uint64_t)cache : 0;
    *out = choice;
    return true;
}

/* A change of layout by a way that was chosen, and decode on weights of one kind in all parts. */
static bool is_of_run(const struct engine_choice *choice, const struct engine_choice *first)
{
    return (choice->has_way || !plan_layouts_differ(&choice->layouts)) &&
           engine_choice_takes_int4(choice) == engine_choice_takes_int4(first);
}

/* Classes rise from part to part, and each has its bins. */
static bool classes_parse(struct batch_parts *parts, const json_t *bins)
{
    unsigned seen = 0;
    size_t count = json_array_size(bins);
    if (count < 1 || count > PLAN_BINS_MAX)
        return false;
    parts->bin_count = (int)count;
    for (size_t i = 0; i < count; i++) {
        json_int_t class = json_integer_value(json_array_get(bins, i));
        if (!json_is_integer(json_array_get(bins, i)) || class < 0 || class >= PLAN_BINS_MAX)
            return false;
        parts->classes.of_bin[i] = (int)class;
        seen |= 1u << class;
        if (class >= parts->classes.count)
            parts->classes.count = (int)class + 1;
    }
    return seen == (1u << parts->classes.count) - 1;
}

bool batch_parts_parse(struct batch_parts *out, const json_t *from, const struct model_shape *shape,
                       int rank_count)
{
    struct batch_parts parts = {.count = 0};
    const json_t *of = json_object_get(from, "of");
    size_t count = json_array_size(of);
    if (!classes_parse(&parts, json_object_get(from, "class_of_bin")) || count < 2 ||
        count > PLAN_BINS_MAX)
        return false;
    for (; parts.count < (int)count; parts.count++) {
        int p = parts.count, before = p > 0 ? parts.class_end[p - 1] : 0;
        const json_t *part = json_array_get(of, (size_t)p);
        json_int_t end = json_integer_value(json_object_get(part, "class_end"));
        if (end <= before || end > parts.classes.count ||
            !batch_choice_parse(&parts.of[p], part, shape, rank_count) ||
            !is_of_run(&parts.of[p], &parts.of[0]))
            return false;
        parts.class_end[p] = (int)end;
    }
    if (parts.class_end[parts.count - 1] != parts.classes.count)
        return false;
    *out = parts;
    return true;
}

bool batch_parts_are_alike(const json_t *one, const json_t *two)
{
    const json_t *of = json_object_get(one, "of"), *others = json_object_get(two, "of");
    size_t count = json_array_size(of);
    if (json_is_null(one) || json_is_null(two))
        return json_equal(one, two);
    bool are =
        json_equal(json_object_get(one, "class_of_bin"), json_object_get(two, "class_of_bin")) &&
        count == json_array_size(others);
    for (size_t p = 0; are && p < count; p++) {
        const json_t *part = json_array_get(of, p), *other = json_array_get(others, p);
        are = json_equal(json_object_get(part, "plan"), json_object_get(other, "plan")) &&
              json_equal(json_object_get(part, "class_end"), json_object_get(other, "class_end"));
    }
    return are;
}
