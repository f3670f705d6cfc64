/* phasor plan: which layouts for which phase, and why. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "commands.h"
#include "page_file.h"
#include "plan_page.h"
#include "table.h"

struct plan_values {
    const char *revision, *box, *input, *report, *routing, *backup;
    int dtype, expert_dtype, policy;
    int64_t sequences, prompt_len, output_len, max_num_seqs, max_num_batched_tokens;
    uint64_t memory;
    double routing_deviation;
    bool json, all, queue, no_prefix_sharing;
};

static struct plan_values values = {
    .sequences = -1, .prompt_len = -1, .output_len = -1, .routing_deviation = -1};

#define AT(member) offsetof(struct plan_values, member)
#define COUNT_TOP  0x1p31

static const struct cli_option options[] = {
    {"box", 0, OPTION_FILE, AT(box), "BOX",
     "the devices and their links: one that comes with phasor, such as a6000x4, a box file, or the "
     "profile of one's own that phasor calibrate wrote; needed",
     0, 0, NULL},
    {"rows", 'i', OPTION_FILE, AT(input), "FILE",
     "the rows of a batch, in place of the three that follow", 0, 0, NULL},
    {"prompt-len", 0, OPTION_COUNT, AT(prompt_len), "TOKENS", "tokens of each prompt (2048)", 1,
     COUNT_TOP, NULL},
    {"output-len", 0, OPTION_COUNT, AT(output_len), "TOKENS", "tokens of each answer (256)", 1,
     COUNT_TOP, NULL},
    {"batch-size", 0, OPTION_COUNT, AT(sequences), "COUNT", "sequences in all (32)", 1, COUNT_TOP,
     NULL},
    {"no-prefix-sharing", 0, OPTION_FLAG, AT(no_prefix_sharing), NULL,
     "with --rows: every prompt is computed whole, as by phasor run with this option", 0, 0, NULL},
    {"queue", 0, OPTION_FLAG, AT(queue), NULL,
     "more of the same come behind: the way back to prefill's layout is paid", 0, 0, NULL},
    {"policy", 0, OPTION_WORD, AT(policy), "POLICY",
     "whose weights decode may run on: int4-decode, exact (int4-decode)", 0, 0, policy_words},
    {"backup", 0, OPTION_FILE, AT(backup), "FILE",
     "the INT4 backup that a run would be given (the one in $PHASOR_CACHE or ~/.cache/phasor)", 0,
     0, NULL},
    {"memory", 0, OPTION_BYTES, AT(memory), "SIZE",
     "memory of each device (what the box says, or this machine has, less a twelfth)", 0, 0, NULL},
    {"dtype", 0, OPTION_WORD, AT(dtype), "TYPE",
     "number type of weights and KV cache: auto, float32, bfloat16 (auto)", 0, 0, dtype_words},
    {"expert-dtype", 0, OPTION_WORD, AT(expert_dtype), "TYPE",
     "of routed experts in both phases: auto (as --dtype), int4, as of phasor run (auto)", 0, 0,
     expert_dtype_words},
    {"max-num-seqs", 0, OPTION_COUNT, AT(max_num_seqs), "COUNT",
     "sequences that run at the same time (0: chosen)", 0, COUNT_TOP, NULL},
    {"max-num-batched-tokens", 0, OPTION_COUNT, AT(max_num_batched_tokens), "COUNT",
     "tokens of one forward pass (0: chosen)", 0, COUNT_TOP, NULL},
    {"routing-deviation", 0, OPTION_REAL, AT(routing_deviation), "SHARE",
     "how much experts are assumed to differ in the tokens they get, relative to the mean (0.3)", 0,
     100, NULL},
    {"routing", 0, OPTION_FILE, AT(routing), "FILE",
     "instead of that: how often experts were chosen, as phasor run --routing-counts found it", 0,
     0, NULL},
    {"all", 0, OPTION_FLAG, AT(all), NULL, "every candidate, and why others cannot be", 0, 0, NULL},
    {"report", 0, OPTION_FILE, AT(report), "FILE",
     "write a page of pictures, too: where the time goes, memory, which plan for which load (HTML)",
     0, 0, NULL},
    {"json", 0, OPTION_FLAG, AT(json), NULL, "print JSON; the keys are in phasor(1)", 0, 0, NULL},
    {"revision", 0, OPTION_TEXT, AT(revision), "NAME",
     "branch, tag or commit of a cached model (main)", 0, 0, NULL},
    {.name = NULL},
};

/* ---- The table ------------------------------------------------------------------------------- */

