/* Which rows run together, as the planner prices them.
 *
 *   together  classes that would be no sooner done are not made: each but the last pays its way
 * back apart     waves of like answers are sooner done than those that wait for a few long ones one
 * without bins, or with one, the answer is plan_find's
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/plan_answer.h"
#include "engine/profile_file.h"
#include "engine_tools.h"
#include "example_profile.h"
#include "model/config.h"

TestSuite(plan_answer, .timeout = 60);

static struct model_config config;
static struct profile_file file;
static struct plan_subject_params subject;

static void open_subject(void)
{
    struct error err;
    struct example_profile example;
    char path[256];
    cr_assert_eq(model_config_load(&config, MODELS_DIR "/kjv-moe", &err), STATUS_OK);
    example_profile_init(&example, 2);
    snprintf(path, sizeof path, "%s", tools_path(tools_folder(), "profile.json"));
    cr_assert(example_profile_write(&example, path, &err), "%s", err.message);
    cr_assert_eq(profile_file_read(&file, path, &err), STATUS_OK, "%s", err.message);
    subject = (struct plan_subject_params){
        .config = &config,
        .profile = &file.profile,
        .rank_count = 2,
        .dtype = DTYPE_BF16,
        .memory_bytes = (uint64_t)1 << 40,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 2048,
    };
}

/* Plans that run in waves. */
static int pick_reload(const void *context, const struct plan_table *table)
{
    int best = -1;
    (void)context;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict == PLAN_POSSIBLE && candidate->way == PLAN_RELOAD &&
            (best < 0 ||
             plan_candidate_total(candidate) < plan_candidate_total(&table->candidates[best])))
            best = i;
    }
    return best;
}

static struct plan_answer ask(const struct plan_load *loads, int count)
{
    static struct plan_cells cells;
    struct plan_mix mix = {.bin_count = 0};
    struct plan_answer answer;
    struct error err;
    int64_t sequences = 0;
    memset(&cells, 0, sizeof cells);
    for (int i = 0; i < count; i++) {
        double own = (double)loads[i].sequences;
        struct plan_cell *cell =
            &cells.of[plan_cell_of((double)loads[i].prompt_tokens, (double)loads[i].output_tokens)];
        cell->sequences += own;
        cell->prompt_tokens += own * (double)loads[i].prompt_tokens;
        cell->output_tokens += own * (double)loads[i].output_tokens;
        sequences += loads[i].sequences;
    }
    plan_mix_make(&mix, &cells, sequences, config.position_count_max);
    cr_assert_eq(mix.bin_count, count);
    subject.load = plan_loads_mean(loads, count, config.position_count_max);
    const struct plan_question question = {
        .subject = &subject,
        .mix = &mix,
        .context_max = config.position_count_max,
        .pick = pick_reload,
    };
    cr_assert_eq(plan_answer_find(&answer, &question, &err), STATUS_OK, "%s", err.message);
    cr_assert_geq(answer.chosen, 0);
    return answer;
}

static void close_subject(void)
{
    profile_file_deinit(&file);
}

/* Two waves either way, and one way back between them. */
Test(plan_answer, rows_that_gain_nothing_stay_together, .init = open_subject, .fini = close_subject)
{
    struct plan_answer answer = ask((const struct plan_load[]){{8, 8, 20}, {8, 17, 20}}, 2);
    cr_assert_eq(answer.classes.count, 1);
    cr_assert_eq(answer.in_file_order,
                 plan_candidate_total(&answer.table.candidates[answer.chosen]));
    plan_answer_deinit(&answer);
}

Test(plan_answer, rows_of_long_answers_run_apart, .init = open_subject, .fini = close_subject)
{
    const struct plan_load loads[] = {{24, 8, 20}, {8, 8, 240}};
    struct plan_answer answer = ask(loads, 2);
    const struct plan_candidate *chosen = &answer.table.candidates[answer.chosen];
    cr_assert_eq(answer.classes.count, 2);
    cr_assert_gt(answer.in_file_order, 1.2 * plan_candidate_total(chosen));
    for (int class = 0; class < 2; class ++) {
        const struct plan_load *load = &answer.of_class[class].load;
        cr_assert_eq(load->sequences, loads[1 - class].sequences);
        cr_assert_eq(load->output_tokens, loads[1 - class].output_tokens);
    }
    cr_assert_leq(answer.of_class[0].seconds + answer.of_class[1].seconds,
                  plan_candidate_total(chosen) * (1 + 1e-9));
    plan_answer_deinit(&answer);
}

Test(plan_answer, of_one_length_is_plan_find, .init = open_subject, .fini = close_subject)
{
    struct plan_answer answer = ask((const struct plan_load[]){{20, 8, 20}}, 1);
    struct plan_subject alone;
    struct plan_table table;
    struct error err;
    subject.load = (struct plan_load){20, 8, 20};
    cr_assert_eq(plan_subject_init(&alone, &subject, &err), STATUS_OK);
    cr_assert_eq(plan_find(&table, &alone.problem, &err), STATUS_OK);
    cr_assert_eq(answer.chosen, pick_reload(NULL, &table));
    cr_assert_float_eq(plan_candidate_total(&answer.table.candidates[answer.chosen]) /
                           plan_candidate_total(&table.candidates[answer.chosen]),
                       1, 1e-12);
    plan_table_deinit(&table);
    plan_answer_deinit(&answer);
}
