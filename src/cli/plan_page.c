#include "plan_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "table.h"

#define BAR_LEFT   230
#define BAR_WIDTH  620
#define BAR_HEIGHT 20
#define ROW_HEIGHT 30
#define ROWS_MAX   14

static double real_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

/* ---- Which plans are shown ------------------------------------------------------------------- */

struct shown {
    const json_t *rows[ROWS_MAX];
    const char *names[ROWS_MAX]; /* "best" ..., or "" */
    int count;
};

static bool is_shown(const struct shown *shown, const json_t *row)
{
    for (int i = 0; i < shown->count; i++) {
        if (shown->rows[i] == row)
            return true;
    }
    return false;
}

static void show(struct shown *shown, const json_t *row, const char *name)
{
    if (shown->count == ROWS_MAX || row == NULL || is_shown(shown, row))
        return;
    shown->rows[shown->count] = row;
    shown->names[shown->count++] = name;
}

static const json_t *named_row(const json_t *root, const char *key)
{
    const json_t *index = json_object_get(root, key);
    if (!json_is_integer(index))
        return NULL;
    return json_array_get(json_object_get(root, "plans"), (size_t)json_integer_value(index));
}

/* The fastest that is not shown yet. */
static const json_t *next_fastest(const json_t *root, const struct shown *shown)
{
    const json_t *plans = json_object_get(root, "plans"), *best = NULL;
    for (size_t i = 0; i < json_array_size(plans); i++) {
        const json_t *row = json_array_get(plans, i);
        if (table_plan_is_possible(row) && !is_shown(shown, row) &&
            (best == NULL || real_of(row, "total_s") < real_of(best, "total_s")))
            best = row;
    }
    return best;
}

static struct shown choose_shown(const json_t *root)
{
    struct shown shown = {.count = 0};
    show(&shown, named_row(root, "best"), "best");
    show(&shown, named_row(root, "best_runnable"), "best without a backup");
    while (shown.count > 0 && shown.count < ROWS_MAX - 3) {
        const json_t *row = next_fastest(root, &shown);
        const char *name = row == named_row(root, "fastest")       ? "fastest"
                           : row == named_row(root, "best_static") ? "best static"
                                                                   : "";
        if (row == NULL)
            break;
        show(&shown, row, name);
    }
    show(&shown, named_row(root, "best_static"), "best static");
    show(&shown, named_row(root, "static_tp"), "static TP");
    show(&shown, named_row(root, "static_ep"), "static EP");
    return shown;
}

static void put_row_name(FILE *file, const struct shown *shown, int i)
{
    char text[160];
    const char *way = table_text(shown->rows[i], "way");
    snprintf(text, sizeof text, "%s%s%s%s%s%s", table_text(shown->rows[i], "plan"),
             strcmp(way, "none") == 0 ? "" : " ", strcmp(way, "none") == 0 ? "" : way,
             *shown->names[i] == '\0' ? "" : " (", shown->names[i],
             *shown->names[i] == '\0' ? "" : ")");
    page_label(file, BAR_LEFT - 8, 15 + i * ROW_HEIGHT, "end", text);
}

/* ---- Times ----------------------------------------------------------------------------------- */

/* Parts of both phases, in the order of the colours. */
static const struct {
    const char *name;
    const char *keys[4];
} parts[] = {
    {"attention", {"attention_s"}},
    {"experts", {"experts_s", "shared_s"}},
    {"the attention's collectives", {"attention_exchange_s"}},
    {"the experts' collectives", {"expert_exchange_s", "shared_exchange_s"}},
    {"the rest of a pass", {"rows_s", "head_s", "other_s"}},
};
#define PART_COUNT ((int)(sizeof parts / sizeof *parts))

static double part_seconds(const json_t *phase, int part)
{
    double sum = 0;
    for (int i = 0; i < 4 && parts[part].keys[i] != NULL; i++)
        sum += real_of(phase, parts[part].keys[i]);
    return sum;
}

static double put_phase(FILE *file, const json_t *row, const char *key, double x, double y,
                        double scale)
{
    const json_t *phase = json_object_get(row, key);
    for (int part = 0; part < PART_COUNT; part++) {
        char title[96];
        double seconds = part_seconds(phase, part);
        snprintf(title, sizeof title, "%s, %s: %.3g s", key, parts[part].name, seconds);
        page_rect(file, x, y, seconds * scale, BAR_HEIGHT, page_colours[part], title);
        x += seconds * scale;
    }
    return x;
}