#define PLAN_WIDTH   26
#define WAY_WIDTH    9
#define TIME_WIDTH   11
#define GAIN_WIDTH   8
#define ROWS_SHOWN   12
#define REASON_WIDTH 0

static void add_seconds(struct table_line *line, double seconds)
{
    if (seconds < 1e7)
        table_add(line, TIME_WIDTH, "%.*f s", seconds < 10 ? 3 : seconds < 1000 ? 1 : 0, seconds);
    else
        table_add(line, TIME_WIDTH, "%.3g s", seconds);
}

/* Also of what is not allowed. */
static bool has_times(const json_t *row)
{
    return json_is_real(json_object_get(row, "total_s"));
}

/* "best", "static TP" ...: what a row is besides. */
static void add_names(struct table_line *line, const json_t *root, size_t index)
{
    static const struct {
        const char *key, *name;
    } names[] = {{"best", "best"},
                 {"fastest", "fastest"},
                 {"best_runnable", "best without a backup"},
                 {"static_tp", "static TP"},
                 {"static_ep", "static EP"},
                 {"best_static", "best static"}};
    const char *before = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(root, names[i].key);
        if (!json_is_integer(value) || (size_t)json_integer_value(value) != index)
            continue;
        if ((i == 1 || i == 2) && before[0] != 0) /* as nearly always */
            continue;
        table_add(line, 0, "%s%s", before, names[i].name);
        before = ", ";
    }
}

static bool has_name(const json_t *root, size_t index)
{
    struct table_line line = {.length = 0};
    add_names(&line, root, index);
    return line.length > 0;
}

/* What a row with times is besides, and whether a run would have it. */
static void add_marks(struct table_line *line, const json_t *root, const json_t *row, size_t index)
{
    if (!table_plan_is_possible(row)) {
        table_add(line, 0, "%s: %s", table_text(row, "verdict"), table_text(row, "reason"));
        return;
    }
    add_names(line, root, index);
    if (json_is_false(json_object_get(row, "runnable")))
        table_add(line, 0, "%sneeds a backup", has_name(root, index) ? ", " : "");
}

/* "1.69x", or "-" where there is no such baseline. */
static void add_gain(struct table_line *line, const json_t *row, const char *key)
{
    const json_t *gain = json_object_get(row, key);
    if (json_is_real(gain))
        table_add(line, GAIN_WIDTH, "%.2fx", json_real_value(gain));
    else
        table_add(line, GAIN_WIDTH, "-");
}

static void print_row(const json_t *root, const json_t *row, size_t index)
{
    struct table_line line = {.length = 0};
    char bytes[48];
    table_add(&line, PLAN_WIDTH, "%s", table_text(row, "plan"));
    table_add(&line, WAY_WIDTH, "%s", table_text(row, "way"));
    if (!has_times(row)) {
        table_add(&line, REASON_WIDTH, "%s: %s", table_text(row, "verdict"),
                  table_text(row, "reason"));
        table_print(&line);
        return;
    }
    add_seconds(&line, table_seconds(row, "prefill_s"));
    add_seconds(&line, table_seconds(row, "decode_s"));
    add_seconds(&line, table_seconds(row, "transition_s") + table_seconds(row, "way_back_s"));
    add_seconds(&line, table_seconds(row, "total_s"));
    table_format_bytes(bytes, sizeof bytes,
                       (double)table_int(json_object_get(row, "memory"), "total"));
    table_add(&line, TIME_WIDTH, "%s", bytes);
    table_add(&line, 6, "%" PRId64, table_int(row, "wave"));
    table_add(&line, 7, "%" PRId64, table_int(row, "pass_tokens"));
    add_gain(&line, row, "against_static_tp");
    add_gain(&line, row, "against_static_ep");
    add_marks(&line, root, row, index);
    table_print(&line);
}

