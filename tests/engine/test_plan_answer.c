/* Which rows run together, as the planner prices them.
 *
 *   together  classes that are no sooner done are not made: each but the last pays its way back
 *   apart     waves of like answers are sooner done than those that wait for a few long ones
 *   stay      a class of answers too short for a change decodes without one, if it may
 *   one       without bins, or with one, the answer is plan_find's
 *   again     what was priced for one question is what another would have priced
 */
#include <criterion/criterion.h>

#include "engine/engine_backup.h"
#include "engine/plan_answer.h"
#include "model/config.h"
#include "plan_tools.h"
#include "transition/transition.h"

TestSuite(plan_answer, .timeout = 60);

static struct model_config config;
static struct profile_file file;
static struct plan_subject_params subject;
static struct plan_mix mix;
static struct plan_prices prices;
static struct plan_question question; /* that was asked last */
static bool may_stay;
static bool (*may)(const void *context, const struct plan_candidate *candidate);
static enum plan_way way = PLAN_RELOAD; /* that runs in waves */

static bool is_by_way(const void *context, const struct plan_candidate *candidate)
{
    (void)context;
    return candidate->way == way;
}

static bool is_static_or_by_way(const void *context, const struct plan_candidate *candidate)
{
    const struct layout *layout = &candidate->layouts.of[0];
    return is_by_way(context, candidate) ||
           (candidate->way == PLAN_NONE && layout->attention.tp == 2 && layout->experts.tp == 2);
}

static void open_subject(void)
{
    struct error err;
    struct example_profile example;
    cr_assert_eq(model_config_load(&config, MODELS_DIR "/kjv-moe", &err), STATUS_OK);
    example_profile_init(&example, 2);
    example.bytes_per_second = 1e8; /* weights are all that takes time */
    plan_tools_profile(&file, &example);
    may = is_by_way;
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

static struct plan_answer ask(const struct plan_load *loads, int count)
{
    struct plan_answer answer;
    struct error err;
    plan_tools_mix(&mix, loads, count, config.position_count_max);
    cr_assert_eq(mix.bin_count, count);
    subject.load = plan_loads_mean(loads, count, config.position_count_max);
    plan_prices_deinit(&prices); /* of what was asked before */
    question = (struct plan_question){
        .may_stay = may_stay,
        .subject = &subject,
        .mix = &mix,
        .prices = &prices,
        .context_max = config.position_count_max,
        .may = may,
    };
    cr_assert_eq(plan_answer_find(&answer, &question, &err), STATUS_OK, "%s", err.message);
    cr_assert_geq(answer.chosen, 0);
    return answer;
}

static void close_subject(void)
{
    plan_prices_deinit(&prices);
    profile_file_deinit(&file);
}

/* Two waves either way, and one way back between them. */
Test(plan_answer, rows_that_gain_nothing_stay_together, .init = open_subject, .fini = close_subject)
{
    struct plan_answer answer =
        ask((const struct plan_load[]){PLAN_LOAD(8, 8, 20), PLAN_LOAD(8, 17, 20)}, 2);
    cr_assert_eq(answer.classes.count, 1);
    cr_assert_eq(answer.in_file_order,
                 plan_candidate_total(&answer.table.candidates[answer.chosen]));
    plan_answer_deinit(&answer);
}

Test(plan_answer, rows_of_long_answers_run_apart, .init = open_subject, .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(24, 8, 20), PLAN_LOAD(8, 8, 240)};
    struct plan_answer answer = ask(loads, 2);
    const struct plan_candidate *chosen = &answer.table.candidates[answer.chosen];
    cr_assert_eq(answer.classes.count, 2);
    cr_assert_gt(answer.in_file_order, 1.2 * plan_candidate_total(chosen));
    /* A run has passes of one size: what was priced is what each class has with it. */
    subject.max_num_batched_tokens = chosen->pass_tokens;
    struct plan_answer named = ask(loads, 2);
    cr_assert_eq(plan_candidate_total(chosen),
                 plan_candidate_total(&named.table.candidates[named.chosen]));
    plan_answer_deinit(&named);
    plan_answer_deinit(&answer);
}

