/* What the planner prices of a model with a sliding window, and holds of its cache, is what the
 * engine records and takes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/batch.h"
#include "engine_tools.h"
#include "exec/weights.h"
#include "planner/planner.h"
#include "replay/recording.h"

TestSuite(plan_window, .timeout = 120);

static const struct log_sink no_log;

/* Prompts and answers of one length each, so many rows, all at once; passes of `pass` tokens. Means
 * over passes and steps are whole. */
struct load {
    const char *model;
    const char *plan;
    int64_t rows, prompt, output, pass;
};

static const struct load loads[] = {
    {"mixtral-sliding", "tp1|tp1", 4, 40, 9, 512}, /* all layers slide */
    {"mixtral-sliding", "tp2|tp2", 4, 40, 9, 512},
    {"mixtral-sliding", "dp2|ep2", 4, 40, 9, 512},
    {"mixtral-sliding", "tp1|tp1", 1, 25, 10, 5},  /* in pieces */
    {"mixtral-sliding", "tp1|tp1", 4, 6, 21, 512}, /* decode outgrows the window: 7..16, 17..26 */
    {"qwen2moe-window", "tp1|tp1", 4, 40, 9, 512}, /* two layers of three slide */
    {"qwen2moe-window", "tp2|tp2", 1, 48, 10, 16},
    {"qwen3moe", "tp1|tp1", 4, 40, 9, 512}, /* none does */
};

/* ---- As it ran ------------------------------------------------------------------------------- */

static void write_rows(const char *path, const struct load *load)
{
    char rows[8192];
    size_t length = 0;
    for (int row = 0; row < load->rows; row++) {
        length += (size_t)snprintf(rows + length, sizeof rows - length,
                                   "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                                   "\"/v1/completions\",\"body\":{\"prompt\":[%d",
                                   row, 3 + row);
        for (int64_t t = 1; t < load->prompt; t++)
            length += (size_t)snprintf(rows + length, sizeof rows - length, ",%d",
                                       3 + ((int)t * 7 + row * 31) % 100);
        length +=
            (size_t)snprintf(rows + length, sizeof rows - length,
                             "],\"max_tokens\":%d,\"ignore_eos\":true}}\n", (int)load->output);
    }
    tools_write_file(path, rows, length);
}

/* Of attention's operations in a phase, of all ranks. */
struct sums {
    double flops, bytes;
};

static void sums_of(struct sums sums[2], const struct recording *recording)
{
    for (uint32_t n = 0; n < recording->node_count; n++) {
        const struct recording_node *node = &recording->nodes[n];
        if (node->work != WORK_ATTENTION)
            continue;
        cr_assert(node->phase == RECORD_PREFILL || node->phase == RECORD_DECODE);
        sums[node->phase == RECORD_DECODE].flops += (double)node->flops;
        sums[node->phase == RECORD_DECODE].bytes += (double)node->bytes;
    }
}

static void run(struct sums recorded[2], struct model_shape *shape, const struct load *load)
{
    char model[512];
    struct engine *engine;
    struct recording recording;
    struct phasor_batch_result result;
    struct error err;
    snprintf(model, sizeof model, "%s/models/%s", TEST_DATA, load->model);
    struct engine_params params = {
        .model = model,
        .dtype = DTYPE_BF16,
        .plan = load->plan,
        .records = true,
        .transition_is_auto = true,
        .kv_bytes = 1 << 22,
        .max_num_seqs = load->rows,
        .max_num_batched_tokens = load->pass,
    };
    cr_assert_eq(engine_open(&engine, &params, &err), STATUS_OK, "%s", err.message);
    struct phasor_batch_params batch = phasor_batch_params_default();
    batch.input_path = tools_path(tools_folder(), "in");
    write_rows(batch.input_path, load);
    batch.output_path = tools_path(tools_folder(), "out");
    batch.overwrite = true;
    batch.kv_bytes = 1 << 22;
    batch.max_num_seqs = load->rows;
    batch.max_num_batched_tokens = load->pass;
    batch.record_path = tools_path(tools_folder(), "recording");
    cr_assert_eq(batch_run(engine, &batch, &no_log, &result, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(result.decode_tokens, (uint64_t)(load->rows * (load->output - 1)));
    cr_assert_eq(recording_read(&recording, batch.record_path, &err), STATUS_OK, "%s", err.message);
    sums_of(recorded, &recording);
    *shape = weights_shape(engine_config(engine));
    recording_deinit(&recording);
    engine_close(engine);
}

/* ---- As it is priced ------------------------------------------------------------------------- */

/* Attention at these rates, all else in no time. */
static double priced(const struct load *load, const struct model_shape *shape, bool is_decode,
                     double flops_per_second, double bytes_per_second)
{
    static const double zero[] = {0};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    struct work_table tables[2 * WORK_KIND_COUNT];
    struct profile profile = {.work = tables};
    struct layout layout;
    struct error err;
    for (int kind = 0; kind < WORK_KIND_COUNT; kind++) {
        for (int d = 0; d < 2; d++)
            tables[profile.work_count++] = (struct work_table){
                .kind = (enum work_kind)kind,
                .dtype = dtypes[d],
                .flops_per_second = kind == WORK_ATTENTION ? flops_per_second : INFINITY,
                .bytes_per_second = kind == WORK_ATTENTION ? bytes_per_second : INFINITY,
                .log_ratios = zero};
    }
    cr_assert_eq(layout_parse(&layout, load->plan, 0, &err), STATUS_OK, "%s", err.message);
    struct plan_problem problem = {
        .rank_count = layout.rank_count,
        .shape = shape,
        .profile = &profile,
        .types = {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
        .load = PLAN_LOAD(load->rows, load->prompt, load->output),
    };
    struct pass_cost cost = is_decode
                                ? plan_decode_cost(&problem, &layout, false, load->rows)
                                : plan_prefill_cost(&problem, &layout, load->pass, load->rows).cost;
    return cost.seconds[COST_ATTENTION] * layout.rank_count;
}

static void expect(const struct load *load, const char *what, double found, double recorded)
{
    cr_expect(recorded > 0 && fabs(found - recorded) <= 1e-9 * recorded,
              "%s, %s, prompts of %d: %s: priced %.17g, recorded %.17g", load->model, load->plan,
              (int)load->prompt, what, found, recorded);
}

Test(plan_window, attention_is_priced_as_it_is_recorded)
{
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        struct sums recorded[2] = {{0}};
        struct model_shape shape;
        run(recorded, &shape, &loads[i]);
        expect(&loads[i], "flops of prefill", priced(&loads[i], &shape, false, 1, INFINITY),
               recorded[0].flops);
        expect(&loads[i], "bytes of prefill", priced(&loads[i], &shape, false, INFINITY, 1),
               recorded[0].bytes);
        expect(&loads[i], "flops of decode", priced(&loads[i], &shape, true, 1, INFINITY),
               recorded[1].flops);
        expect(&loads[i], "bytes of decode", priced(&loads[i], &shape, true, INFINITY, 1),
               recorded[1].bytes);
    }
}