static void print_head(void)
{
    struct table_line line = {.length = 0};
    table_add(&line, PLAN_WIDTH, "plan");
    table_add(&line, WAY_WIDTH, "way");
    table_add(&line, TIME_WIDTH, "prefill");
    table_add(&line, TIME_WIDTH, "decode");
    table_add(&line, TIME_WIDTH, "between");
    table_add(&line, TIME_WIDTH, "total");
    table_add(&line, TIME_WIDTH, "memory");
    table_add(&line, 6, "wave");
    table_add(&line, 7, "pass");
    table_add(&line, 0, "against static TP and EP");
    table_print(&line);
}

struct ranked {
    size_t index;
    double total; /* infinite: it has no times */
};

static int by_total(const void *a, const void *b)
{
    const struct ranked *one = a, *two = b;
    if (one->total != two->total)
        return one->total < two->total ? -1 : 1;
    return one->index < two->index ? -1 : one->index > two->index;
}

/* The fastest first; those with a name in any case. */
static void print_plans(const json_t *root)
{
    const json_t *plans = json_object_get(root, "plans");
    size_t count = json_array_size(plans), shown = 0;
    struct ranked *ranked = calloc(count + 1, sizeof *ranked);
    if (ranked == NULL)
        return;
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(plans, i);
        ranked[i] = (struct ranked){i, has_times(row) ? table_seconds(row, "total_s") : 1e300};
    }
    qsort(ranked, count, sizeof *ranked, by_total);
    print_head();
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(plans, ranked[i].index);
        bool is_first = i == 0 && has_times(row); /* also where it is not allowed */
        bool is_near = is_first || (table_plan_is_possible(row) && shown < ROWS_SHOWN);
        if (!values.all && !is_near && !has_name(root, ranked[i].index))
            continue;
        shown++;
        print_row(root, row, ranked[i].index);
    }
    free(ranked);
    if (!values.all && shown < count)
        printf("... and %zu more: --all shows them\n", count - shown);
}

/* Rows that run together, where they are not all: what each class would have alone. */
static void print_classes(const json_t *load)
{
    const json_t *classes = json_object_get(load, "classes");
    for (size_t i = 0; i < json_array_size(classes) && json_array_size(classes) > 1; i++) {
        const json_t *class = json_array_get(classes, i);
        char text[256];
        if (!json_is_string(json_object_get(class, "best_plan")))
            continue; /* none fits, and the paragraph says so */
        snprintf(text, sizeof text,
                 "%" PRId64 " of %" PRId64 " prompt and %" PRId64
                 " output tokens%s; alone %s would be best, in %s",
                 table_int(class, "sequences"), table_int(class, "prompt_tokens"),
                 table_int(class, "output_tokens"),
                 json_is_true(json_object_get(class, "stays")) ? ", decoded in prefill's layout"
                                                               : "",
                 table_text(class, "best_plan"), TABLE_SECONDS(table_seconds(class, "best_s")));
        table_row(i == 0 ? "run together" : "", text);
    }
}

/* What a phase is priced by where it is not all that was counted. */
static const char *phases_counted(const json_t *routing_of)
{
    bool prefill = strcmp(table_text(routing_of, "prefill"), "all") != 0,
         decode = strcmp(table_text(routing_of, "decode"), "all") != 0;
    return prefill && decode ? ", in prefill and in decode apart"
           : prefill         ? ", in prefill by its own passes"
           : decode          ? ", in decode by its own passes"
                             : "";
}

