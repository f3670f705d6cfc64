#include "plan_table.h"

#include <inttypes.h>
#include <string.h>

#include "table.h"

#define COLUMN_WIDTH 14
#define CLASSES_MAX                                                                                \
    16 /* columns; devices differ in little: the last rows of a vocabulary, a bias */
#define GROUPS_SHOWN 4

static void add_name(struct table_line *line, const char *name)
{
    table_add(line, TABLE_NAME_WIDTH, "%s", name);
}

static void add_bytes(struct table_line *line, int64_t bytes)
{
    char text[48];
    table_format_bytes(text, sizeof text, (double)bytes);
    table_add(line, COLUMN_WIDTH, "%s", text);
}

static void add_baselines(struct table_line *line, const json_t *row)
{
    const json_t *names = json_object_get(row, "baselines");
    for (size_t i = 0; i < json_array_size(names); i++) {
        bool is_tp = strcmp(json_string_value(json_array_get(names, i)), "static_tp") == 0;
        table_add(line, 0, "%s%s", i > 0 ? ", " : "",
                  is_tp ? "static TP (the default)" : "static EP");
    }
}

/* What the numbers below hold for. */
static void add_subject(struct table_line *line, const json_t *plans)
{
    int64_t count = table_int(plans, "device_count");
    table_add(line, 0,
              "%" PRId64 " device%s, %s, passes of %" PRId64 " tokens of at most %" PRId64
              " sequences",
              count, count == 1 ? "" : "s", table_text(plans, "dtype"),
              table_int(plans, "max_num_batched_tokens"), table_int(plans, "max_num_seqs"));
}

/* ---- Who is with whom ------------------------------------------------------------------------ */

/* "all together", "each alone", "groups 0-1, 2-3" or "16 groups of 4 neighbours". */
static void add_groups(struct table_line *line, const json_t *part)
{
    const json_t *groups = json_object_get(part, "groups");
    size_t count = json_array_size(groups), size = json_array_size(json_array_get(groups, 0));
    if (count == 1)
        table_add(line, 0, size == 1 ? "one device" : "all together");
    else if (size == 1)
        table_add(line, 0, "each alone");
    else if (count > GROUPS_SHOWN)
        table_add(line, 0, "%zu groups of %zu neighbours", count, size);
    for (size_t i = 0; i < count && count > 1 && size > 1 && count <= GROUPS_SHOWN; i++)
        table_add(line, 0, "%s%zu-%zu", i > 0 ? ", " : "groups ", i * size, (i + 1) * size - 1);
}

/* "14 of 28 heads", or "all 28 heads". */
static void add_share(struct table_line *line, const char *before, int64_t own, int64_t all,
                      const char *what)
{
    if (own == all)
        table_add(line, 0, "%sall %" PRId64 " %s", before, all, what);
    else
        table_add(line, 0, "%s%" PRId64 " of %" PRId64 " %s", before, own, all, what);
}

static void print_ffn(const char *name, int64_t own, int64_t all)
{
    struct table_line line = {.length = 0};
    if (all == 0)
        return;
    add_name(&line, name);
    table_add(&line, 0, own == all ? "on each device" : "cut over the attention's groups");
    add_share(&line, ": ", own, all, "wide");
    table_print(&line);
}

static void print_experts(const json_t *root, const json_t *experts, const char *name)
{
    struct table_line line = {.length = 0};
    if (!json_is_object(experts))
        return; /* decode's are prefill's */
    add_name(&line, name);
    add_groups(&line, experts);
    add_share(&line, ": ", table_int(experts, "count"), table_int(root, "expert_count"), "experts");
    add_share(&line, ", ", table_int(experts, "width"), table_int(root, "expert_dim"), "wide");
    if (json_is_string(json_object_get(experts, "format")))
        table_add(&line, 0, ", %s", table_text(experts, "format"));
    table_print(&line);
}

static void print_layout(const json_t *root, const json_t *row)
{
    const json_t *attention = json_object_get(row, "attention");
    struct table_line line = {.length = 0};
    add_name(&line, "  attention");
    add_groups(&line, attention);
    add_share(&line, ": ", table_int(attention, "heads"), table_int(root, "head_count"), "heads");
    add_share(&line, ", ", table_int(attention, "kv_heads"), table_int(root, "kv_head_count"),
              "of keys and values");
    table_print(&line);
    print_experts(root, json_object_get(row, "experts"), "  experts");
    print_experts(root, json_object_get(row, "decode_experts"), "  ... in decode");
    print_ffn("  shared expert", table_int(row, "shared_expert_width"),
              table_int(root, "shared_expert_dim"));
    print_ffn("  dense layers", table_int(row, "dense_width"), table_int(root, "dense_dim"));
}

/* ---- What each device holds ------------------------------------------------------------------ */

/* Devices that hold the same amounts share a column. */
struct rank_class {
    const json_t *rank; /* the first of them */
    size_t first, last, count;
};

static bool ranks_equal(const json_t *a, const json_t *b)
{
    return json_equal(json_object_get(a, "by_part"), json_object_get(b, "by_part")) &&
           table_int(a, "total") == table_int(b, "total");
}