static void put_times_row(FILE *file, const struct shown *shown, int i, double scale)
{
    const json_t *row = shown->rows[i];
    double y = i * ROW_HEIGHT, x = put_phase(file, row, "prefill", BAR_LEFT, y, scale);
    double between = real_of(row, "transition_s") + real_of(row, "way_back_s");
    char title[96];
    fprintf(file, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" class=\"mark\"/>\n", x, x,
            y - 3, y + BAR_HEIGHT + 3);
    snprintf(title, sizeof title, "transition and the way back: %.3g s", between);
    page_rect(file, x, y, between * scale, BAR_HEIGHT, page_colours[PART_COUNT], title);
    x = put_phase(file, row, "decode", x + between * scale, y, scale);
    snprintf(title, sizeof title, "%.3g s", real_of(row, "total_s"));
    put_row_name(file, shown, i);
    page_label(file, x + 6, y + 15, "start", title);
}

static void put_times(FILE *file, const struct shown *shown)
{
    static const char *const names[] = {parts[0].name, parts[1].name, parts[2].name,
                                        parts[3].name, parts[4].name, "transition"};
    double most = 0;
    for (int i = 0; i < shown->count; i++) {
        double total = real_of(shown->rows[i], "total_s");
        most = total > most ? total : most;
    }
    fputs("<h2>Where the time goes</h2>\n<p>Prefill left of the mark, decode right of it.</p>\n",
          file);
    page_legend(file, names, PART_COUNT + 1);
    fprintf(file, "<div class=\"picture\"><svg viewBox=\"0 -5 940 %d\">\n",
            shown->count * ROW_HEIGHT + 10);
    for (int i = 0; i < shown->count && most > 0; i++)
        put_times_row(file, shown, i, BAR_WIDTH / most);
    fputs("</svg></div>\n", file);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

#define MEMORY_PARTS 5

static void put_memory_row(FILE *file, const struct shown *shown, int i, double scale)
{
    static const char *const keys[MEMORY_PARTS] = {"weights", "experts", "kv_cache", "activations",
                                                   "buffers"};
    const json_t *memory = json_object_get(shown->rows[i], "memory");
    double x = BAR_LEFT;
    char title[96], bytes[48];
    for (int k = 0; k < MEMORY_PARTS; k++) {
        double own = real_of(memory, keys[k]);
        table_format_bytes(bytes, sizeof bytes, own);
        snprintf(title, sizeof title, "%s: %s", keys[k], bytes);
        page_rect(file, x, i * ROW_HEIGHT, own * scale, BAR_HEIGHT, page_colours[k], title);
        x += own * scale;
    }
    table_format_bytes(bytes, sizeof bytes, real_of(memory, "total"));
    put_row_name(file, shown, i);
    page_label(file, x + 6, 15 + i * ROW_HEIGHT, "start", bytes);
}

static void put_memory(FILE *file, const json_t *root, const struct shown *shown)
{
    static const char *const names[MEMORY_PARTS] = {"weights but for routed experts",
                                                    "routed experts", "KV cache", "activations",
                                                    "buffers of upload"};
    double most = real_of(json_object_get(root, "box"), "memory_of_device");
    double x = BAR_LEFT + BAR_WIDTH;
    fputs("<h2>What a device holds</h2>\n<p>The line is its memory.</p>\n", file);
    page_legend(file, names, MEMORY_PARTS);
    fprintf(file, "<div class=\"picture\"><svg viewBox=\"0 -5 940 %d\">\n",
            shown->count * ROW_HEIGHT + 10);
    for (int i = 0; i < shown->count && most > 0; i++)
        put_memory_row(file, shown, i, BAR_WIDTH / most);
    fprintf(file,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"-5\" y2=\"%d\" class=\"mark\"/>\n</svg></div>\n", x,
            x, shown->count * ROW_HEIGHT);
}

/* ---- The map --------------------------------------------------------------------------------- */

#define MAP_PLANS_MAX (PLAN_MAP_LENGTHS * PLAN_MAP_BATCHES)
#define CELL_WIDTH    86
#define CELL_HEIGHT   34

struct map_plans {
    const char *plans[MAP_PLANS_MAX];
    int count;
};

static int plan_number(struct map_plans *known, const char *plan)
{
    for (int i = 0; i < known->count; i++) {
        if (strcmp(known->plans[i], plan) == 0)
            return i;
    }
    known->plans[known->count] = plan;
    return known->count++;
}

static void put_cell(FILE *file, const struct plan_map_cell *cell, int number, double x, double y)
{
    char text[32];
    bool is_empty = number < 0;
    fprintf(file,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"%s\" "
            "fill-opacity=\"0.55\" stroke=\"var(--paper)\"><title>",
            x, y, CELL_WIDTH, CELL_HEIGHT,
            is_empty ? "var(--faint)" : page_colours[number % PAGE_COLOURS]);
    page_text(file, is_empty ? "nothing fits" : cell->plan);
    fputs("</title></rect>\n", file);
    if (is_empty)
        snprintf(text, sizeof text, "-");
    else if (cell->gain > 0)
        snprintf(text, sizeof text, "%d: %.2fx", number + 1, cell->gain);
    else
        snprintf(text, sizeof text, "%d", number + 1);
    page_label(file, x + CELL_WIDTH / 2.0, y + CELL_HEIGHT / 2.0 + 5, "middle", text);
}

static void put_map(FILE *file, const struct plan_map *map)
{
    struct map_plans known = {.count = 0};
    char text[32];
    fputs("<h2>Which plan for which load</h2>\n<p>Across: tokens of a prompt. Down: sequences of a "
          "batch. The number is the plan's, behind it how much faster it is than static TP.</p>\n",
          file);
    fprintf(file, "<div class=\"picture\"><svg viewBox=\"0 0 940 %d\">\n",
            (PLAN_MAP_BATCHES + 1) * CELL_HEIGHT);
    for (int l = 0; l < PLAN_MAP_LENGTHS; l++) {
        snprintf(text, sizeof text, "%" PRId64, map->lengths[l]);
        page_label(file, 60 + (l + 0.5) * CELL_WIDTH, 20, "middle", text);
    }
    for (int b = 0; b < PLAN_MAP_BATCHES; b++) {
        snprintf(text, sizeof text, "%" PRId64, map->batches[b]);
        page_label(file, 50, (b + 1.5) * CELL_HEIGHT + 5, "end", text);
        for (int l = 0; l < PLAN_MAP_LENGTHS; l++) {
            const struct plan_map_cell *cell = &map->cells[b][l];
            int number = *cell->plan == '\0' ? -1 : plan_number(&known, cell->plan);
            put_cell(file, cell, number, 60 + l * CELL_WIDTH, (b + 1) * CELL_HEIGHT);
        }
    }
    fputs("</svg></div>\n<ol>\n", file);
    for (int i = 0; i < known.count; i++) {
        fputs("<li><code>", file);
        page_text(file, known.plans[i]);
        fputs("</code></li>\n", file);
    }
    fputs("</ol>\n", file);
}

/* ---- The page -------------------------------------------------------------------------------- */

static void put_question(FILE *file, const json_t *root)
{
    const json_t *box = json_object_get(root, "box"), *load = json_object_get(root, "load");
    fputs("<p>", file);
    page_text(file, table_text(box, "title"));
    fprintf(file,
            ". %" PRId64 " sequences of %" PRId64 " prompt and %" PRId64
            " output tokens. Times are predicted, from ",
            table_int(load, "sequences"), table_int(load, "prompt_tokens"),
            table_int(load, "output_tokens"));
    page_text(file, table_text(box, "times"));
    fputs(" figures of the box", file);
    if (json_is_string(json_object_get(root, "routing"))) {
        fputs(", and experts chosen as counted in ", file);
        page_text(file, table_text(root, "routing"));
    }
    fputs(".</p>\n<p><b>", file);
    page_text(file, table_text(root, "why"));
    fputs("</b></p>\n", file);
    if (json_is_string(json_object_get(load, "parts_why"))) {
        fputs("<p><b>", file);
        page_text(file, table_text(load, "parts_why"));
        fputs("</b></p>\n", file);
    }
}

void plan_page_write(FILE *file, const json_t *root, const struct plan_map *map)
{
    struct shown shown = choose_shown(root);
    fputs(PLAN_PAGE_HEAD, file);
    page_text(file, table_text(root, "model"));
    page_begin(file);
    fputs("<h1>", file);
    page_text(file, table_text(root, "model"));
    fputs(" on ", file);
    page_text(file, table_text(json_object_get(root, "box"), "name"));
    fputs("</h1>\n", file);
    put_question(file, root);
    if (shown.count > 0) {
        put_times(file, &shown);
        put_memory(file, root, &shown);
    }
    put_map(file, map);
    fputs("</body></html>\n", file);
}