static void print_question(const json_t *root)
{
    const json_t *box = json_object_get(root, "box"), *load = json_object_get(root, "load");
    char text[768], bytes[48];
    const char *experts = table_text(root, "expert_dtype");
    bool differ = strcmp(experts, table_text(root, "dtype")) != 0;
    snprintf(text, sizeof text, "%s%s%s", table_text(root, "model"),
             differ ? ", its experts in " : "", differ ? experts : "");
    table_row("model", text);
    table_format_bytes(bytes, sizeof bytes, (double)table_int(box, "memory_of_device"));
    snprintf(text, sizeof text, "%s: %s", table_text(box, "name"), table_text(box, "title"));
    table_row("box", text);
    bool is_measured = strcmp(table_text(box, "times"), "measured") == 0;
    snprintf(text, sizeof text, "%s; %s of memory on each device",
             is_measured ? "predicted from operations measured on it" : "assumed, not measured",
             bytes);
    table_row("times", text);
    const char *input = json_string_value(json_object_get(load, "input"));
    snprintf(text, sizeof text,
             "%" PRId64 " sequences of %" PRId64 " prompt and %" PRId64 " output tokens%s%s",
             table_int(load, "sequences"), table_int(load, "prompt_tokens"),
             table_int(load, "output_tokens"), input == NULL ? "" : " on the mean, in ",
             input == NULL ? "" : input);
    table_row("load", text);
    if (table_int(load, "shared_tokens") > 0) {
        snprintf(text, sizeof text,
                 "%" PRId64 " tokens of a prompt, on the mean, are found computed, where "
                 "another begins like it",
                 table_int(load, "shared_tokens"));
        table_row("shared", text);
    }
    const char *routing = json_string_value(json_object_get(root, "routing"));
    if (routing != NULL)
        snprintf(text, sizeof text, "experts are chosen as counted in %s%s", routing,
                 phases_counted(json_object_get(root, "routing_of")));
    else
        snprintf(text, sizeof text,
                 "experts are assumed to differ by %.0f %% in the tokens they get",
                 100 * table_seconds(root, "routing_deviation"));
    table_row("routing", text);
    print_classes(load);
    printf("\n");
}

/* At words, to the width of a terminal. */
static void print_paragraph(const char *text)
{
    size_t column = 0;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (column > 0 && column + 1 + word > 100) {
            printf("\n");
            column = 0;
        }
        column += (size_t)printf("%s%.*s", column > 0 ? " " : "", (int)word, text);
        text += word + strspn(text + word, " ");
    }
    printf("\n");
}

static double best_seconds(const json_t *root)
{
    const json_t *best = json_object_get(root, "best");
    return json_is_integer(best) ? table_seconds(json_array_get(json_object_get(root, "plans"),
                                                                (size_t)json_integer_value(best)),
                                                 "total_s")
                                 : 0;
}

/* What the order is worth, and what a plan for each class would be. */
static void print_order(const json_t *root)
{
    const json_t *load = json_object_get(root, "load"), *classes = json_object_get(load, "classes");
    double best = best_seconds(root), before = table_seconds(load, "in_file_order_s"), own = 0;
    if (json_array_size(classes) < 2 || best == 0 || before == 0)
        return;
    for (size_t i = 0; i < json_array_size(classes); i++)
        own += table_seconds(json_array_get(classes, i), "best_s");
    printf(
        "\nIn the order of the file the best plan takes %s, with rows of like lengths together "
        "the best\nfor that %s; each class under its own best plan would take %s, and beside that "
        "loads between them.\n",
        TABLE_SECONDS(before), TABLE_SECONDS(best), TABLE_SECONDS(own));
}

static void print_table(const json_t *root)
{
    print_question(root);
    print_plans(root);
    print_order(root);
    printf("\n");
    print_paragraph(table_text(root, "why"));
    if (json_is_string(json_object_get(json_object_get(root, "load"), "parts_why"))) {
        printf("\n");
        print_paragraph(table_text(json_object_get(root, "load"), "parts_why"));
    }
}

/* ---- The command ----------------------------------------------------------------------------- */

static struct phasor_plan_params params_of(const char *model)
{
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = model;
    params.revision = values.revision;
    params.box = values.box;
    params.dtype = (enum phasor_dtype)values.dtype;
    params.expert_dtype = (enum phasor_dtype)values.expert_dtype;
    params.input_path = values.input;
    if (values.sequences > 0)
        params.sequences = values.sequences;
    if (values.prompt_len > 0)
        params.prompt_tokens = values.prompt_len;
    if (values.output_len > 0)
        params.output_tokens = values.output_len;
    params.is_queue = values.queue;
    params.policy = (enum phasor_policy)values.policy;
    params.memory_bytes = values.memory;
    params.max_num_seqs = values.max_num_seqs;
    params.max_num_batched_tokens = values.max_num_batched_tokens;
    if (values.routing_deviation >= 0)
        params.routing_deviation = values.routing_deviation;
    params.routing_path = values.routing;
    params.backup_path = values.backup;
    params.shares_prefixes = !values.no_prefix_sharing;
    return params;
}

