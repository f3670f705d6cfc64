#include "bench_print.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_lines.h"
#include "bench_overall.h"
#include "bench_parts.h"
#include "table.h"

/* Of the columns of times. */
static const struct {
    const char *name;
    enum bench_time time;
} times[] = {
    {"prefill", BENCH_PREFILL},
    {"decode", BENCH_DECODE},
    {"between", BENCH_BETWEEN},
    {"total", BENCH_TOTAL},
};
#define TIMES (int)(sizeof times / sizeof *times)

/* ---- Rows ------------------------------------------------------------------------------------ */

static json_t *spread_json(const struct bench_spread *of)
{
    return json_pack("{s:f, s:f}", "median", of->median, "spread", of->spread);
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* Under `key`, and the interval behind it. */
static void against_put(json_t *row, const char *key, const struct bench_against *of)
{
    char low[48], high[48];
    if (!of->is_known)
        return;
    snprintf(low, sizeof low, "%s_low", key);
    snprintf(high, sizeof high, "%s_high", key);
    json_object_set_new(row, key, json_real(of->ratio.middle));
    json_object_set_new(row, low,
                        isfinite(of->ratio.high) ? json_real(of->ratio.low) : json_null());
    json_object_set_new(row, high, real_or_null(of->ratio.high));
}

/* Times, once there is a round. */
static void times_put(json_t *row, const struct bench_question *question,
                      const struct bench_summary *of)
{
    bool is_wall = question->clock == BENCH_WALL; /* what nobody ran has no such things */
    json_object_set_new(row, "prefill_s", spread_json(&of->prefill));
    json_object_set_new(row, "decode_s", spread_json(&of->decode));
    json_object_set_new(row, "between_s", spread_json(&of->between));
    json_object_set_new(row, "total_s", spread_json(&of->total));
    if (is_wall || of->ttft > 0)
        json_object_set_new(row, "median_ttft_s", json_real(of->ttft));
    json_object_set_new(row, "median_tpot_s", json_real(of->tpot));
    json_object_set_new(row, "total_token_throughput", json_real(of->tokens_per_second));
    if (is_wall)
        json_object_set_new(row, "planning_s", json_real(of->planning));
    if (is_wall || of->collective_bytes > 0) {
        json_object_set_new(row, "collective_bytes",
                            json_integer((json_int_t)of->collective_bytes));
        json_object_set_new(row, "collectives", bench_collectives_json(of->bytes_of));
    }
    if (is_wall)
        json_object_set_new(row, "peak_bytes", json_integer((json_int_t)of->peak_bytes));
    against_put(row, "against_static_tp", &of->static_tp);
    against_put(row, "against_static_tp_int4", &of->static_tp_int4);
    if (of->static_tp.is_known)
        json_object_set_new(row, "is_static_tp", json_boolean(of->static_tp.is_same));
    if (question->clock != BENCH_PREDICTED && of->static_tp.is_known &&
        (of->static_tp.is_same || isfinite(of->static_tp.ratio.high)))
        json_object_set_new(row, "reaches_static_tp",
                            json_boolean(!bench_falls_short(&of->static_tp)));
}

static json_t *row_json(const struct bench_results *results, int index, enum bench_mode mode,
                        const struct bench_summary *of)
{
    const struct bench_question *question = &results->question;
    const struct bench_cell *cell = &results->cells[index];
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    json_t *row = json_pack(
        "{s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:i, s:i}", "model", question->models[cell->model],
        "prompt_tokens", (json_int_t)scenario->prompt_tokens, "output_tokens",
        (json_int_t)scenario->output_tokens, "batch_size",
        (json_int_t)question->batch_sizes[cell->batch_size], "devices", question->devices, "mode",
        bench_mode_names[mode], "clock", bench_clock_name(question), "rounds", of->rounds,
        "failures", of->failures);
    for (int i = 0; i < TIMES; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_clock", times[i].name);
        json_object_set_new(row, key, json_string(bench_time_clock(question, times[i].time)));
    }
    if (of->plan == NULL) {
        json_object_set_new(row, "plan", json_null());
        json_object_set_new(row, "why", json_string(of->why));
        return row;
    }
    json_object_set_new(row, "plan", json_string(of->plan->plan));
    json_object_set_new(row, "way", json_string(of->plan->way));
    json_object_set_new(row, "predicted_s",
                        json_real(of->plan->predicted_prefill + of->plan->predicted_between +
                                  of->plan->predicted_decode));
    json_object_set_new(row, "predicted_memory", json_integer((json_int_t)of->plan->memory));
    if (of->why != NULL)
        json_object_set_new(row, "why", json_string(of->why));
    if (of->rounds > 0)
        times_put(row, question, of);
    return row;
}

/* What the mode adds to those before it; `cell`: of each mode. */
static void part_put(json_t *row, const struct bench_question *question, enum bench_mode mode,
                     const struct bench_summary *cell)
{
    struct bench_parts_worth worth = bench_parts_of(cell);
    for (int i = 0; i < BENCH_PARTS && bench_parts_asked(question); i++) {
        if (bench_parts[i].mode != mode || !(worth.of[i] > 0))
            continue;
        json_object_set_new(row, "part", json_string(bench_parts[i].adds));
        json_object_set_new(row, "part_worth", json_real(worth.of[i]));
    }
}

/* ---- Markdown and values --------------------------------------------------------------------- */

/* What files say of themselves is neither markup nor a column's end, also within code. */
static void print_text(const char *text)
{
    for (size_t step = 1; *text != 0; text += step) {
        size_t control = table_control_bytes(text);
        step = control > 0 ? control : 1;
        if (strchr("|\\<&`", *text) != NULL)
            putchar('\\');
        putchar(control > 0 ? '?' : *text);
    }
}

static void markdown_head(const struct bench_results *results)
{
    char prompts[BENCH_PROMPTS_BYTES];
    printf("phasor ");
    print_text(results->version);
    printf(", ");
    print_text(results->question.devices);
    printf(", from ");
    print_text(results->began);
    bench_prompts_words(prompts, &results->question);
    printf("; %s; plans %s by ", prompts, results->plans_hash);
    print_text(results->cell_count > 0 ? results->cells[0].box : "nobody");
    for (int i = 0; i < results->question.routing_count; i++) {
        printf(i == 0 ? ", with experts chosen as counted in " : ", ");
        print_text(results->question.routing[i]);
    }
    printf(
        ".\n%s Medians of the rounds; the spread is from the first quartile to the third. Against "
        "static TP, and static TP on INT4: above 1 is faster, %s.\n\n",
        bench_clock_sentence(&results->question), bench_interval_words(&results->question));
    printf("| model | load | mode | plan | predicted |");
    for (int i = 0; i < TIMES; i++)
        printf(" %s (%s) |", times[i].name, bench_time_clock(&results->question, times[i].time));
    printf(" %s | spread | tokens/s | TTFT | TPOT | %s | %s | against static TP | against it on "
           "INT4 |\n"
           "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
           "| ---: | --- | ---: | --- | --- |\n",
           bench_planning_words(&results->question), bench_bytes_words(&results->question),
           bench_memory_words(&results->question));
}

static void markdown_against(const struct bench_against *of)
{
    if (of->is_same)
        printf(" 1, the same plan |");
    else if (!of->is_known)
        printf(" - |");
    else if (isinf(of->ratio.high))
        printf(" %.3f |", of->ratio.middle);
    else
        printf(" %.3f (%.3f to %.3f) |", of->ratio.middle, of->ratio.low, of->ratio.high);
}

/* The first two columns. */
static void load_print(const struct bench_results *results, int index)
{
    const struct bench_question *question = &results->question;
    const struct bench_cell *cell = &results->cells[index];
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    char name[BENCH_NAME_BYTES];
    bench_model_name(name, question, cell->model);
    printf("| ");
    print_text(name);
    printf(" | %lld/%lld x %lld ", (long long)scenario->prompt_tokens,
           (long long)scenario->output_tokens, (long long)question->batch_sizes[cell->batch_size]);
}

static void markdown_row(const struct bench_results *results, int index, enum bench_mode mode,
                         const struct bench_summary *of)
{
    char bytes[BENCH_BYTES_WORDS], memory[32];
    load_print(results, index);
    printf("| %s | ", bench_mode_names[mode]);
    if (of->plan == NULL) {
        print_text(of->why);
        printf(" | | | | | | | | | | | | | | |\n");
        return;
    }
    print_text(of->plan->plan);
    if (strcmp(of->plan->way, "none") != 0) {
        printf(" by ");
        print_text(of->plan->way);
    }
    if (of->failures > 0)
        printf(" (%d of %d rounds failed)", of->failures, of->failures + of->rounds);
    printf(" | %.3g | ",
           of->plan->predicted_prefill + of->plan->predicted_between + of->plan->predicted_decode);
    if (of->rounds == 0) {
        print_text(of->why == NULL ? "not run" : of->why);
        printf(" | | | | | | | | | | | | |\n");
        return;
    }
    printf("%.3g | %.3g | %.3g | %.3g | ", of->prefill.median, of->decode.median,
           of->between.median, of->total.median);
    if (of->planning > 0)
        printf("%.3g", of->planning);
    printf(" | %.1f %% | %.0f | ", 100 * of->total.spread, of->tokens_per_second);
    if (of->ttft > 0)
        printf("%.3g", of->ttft);
    bench_bytes_format(bytes, of);
    bench_memory_format(memory, &results->question, of);
    printf(" | %.3g | %s | %s |", of->tpot, bytes, memory);
    markdown_against(&of->static_tp);
    markdown_against(&of->static_tp_int4);
    putchar('\n');
}

/* The columns are the keys of a row, spreads with their median and their spread. */
static const char *const columns[] = {
    "model",
    "prompt_tokens",
    "output_tokens",
    "batch_size",
    "devices",
    "mode",
    "clock",
    "prefill_clock",
    "decode_clock",
    "between_clock",
    "total_clock",
    "plan",
    "way",
    "rounds",
    "failures",
    "predicted_s",
    "prefill_s",
    "decode_s",
    "between_s",
    "total_s",
    "planning_s",
    "median_ttft_s",
    "median_tpot_s",
    "total_token_throughput",
    "collective_bytes",
    "peak_bytes",
    "predicted_memory",
    "against_static_tp",
    "against_static_tp_low",
    "against_static_tp_high",
    "against_static_tp_int4",
    "against_static_tp_int4_low",
    "against_static_tp_int4_high",
    "part",
    "part_worth",
    "why",
};

/* What begins like a formula is none for who opens it in a spreadsheet. */
static void csv_text(const char *text)
{
    putchar('"');
    if (*text != 0 && strchr("=+-@\t\r", *text) != NULL)
        putchar('\'');
    for (; *text != 0; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static bool is_spread(const char *column)
{
    return strcmp(column, "prefill_s") == 0 || strcmp(column, "decode_s") == 0 ||
           strcmp(column, "between_s") == 0 || strcmp(column, "total_s") == 0;
}

static void csv_value(const json_t *value)
{
    if (json_is_string(value))
        csv_text(json_string_value(value));
    else if (json_is_integer(value))
        printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        printf("%.9g", json_real_value(value));
}

static void csv_head(void)
{
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        printf("%s%s", i > 0 ? "," : "", columns[i]);
        if (is_spread(columns[i]))
            printf(",%s_spread", columns[i]);
    }
    printf("\r\n");
}

static void csv_row(const json_t *row)
{
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const json_t *value = json_object_get(row, columns[i]);
        printf("%s", i > 0 ? "," : "");
        csv_value(is_spread(columns[i]) ? json_object_get(value, "median") : value);
        if (is_spread(columns[i])) {
            putchar(',');
            csv_value(json_object_get(value, "spread"));
        }
    }
    printf("\r\n");
}

/* Of the summary at `place`. */
static void row_print(const struct bench_results *results, const struct bench_summary *of,
                      int place, enum bench_format format, bool is_first)
{
    int cell = place / BENCH_MODE_COUNT;
    enum bench_mode mode = (enum bench_mode)(place % BENCH_MODE_COUNT);
    if (format == BENCH_MARKDOWN) {
        markdown_row(results, cell, mode, &of[place]);
        return;
    }
    json_t *row = row_json(results, cell, mode, &of[place]);
    part_put(row, &results->question, mode, &of[cell * BENCH_MODE_COUNT]);
    if (format == BENCH_CSV) {
        csv_row(row);
    } else {
        if (format == BENCH_JSON)
            fputs(is_first ? "[\n" : ",\n", stdout);
        json_dumpf(row, stdout, JSON_COMPACT);
        if (format == BENCH_JSON_LINES)
            putchar('\n');
    }
    json_decref(row);
}

static void worth_print(const struct bench_parts_worth *of)
{
    for (int i = 0; i <= BENCH_PARTS; i++) {
        double worth = i < BENCH_PARTS ? of->of[i] : of->all;
        if (worth > 0)
            printf(" %.3f |", worth);
        else
            printf(" - |");
    }
    putchar('\n');
}

static void parts_print(const struct bench_results *results, const struct bench_summary *of)
{
    const struct bench_question *question = &results->question;
    if (!bench_parts_asked(question))
        return;
    printf(
        "\nWhat each part is worth: how many times as fast with it as without, one on top of the "
        "other, by medians of the rounds, %s; the last column is their product, against static "
        "TP.\n\n| model | load |",
        bench_clock_name(question));
    for (int i = 0; i < BENCH_PARTS; i++)
        printf(" %s |", bench_parts[i].adds);
    printf(" all |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n");
    for (int cell = 0; cell < results->cell_count; cell++) {
        struct bench_parts_worth worth = bench_parts_of(&of[cell * BENCH_MODE_COUNT]);
        load_print(results, cell);
        putchar('|');
        worth_print(&worth);
    }
    struct bench_parts_worth mean = bench_parts_mean(of, results->cell_count);
    printf("| geometric mean | |");
    worth_print(&mean);
}

static void markdown_foot(const struct bench_results *results, const struct bench_summary *of)
{
    struct bench_overalls overalls;
    bench_overalls_make(&overalls, results, of);
    putchar('\n');
    bench_overalls_tell(&overalls, &results->question, stdout, "- ", "");
    parts_print(results, of);
}

bool bench_print(const struct bench_results *results, enum bench_format format)
{
    struct bench_summary *of;
    bool is_first = true;
    if (!bench_summarize(&of, results))
        return false;
    if (format == BENCH_MARKDOWN)
        markdown_head(results);
    if (format == BENCH_CSV)
        csv_head();
    for (int i = 0; i < results->cell_count * BENCH_MODE_COUNT; i++) {
        if ((results->question.modes & 1u << i % BENCH_MODE_COUNT) == 0)
            continue;
        row_print(results, of, i, format, is_first);
        is_first = false;
    }
    if (format == BENCH_MARKDOWN)
        markdown_foot(results, of);
    if (format == BENCH_JSON)
        fputs(is_first ? "[]\n" : "\n]\n", stdout);
    free(of);
    return true;
}