/* Each as if there were no other: nobody waits for the last way back. */
Test(plan_answer, a_class_alone_is_a_load_of_its_own, .init = open_subject, .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(24, 8, 20), PLAN_LOAD(8, 8, 240)};
    struct plan_class alone[PLAN_BINS_MAX];
    struct error err;
    file.profile.disk_read = 1e6;
    struct plan_answer answer = ask(loads, 2);
    const struct plan_candidate *chosen = &answer.table.candidates[answer.chosen];
    cr_assert_eq(answer.classes.count, 2);
    cr_assert_gt(chosen->way_back, 0.1 * plan_candidate_total(chosen));
    cr_assert_eq(plan_answer_alone(alone, &answer, &question, &err), STATUS_OK);
    /* Three ways back, of which one is behind the first class. */
    cr_expect_lt(alone[0].seconds + alone[1].seconds,
                 plan_candidate_total(chosen) - chosen->way_back / 5);
    for (int class = 0; class < 2; class ++) {
        const struct plan_load *load = &loads[1 - class];
        struct plan_answer own = ask(load, 1);
        cr_expect_eq(alone[class].load.sequences, load->sequences);
        cr_expect_eq(alone[class].load.output_tokens, load->output_tokens);
        cr_expect_eq(alone[class].best, own.chosen);
        cr_expect_float_eq(alone[class].seconds,
                           plan_candidate_total(&own.table.candidates[own.chosen]), 1e-9);
        plan_answer_deinit(&own);
    }
    plan_answer_deinit(&answer);
}

/* With all rows together static tensor parallelism is the best, and has usual passes; classes make
 * something of another plan, whose passes are longer. */
Test(plan_answer, classes_may_have_longer_passes, .init = open_subject, .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(78, 140, 2), PLAN_LOAD(64, 140, 4)};
    struct example_profile example;
    example_profile_init(&example, 2);
    example.flops_per_second = 1.274e9;
    example.bytes_per_second = 3.245e10;
    example.call_seconds = 1.1e-4;
    example.gather_rate = 2.142e9;
    example.exchange_rate = 9.931e9;
    example.disk_rate = 1.348e8;
    plan_tools_profile(&file, &example);
    may = is_static_or_by_way;
    may_stay = true;
    subject.max_num_seqs = 32;
    subject.max_num_batched_tokens = 0;
    struct plan_answer answer = ask(loads, 2);
    const struct plan_candidate *chosen = &answer.table.candidates[answer.chosen];
    cr_expect_eq(answer.classes.count, 2);
    cr_expect_eq(chosen->pass_tokens, 8192);
    for (int64_t pass = 1024; pass <= 16384; pass *= 2) {
        subject.max_num_batched_tokens = pass;
        struct plan_answer named = ask(loads, 2);
        const struct plan_candidate *of_named = &named.table.candidates[named.chosen];
        cr_expect_leq(plan_candidate_total(chosen), plan_candidate_total(of_named) * (1 + 1e-9));
        plan_answer_deinit(&named);
    }
    plan_answer_deinit(&answer);
}

Test(plan_answer, short_answers_stay_where_a_change_is_dear, .init = open_subject,
     .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(24, 8, 20), PLAN_LOAD(8, 8, 240)};
    file.profile.disk_read = 3e6;
    subject.allows_int4 = true;
    way = PLAN_UPLOAD;
    struct plan_answer all = ask(loads, 2);
    may_stay = true;
    struct plan_answer some = ask(loads, 2);
    const struct plan_candidate *chosen = &some.table.candidates[some.chosen];
    cr_assert_eq(some.classes.count, 2);
    cr_assert_not(plan_answer_stays(&some, 0));
    cr_assert(plan_answer_stays(&some, 1));
    cr_assert_lt(plan_candidate_total(chosen),
                 plan_candidate_total(&all.table.candidates[all.chosen]));
    cr_assert_eq(all.table.candidates[all.chosen].stays, 0);
    for (int i = 0; i < some.table.count; i++) {
        const struct plan_candidate *one = &some.table.candidates[i];
        bool moves = one->way != PLAN_NONE && one->way != PLAN_KEEP;
        cr_assert(one->verdict != PLAN_POSSIBLE || moves || one->stays == 0);
    }
    plan_answer_deinit(&all);
    plan_answer_deinit(&some);
}