/* ---- The page -------------------------------------------------------------------------------- */

static void map_cell(struct plan_map_cell *to, const json_t *cell)
{
    if (!json_is_object(cell))
        return; /* nothing fits, or the model has no such context */
    snprintf(to->plan, sizeof to->plan, "%s", table_text(cell, "plan"));
    to->gain = table_seconds(cell, "against_static_tp");
}

static int map_fill(struct plan_map *map, const struct phasor_plan_params *params)
{
    char *text;
    json_t *root;
    struct phasor_error err;
    for (int b = 0; b < PLAN_MAP_BATCHES; b++)
        map->batches[b] = INT64_C(1) << b;
    for (int l = 0; l < PLAN_MAP_LENGTHS; l++)
        map->lengths[l] = INT64_C(128) << l;
    const struct phasor_plan_axes axes = {map->batches, map->lengths, PLAN_MAP_BATCHES,
                                          PLAN_MAP_LENGTHS};
    if (phasor_plan_map(&text, params, &axes, &err) != PHASOR_OK)
        return fail(&err);
    enum phasor_status status = answer_read(&root, text, &err);
    phasor_text_free(text);
    if (status != PHASOR_OK)
        return fail(&err);
    const json_t *cells = json_object_get(root, "cells");
    for (size_t b = 0; b < PLAN_MAP_BATCHES; b++) {
        for (size_t l = 0; l < PLAN_MAP_LENGTHS; l++)
            map_cell(&map->cells[b][l], json_array_get(json_array_get(cells, b), l));
    }
    json_decref(root);
    return EXIT_DONE;
}

/* Answers of the map are as long as those of the load; rows are not read again. */
static int write_page(const json_t *root, const struct phasor_plan_params *params)
{
    struct plan_map map = {.lengths = {0}};
    struct phasor_plan_params of_map = *params;
    of_map.input_path = NULL;
    of_map.output_tokens = table_int(json_object_get(root, "load"), "output_tokens");
    if (map_fill(&map, &of_map) != EXIT_DONE)
        return EXIT_FATAL;
    struct page_file page;
    if (!page_file_open(&page, values.report))
        return EXIT_FATAL;
    plan_page_write(page.file, root, &map);
    return page_file_close(&page, true) ? EXIT_DONE : EXIT_FATAL;
}

static void warn(const json_t *root)
{
    const json_t *warning = json_object_get(json_object_get(root, "box"), "warning");
    if (json_is_string(warning))
        fprintf(stderr, "warning: %s\n", json_string_value(warning));
}

static int show(char *text, const struct phasor_plan_params *params)
{
    json_t *root;
    struct phasor_error err;
    if (answer_read(&root, text, &err) != PHASOR_OK)
        return fail(&err);
    warn(root);
    if (values.json)
        printf("%s\n", text);
    else
        print_table(root);
    int code = values.report == NULL ? EXIT_DONE : write_page(root, params);
    json_decref(root);
    return code;
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)operand_count;
    char *text;
    struct phasor_error err;
    struct phasor_plan_params params = params_of(operands[0]);
    if (values.input != NULL &&
        (values.sequences > 0 || values.prompt_len > 0 || values.output_len > 0))
        return options_mistake(command, "--rows has the load; leave --prompt-len, "
                                        "--output-len and --batch-size");
    if (values.routing != NULL && values.routing_deviation >= 0)
        return options_mistake(command, "--routing has what --routing-deviation assumes; give one");
    if (values.report != NULL && !page_file_check(values.report, PLAN_PAGE_HEAD, "--report"))
        return EXIT_FATAL;
    enum phasor_status status = phasor_plan(&text, &params, &err);
    if (status == PHASOR_INVALID_ARGUMENT)
        return options_mistake(command, "%s", err.message);
    if (status != PHASOR_OK)
        return fail(&err);
    int code = show(text, &params);
    phasor_text_free(text);
    return code;
}

const struct cli_command command_plan = {
    .name = "plan",
    .operands = "MODEL",
    .summary = "choose the layouts for a model on a box, without running it",
    .options = options,
    .values = &values,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