static size_t find_classes(struct rank_class *classes, const json_t *ranks)
{
    size_t class_count = 0;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        size_t c = 0;
        while (c < class_count && !ranks_equal(rank, classes[c].rank))
            c++;
        if (c == CLASSES_MAX)
            continue;
        if (c == class_count)
            classes[class_count++] = (struct rank_class){rank, i, i, 0};
        classes[c].last = i;
        classes[c].count++;
    }
    return class_count;
}

static void print_class_names(const struct rank_class *classes, size_t count)
{
    struct table_line line = {.length = 0};
    add_name(&line, "memory of device");
    for (size_t c = 0; c < count; c++) {
        if (classes[c].count == 1)
            table_add(&line, COLUMN_WIDTH, "%zu", classes[c].first);
        else if (classes[c].last - classes[c].first + 1 == classes[c].count)
            table_add(&line, COLUMN_WIDTH, "%zu-%zu", classes[c].first, classes[c].last);
        else
            table_add(&line, COLUMN_WIDTH, "%zu, %zu more", classes[c].first, classes[c].count - 1);
    }
    table_print(&line);
}

/* Of the rank itself, or of the object `outer` in it: the sum of one or two members, a column for
 * each class; no line where all are 0. */
static void print_amounts(const char *name, const struct rank_class *classes, size_t count,
                          const char *outer, const char *key, const char *other_key)
{
    struct table_line line = {.length = 0};
    int64_t sum = 0;
    add_name(&line, name);
    for (size_t c = 0; c < count; c++) {
        const json_t *rank = classes[c].rank;
        const json_t *object = outer == NULL ? rank : json_object_get(rank, outer);
        int64_t amount = table_int(object, key);
        if (other_key != NULL)
            amount += table_int(object, other_key);
        add_bytes(&line, amount);
        sum += amount;
    }
    if (sum > 0)
        table_print(&line);
}

static void print_ranks(const json_t *row)
{
    struct rank_class classes[CLASSES_MAX];
    size_t count = find_classes(classes, json_object_get(row, "ranks"));
    struct table_line line = {.length = 0};
    char text[48];
    print_class_names(classes, count);
    print_amounts("  embedding, head", classes, count, "by_part", "embedding", NULL);
    print_amounts("  attention", classes, count, "by_part", "attention", NULL);
    print_amounts("  experts", classes, count, "by_part", "experts", NULL);
    print_amounts("  shared experts", classes, count, "by_part", "shared_experts", NULL);
    print_amounts("  dense layers", classes, count, "by_part", "dense_ffn", NULL);
    print_amounts("  router, norms", classes, count, "by_part", "router", "norms");
    print_amounts("weights", classes, count, NULL, "weights", NULL);
    print_amounts("activations", classes, count, NULL, "activations", NULL);
    print_amounts("together", classes, count, NULL, "total", NULL);
    print_amounts("  ... with keep", classes, count, NULL, "total_with_keep", NULL);
    table_format_bytes(text, sizeof text, (double)table_int(row, "kv_bytes_per_token"));
    add_name(&line, "KV cache");
    table_add(&line, 0, "%s a token, on each device of one attention group", text);
    table_print(&line);
}

static void print_plan(const json_t *root, const json_t *plans)
{
    const json_t *row = json_array_get(json_object_get(plans, "list"), 0);
    struct table_line line = {.length = 0};
    table_print(&line);
    add_name(&line, "plan");
    table_add(&line, 0, "%s", table_text(row, "plan"));
    if (json_array_size(json_object_get(row, "baselines")) > 0)
        table_add(&line, 0, ": ");
    add_baselines(&line, row);
    table_print(&line);
    add_name(&line, "  for");
    add_subject(&line, plans);
    table_print(&line);
    print_layout(root, row);
    print_ranks(row);
}

/* ---- A line for each plan -------------------------------------------------------------------- */

static int64_t largest(const json_t *row, const char *key)
{
    const json_t *ranks = json_object_get(row, "ranks");
    int64_t most = 0;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        int64_t amount = table_int(json_array_get(ranks, i), key);
        most = amount > most ? amount : most;
    }
    return most;
}

static void print_line(const json_t *row)
{
    struct table_line line = {.length = 0};
    add_name(&line, table_text(row, "plan"));
    if (json_is_string(json_object_get(row, "refused"))) {
        table_add(&line, 0, "no: %s", table_text(row, "refused"));
    } else {
        add_bytes(&line, largest(row, "weights"));
        add_bytes(&line, largest(row, "activations"));
        add_bytes(&line, largest(row, "total"));
        add_bytes(&line, table_int(row, "kv_bytes_per_token"));
        add_baselines(&line, row);
    }
    table_print(&line);
}

static void print_list(const json_t *plans)
{
    static const char *const columns[] = {"weights", "activations", "together", "KV a token"};
    const json_t *list = json_object_get(plans, "list");
    struct table_line line = {.length = 0};
    table_print(&line);
    add_name(&line, "plans");
    add_subject(&line, plans);
    table_print(&line);
    add_name(&line, "  of the fullest");
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        table_add(&line, COLUMN_WIDTH, "%s", columns[i]);
    table_print(&line);
    for (size_t i = 0; i < json_array_size(list); i++)
        print_line(json_array_get(list, i));
}

void plan_table_print(const json_t *root, bool is_list)
{
    const json_t *plans = json_object_get(root, "plans");
    if (!json_is_object(plans))
        return; /* none was asked for, or the model is not supported */
    if (is_list)
        print_list(plans);
    else
        print_plan(root, plans);
}