/* Questions of one document: its pages stand in each group's cache once. */
Test(plan_answer, pages_that_are_shared_are_kept_once, .init = open_subject, .fini = close_subject)
{
    struct plan_subject whole, shared;
    struct error err;
    struct layout layout;
    int64_t document = 3 * KV_PAGE_TOKENS, sequences = 8, pages = 4;
    subject.load = (struct plan_load)PLAN_LOAD(sequences, document + 32, 32);
    cr_assert_eq(plan_subject_init(&whole, &subject, &err), STATUS_OK);
    subject.load.shared = (struct plan_shared){(double)document * 7 / 8, 8};
    cr_assert_eq(plan_subject_init(&shared, &subject, &err), STATUS_OK);
    static const char *const texts[] = {"tp2|tp2", "dp2|ep2"};
    for (int i = 0; i < 2; i++) {
        int64_t of_group = i == 0 ? sequences : sequences / 2;
        cr_assert_eq(layout_parse(&layout, texts[i], 0, &err), STATUS_OK);
        struct plan_layouts layouts = {.of = {layout, layout}};
        uint64_t all = whole.problem.memory(&whole, &layouts, PLAN_ROOM_ONE, 2048, sequences).cache;
        uint64_t once =
            shared.problem.memory(&shared, &layouts, PLAN_ROOM_ONE, 2048, sequences).cache;
        uint64_t page = all / (uint64_t)(of_group * pages);
        cr_assert_eq(once, (uint64_t)(of_group + 3) * page, "%s", texts[i]);
    }
}

/* As who runs waits for others: until there is a pass, or as much as reads each expert for some. */
Test(plan_answer, who_waits_does_so_for_no_more_than_a_pass, .init = open_subject,
     .fini = close_subject)
{
    struct plan_subject made;
    struct error err;
    int64_t enough = generator_entry_tokens(subject.config, subject.is_gpu);
    const int64_t passes[] = {0, enough - 1, enough + 1}, expected[] = {enough, enough - 1, enough};
    cr_assert_gt(enough, 1);
    for (int i = 0; i < 3; i++) {
        subject.max_num_batched_tokens = passes[i];
        cr_assert_eq(plan_subject_init(&made, &subject, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(made.problem.entry_tokens, expected[i]);
    }
}

static uint64_t cache_of(const char *text, int64_t sequences)
{
    struct plan_subject made;
    struct error err;
    struct layout layout;
    cr_assert_eq(plan_subject_init(&made, &subject, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK);
    struct plan_layouts layouts = {.of = {layout, layout}};
    return made.problem.memory(&made, &layouts, PLAN_ROOM_ONE, 2048, sequences).cache;
}

/* A row that is longer than the mean would fail where its group's cache cannot hold it. */
Test(plan_answer, the_longest_sequence_has_room, .init = open_subject, .fini = close_subject)
{
    static const char *const texts[] = {"tp2|tp2", "dp2|ep2"};
    for (int i = 0; i < 2; i++) {
        subject.load = (struct plan_load)PLAN_LOAD(8, 32, 32);
        subject.longest_tokens = 0;
        uint64_t page = cache_of(texts[i], 8) / (i == 0 ? 8 : 4);
        subject.longest_tokens = 5 * KV_PAGE_TOKENS + 1;
        cr_expect_eq(cache_of(texts[i], 2), 6 * page, "%s", texts[i]);
        cr_expect_eq(cache_of(texts[i], 16), (i == 0 ? 16 : 8) * page, "%s", texts[i]);
    }
}

/* That is its row's failure; ask() finds a plan for the others. */
Test(plan_answer, a_sequence_that_no_plan_holds_is_left_out, .init = open_subject,
     .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(20, 8, 20)};
    subject.memory_bytes = (uint64_t)1 << 30;
    struct plan_answer usual = ask(loads, 1);
    subject.longest_tokens = (int64_t)1 << 30;
    struct plan_answer longer = ask(loads, 1);
    cr_assert_eq(longer.chosen, usual.chosen);
    plan_answer_deinit(&usual);
    plan_answer_deinit(&longer);
}

/* A run takes all of --kv-memory, whatever its waves need. */
Test(plan_answer, a_cache_that_is_named_is_counted_whole, .init = open_subject,
     .fini = close_subject)
{
    subject.load = (struct plan_load)PLAN_LOAD(8, 32, 32);
    uint64_t needed = cache_of("tp2|tp2", 8);
    subject.kv_bytes = 2 * (needed + 4096);
    cr_expect_eq(cache_of("tp2|tp2", 8), needed + 4096);
    subject.kv_bytes = 2 * (needed - 1);
    cr_expect_eq(cache_of("tp2|tp2", 8), PLAN_CACHE_BYTES_MOST);
}

/* As the way itself takes them: granules that are read ahead and, for native weights, those that
 * are dequantized, for each thread; of a GPU's memory these alone. */
Test(plan_answer, upload_has_its_buffers, .init = open_subject, .fini = close_subject)
{
    static const struct fingerprint none;
    struct plan_subject made;
    struct backup_form form;
    struct error err;
    subject.load = (struct plan_load)PLAN_LOAD(8, 32, 32);
    config.hidden_dim = 4096;
    config.expert_dim = 14336;
    cr_assert_eq(backup_form_make(&form, &engine_backup_settings, &config, &none, &err), STATUS_OK);
    for (int workers = 1; workers <= 8; workers *= 8) {
        subject.worker_count = workers;
        subject.is_gpu = false;
        cr_assert_eq(plan_subject_init(&made, &subject, &err), STATUS_OK);
        struct upload_bytes bytes = transition_upload_bytes_of(&form, workers, false, false);
        cr_expect_eq(made.problem.upload_bytes, bytes.device + bytes.host);
        cr_expect_eq(made.problem.upload_packed_bytes, bytes.host);
        cr_expect_geq(bytes.host, 2 * (uint64_t)(workers * form.content_bytes));
        subject.is_gpu = true;
        cr_assert_eq(plan_subject_init(&made, &subject, &err), STATUS_OK);
        cr_expect_eq(made.problem.upload_bytes, (uint64_t)(workers * form.content_bytes));
        cr_expect_eq(made.problem.upload_packed_bytes, 0);
    }
    cr_expect_gt(transition_upload_bytes_of(&form, 8, false, false).host, (uint64_t)170 << 20);
}

/* Every power of two that is less than the most. */
Test(plan_answer, waves_double_up_to_the_most, .init = open_subject, .fini = close_subject)
{
    static const int64_t most[] = {1, 3, 256, 4096, 5000, 1 << 20};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        struct plan_subject made;
        struct error err;
        int64_t wave = 1;
        subject.load = (struct plan_load)PLAN_LOAD((int64_t)1 << 30, 8, 20);
        subject.max_num_seqs = subject.max_num_batched_tokens = 0;
        subject.wave_max = most[i];
        cr_assert_eq(plan_subject_init(&made, &subject, &err), STATUS_OK, "%s", err.message);
        for (int w = 0; w < made.problem.wave_count; w++, wave *= 2)
            cr_expect_eq(made.problem.waves[w], wave < most[i] ? wave : most[i]);
        cr_expect_eq(made.problem.waves[made.problem.wave_count - 1], most[i]);
    }
}

/* Others come for those that end, of whatever class they are. */
Test(plan_answer, plans_that_move_nothing_have_no_classes, .init = open_subject,
     .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(25, 8, 20), PLAN_LOAD(9, 8, 240)};
    struct plan_subject alone;
    struct plan_table one;
    struct error err;
    struct plan_answer answer = ask(loads, 2);
    cr_assert_eq(answer.classes.count, 2);
    subject.mix = loads;
    subject.mix_count = 2;
    cr_assert_eq(plan_subject_init(&alone, &subject, &err), STATUS_OK);
    cr_assert_eq(plan_find(&one, &alone.problem, &err), STATUS_OK);
    int unmoved = 0;
    for (int i = 0; i < one.count; i++) {
        const struct plan_candidate *of_all = &one.candidates[i];
        const struct plan_candidate *found = &answer.table.candidates[i];
        if (of_all->verdict != PLAN_POSSIBLE)
            continue;
        bool is_same = plan_candidate_total(found) == plan_candidate_total(of_all);
        cr_assert_eq(is_same, !plan_way_moves(of_all->way));
        unmoved += is_same;
    }
    cr_assert_gt(unmoved, 0);
    cr_assert_eq(answer.table.static_tp, one.static_tp);
    plan_table_deinit(&one);
    plan_answer_deinit(&answer);
}

static void check_same(const struct plan_answer *one, const struct plan_answer *other)
{
    cr_assert_eq(one->chosen, other->chosen);
    cr_assert_eq(one->classes.count, other->classes.count);
    cr_assert_eq(one->in_file_order, other->in_file_order);
    cr_assert_eq(one->table.count, other->table.count);
    for (int i = 0; i < one->table.count; i++) {
        const struct plan_candidate *a = &one->table.candidates[i],
                                    *b = &other->table.candidates[i];
        cr_assert_eq(a->verdict, b->verdict);
        cr_assert_eq(a->stays, b->stays);
        cr_assert_eq(plan_candidate_total(a), plan_candidate_total(b));
        cr_assert_eq(plan_memory_total(&a->memory), plan_memory_total(&b->memory));
    }
}

Test(plan_answer, prices_serve_more_than_one_question, .init = open_subject, .fini = close_subject)
{
    const struct plan_load loads[] = {PLAN_LOAD(24, 8, 4), PLAN_LOAD(24, 8, 60),
                                      PLAN_LOAD(8, 8, 240)};
    struct plan_answer again;
    struct error err;
    may_stay = true;
    subject.max_num_batched_tokens = 0;
    may = NULL;
    struct plan_answer before = ask(loads, 3);
    size_t priced = prices.count;
    cr_assert_eq(plan_answer_find(&again, &question, &err), STATUS_OK);
    cr_assert_eq(prices.count, priced);
    check_same(&again, &before);
    plan_answer_deinit(&again);
    question.may = is_by_way;
    cr_assert_eq(plan_answer_find(&again, &question, &err), STATUS_OK);
    may = is_by_way;
    struct plan_answer fresh = ask(loads, 3);
    cr_assert_gt(fresh.classes.count, 1);
    check_same(&again, &fresh);
    plan_answer_deinit(&fresh);
    plan_answer_deinit(&again);
    plan_answer_deinit(&before);
}

/* Each of these is another question, of the same rows. */
static void ask_price(int64_t expected)
{
    struct plan_table table;
    struct error err;
    cr_assert_eq(plan_prices_find(&table, &prices, 1, &subject, &err), STATUS_OK);
    cr_assert_gt(table.count, 0);
    cr_assert_eq(prices.count, (size_t)expected);
}

Test(plan_answer, a_price_is_of_all_that_it_depends_on, .init = open_subject, .fini = close_subject)
{
    subject.load = (struct plan_load)PLAN_LOAD(20, 8, 20);
    ask_price(1);
    ask_price(1);
    subject.may_stay = !subject.may_stay;
    ask_price(2);
    subject.moves_only = !subject.moves_only;
    ask_price(3);
    subject.is_queue = !subject.is_queue;
    ask_price(4);
    subject.max_num_batched_tokens = subject.max_num_batched_tokens == 0 ? 2048 : 0;
    ask_price(5);
    subject.longest_tokens++;
    ask_price(6);
    subject.may_stay = !subject.may_stay;
    ask_price(7);
}

Test(plan_answer, of_one_length_is_plan_find, .init = open_subject, .fini = close_subject)
{
    struct plan_answer answer = ask((const struct plan_load[]){PLAN_LOAD(20, 8, 20)}, 1);
    struct plan_subject alone;
    struct plan_table table;
    struct error err;
    subject.load = (struct plan_load)PLAN_LOAD(20, 8, 20);
    cr_assert_eq(plan_subject_init(&alone, &subject, &err), STATUS_OK);
    cr_assert_eq(plan_find(&table, &alone.problem, &err), STATUS_OK);
    cr_assert_eq(answer.chosen, plan_table_pick(&table, is_by_way, NULL));
    cr_assert_float_eq(plan_candidate_total(&answer.table.candidates[answer.chosen]) /
                           plan_candidate_total(&table.candidates[answer.chosen]),
                       1, 1e-12);
    plan_table_deinit(&table);
    plan_answer_deinit(&answer);
}
