#include "scenarios.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "exec/exec_state.h"
#include "model/synth.h"
#include "traffic_walk.h"

#define PAGES_PER_SEQUENCE 2
#define LENGTH_MAX         (PAGES_PER_SEQUENCE * KV_PAGE_TOKENS)

const struct scenario scenarios[] = {
    {"uneven prompts", 5, {37, 5, 70, 1, 18}, false}, /* 5 sequences: no multiple of any Ad */
    {"one token", 1, {1}, false},
    {"all to one", 8, {16, 16, 16, 16, 16, 16, 16, 16}, true},
};
const int64_t scenario_count = sizeof scenarios / sizeof scenarios[0];

const char *const scenario_models[] = {"mixtral", "qwen2moe", "qwen3moe"};
const int64_t scenario_model_count = sizeof scenario_models / sizeof scenario_models[0];

/* ---- Checkpoints ------------------------------------------------------------------------------
 */

/* One folder holds them all; it is made with the first. */
static char folder[] = "/tmp/phasor-test-XXXXXX";
static char made[8][64]; /* names in it */
static int made_count;

void scenario_checkpoints_remove(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (made_count > 0 && system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", folder);
    made_count = 0;
}

static void checkpoint_make(const char *dir, const char *model, enum dtype dtype)
{
    char config[512];
    struct error err;
    snprintf(config, sizeof config, "%s/configs/%s.json", TEST_DATA, model);
    enum status status = synth_write(
        &(struct synth_params){.preset = config, .dir = dir, .dtype = dtype, .seed = 7}, &err);
    cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
}

const char *scenario_checkpoint(const char *model, enum dtype dtype)
{
    static char path[128];
    char name[64];
    int i = 0;
    snprintf(name, sizeof name, "%s-%s", model, dtype_name(dtype));
    if (made_count == 0) {
        cr_assert_not_null(mkdtemp(folder));
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    while (i < made_count && strcmp(made[i], name) != 0)
        i++;
    if (i == made_count) {
        cr_assert_lt(made_count, 8);
        checkpoint_make(path, model, dtype);
        memcpy(made[made_count++], name, sizeof name);
    }
    return path;
}

/* ---- Sequences ---------------------------------------------------------------------------------
 */

struct sequence {
    int32_t tokens[LENGTH_MAX];
    int32_t pages[PAGES_PER_SEQUENCE];
    int64_t prompt_count, token_count;
    int64_t fed;
    int64_t first_row; /* of the results */
    int group;
};

struct run {
    struct model_runner *runner;
    struct scenario_result *result;
    struct sequence sequences[SCENARIO_SEQUENCES_MAX];
    int64_t sequence_count;
    struct exec_segment segments[SCENARIO_SEQUENCES_MAX];
    struct sequence *of_segment[SCENARIO_SEQUENCES_MAX];
    int64_t segment_count;
    int32_t *routing;
    void (*before)(void *context, int pass); /* or NULL: see scenario_run_with */
    void *before_context;
    int pass;
    struct walk walk; /* of the pass */
    struct walk_token tokens[WALK_TOKENS_MAX];
};

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

static void sequences_open(struct run *run, const struct scenario *scenario)
{
    int64_t row = 0, vocab = run->runner->config->vocab_count;
    run->sequence_count = scenario->sequence_count;
    for (int64_t s = 0; s < run->sequence_count; s++) {
        struct sequence *sequence = &run->sequences[s];
        struct random random = {.seed = 100 + (uint64_t)s};
        *sequence = (struct sequence){
            .prompt_count = scenario->lengths[s],
            .token_count = scenario->lengths[s] + SCENARIO_DECODE_STEPS,
            .first_row = row,
            .group = (int)(s % run->runner->layout.attention.dp),
        };
        for (int64_t t = 0; t < sequence->token_count; t++)
            sequence->tokens[t] =
                scenario->same_token ? 5 : (int32_t)random_below(&random, (uint64_t)vocab);
        model_runner_take(run->runner, sequence->group, sequence->pages, PAGES_PER_SEQUENCE);
        row += sequence->token_count;
    }
    run->result->token_count = row;
}

static void sequences_close(struct run *run)
{
    for (int64_t s = 0; s < run->sequence_count; s++)
        model_runner_return(run->runner, run->sequences[s].group, run->sequences[s].pages,
                            PAGES_PER_SEQUENCE);
}

int64_t scenario_token_max(const struct scenario *scenario, int group_count)
{
    int64_t most = 1;
    for (int g = 0; g < group_count; g++) {
        int64_t first = 0, second = 0;
        for (int64_t s = g; s < scenario->sequence_count; s += group_count) {
            first += (scenario->lengths[s] + 1) / 2;
            second += scenario->lengths[s] / 2;
        }
        most = first > most ? first : most;
        most = second > most ? second : most;
    }
    return most * group_count;
}

/* ---- Bytes -------------------------------------------------------------------------------------
 */

/* The rank that owns a row of the pass. In the replicated form all do; the first stands for it. */
static int owner_of(const struct pass *pass, int64_t row)
{
    int rank = 0;
    while (row < pass->own[rank].first || row >= pass->own[rank].first + pass->own[rank].count)
        rank++;
    return rank;
}

static void expect_embedding(struct run *run, const struct traffic_pass *traffic)
{
    const struct pass *pass = &run->runner->exec->pass;
    const struct layout *layout = &run->runner->layout;
    int n = layout->rank_count;
    int64_t held[COMM_RANKS_MAX * COMM_RANKS_MAX] = {0}, row = 0;
    for (int64_t s = 0; s < run->segment_count; s++) {
        for (int64_t t = 0; t < run->segments[s].token_count; t++, row++) {
            int holder = 0;
            int32_t id = run->segments[s].tokens[t];
            while (id >= run->runner->weights[holder].vocab.first +
                             run->runner->weights[holder].vocab.count)
                holder++;
            for (int owner = 0; owner < n; owner++) {
                if (pass->form == FORM_REPLICATED || owner == owner_of(pass, row))
                    held[holder * n + owner]++;
            }
        }
    }
    traffic_embed(&run->result->by_formula, layout, traffic, held);
}

/* Tokens of each owner that go to each expert group, from what the router chose. */
static void sent_count(int64_t *sent, const struct run *run, int64_t layer)
{
    const struct exec *exec = run->runner->exec;
    const struct layout *layout = model_runner_layer_layout(run->runner, layer);
    int groups = layout->experts.ep;
    int64_t top_k = exec->config->expert_top_k;
    int32_t group_of[256];
    layout_placement(group_of, layout, &exec->shape);
    memset(sent, 0, sizeof *sent * COMM_RANKS_MAX * COMM_RANKS_MAX);
    for (int64_t row = 0; row < exec->pass.row_count; row++) {
        const int32_t *ids = run->routing + (layer * exec->token_max + row) * top_k;
        bool goes[COMM_RANKS_MAX] = {false};
        for (int64_t c = 0; c < top_k; c++)
            goes[group_of[ids[c]]] = true;
        for (int g = 0; g < groups; g++)
            sent[owner_of(&exec->pass, row) * groups + g] += goes[g];
    }
}

static int64_t experts_used(const struct run *run, int64_t layer)
{
    const struct exec *exec = run->runner->exec;
    const int32_t *ids = run->routing + layer * exec->token_max * exec->config->expert_top_k;
    bool used[256] = {false};
    int64_t count = 0;
    for (int64_t i = 0; i < exec->pass.row_count * exec->config->expert_top_k; i++) {
        count += !used[ids[i]];
        used[ids[i]] = true;
    }
    return count;
}

static void expect_pass(struct run *run)
{
    const struct exec *exec = run->runner->exec;
    const struct layout *layout = &run->runner->layout;
    int64_t own[COMM_RANKS_MAX], sent[COMM_RANKS_MAX * COMM_RANKS_MAX];
    struct traffic_pass traffic = {exec->pass.form, own, exec->dim.hidden * 4};
    struct traffic_bytes *to = &run->result->by_formula;
    for (int r = 0; r < layout->rank_count; r++)
        own[r] = exec->pass.own[r].count;
    expect_embedding(run, &traffic);
    for (int64_t layer = 0; layer < exec->config->layer_count; layer++) {
        layout = model_runner_layer_layout(run->runner, layer);
        traffic_attention(to, layout, &traffic);
        if (exec->config->layers[layer].ffn == FFN_MOE) {
            int64_t used = experts_used(run, layer);
            if (used > run->result->expert_max)
                run->result->expert_max = used;
            sent_count(sent, run, layer);
            if (exec->pass.form == FORM_OWNED && layout->experts.ep > 1) {
                int64_t rounds =
                    dispatch_rounds(sent, layout->rank_count, layout->experts.ep,
                                    exec->dim.capacity[layout == &run->runner->layouts.of[1]]);
                if (rounds > run->result->round_max)
                    run->result->round_max = rounds;
            }
            traffic_experts(to, layout, &exec->shape, &traffic, sent);
            traffic_ffn(to, layout, &traffic, exec->config->shared_expert_dim, true);
        } else {
            traffic_ffn(to, layout, &traffic, exec->config->dense_dim, false);
        }
    }
}

/* ---- The same by walking through every message ------------------------------------------------
 */

static void walk_begin(struct run *run)
{
    const struct exec *exec = run->runner->exec;
    int64_t row = 0;
    cr_assert_leq(exec->pass.row_count, WALK_TOKENS_MAX);
    for (int64_t s = 0; s < run->segment_count; s++) {
        for (int64_t t = 0; t < run->segments[s].token_count; t++, row++)
            run->tokens[row] = (struct walk_token){.owner = owner_of(&exec->pass, row),
                                                   .id = run->segments[s].tokens[t],
                                                   .is_wanted = true};
    }
    run->walk = (struct walk){.layout = &run->runner->layout,
                              .shape = &exec->shape,
                              .form = exec->pass.form,
                              .row_bytes = exec->dim.hidden * 4,
                              .tokens = run->tokens,
                              .token_count = (int)row,
                              .sent = run->result->by_walk};
}

static void walk_choices(struct run *run, int64_t layer)
{
    const struct exec *exec = run->runner->exec;
    int64_t top_k = exec->config->expert_top_k;
    cr_assert_leq(top_k, WALK_TOP_K_MAX);
    for (int64_t row = 0; row < exec->pass.row_count; row++)
        memcpy(run->tokens[row].experts, run->routing + (layer * exec->token_max + row) * top_k,
               (size_t)top_k * sizeof *run->routing);
}

static void walk_pass(struct run *run)
{
    const struct model_config *config = run->runner->config;
    walk_begin(run);
    walk_embed(&run->walk);
    for (int64_t layer = 0; layer < config->layer_count; layer++) {
        run->walk.layout = model_runner_layer_layout(run->runner, layer);
        walk_attention(&run->walk);
        if (config->layers[layer].ffn == FFN_MOE) {
            walk_choices(run, layer);
            walk_experts(&run->walk);
            walk_ffn(&run->walk, config->shared_expert_dim, true);
        } else {
            walk_ffn(&run->walk, config->dense_dim, false);
        }
    }
    walk_head(&run->walk);
    run->result->by_walk = run->walk.sent;
}

static void expect_head(struct run *run, const int32_t *rows, int64_t row_count)
{
    const struct exec *exec = run->runner->exec;
    int64_t wanted[COMM_RANKS_MAX] = {0};
    for (int64_t i = 0; i < row_count; i++)
        wanted[owner_of(&exec->pass, rows[i])]++;
    struct traffic_pass traffic = {exec->pass.form, NULL, exec->dim.hidden * 4};
    traffic_head(&run->result->by_formula, &run->runner->layout, &traffic, wanted);
}

/* ---- Passes ------------------------------------------------------------------------------------
 */

static double token_nll(const float *logits, int64_t vocab, int32_t next)
{
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - most);
    return most + log(sum) - logits[next];
}

/* Logits of the pass's rows go to where their tokens' results stand. */
static void logits_take(struct run *run)
{
    struct scenario_result *result = run->result;
    int64_t s = 0, t = 0, total = run->runner->exec->pass.row_count;
    for (int64_t first = 0; first < total; first += EXEC_LOGIT_ROWS) {
        int32_t rows[EXEC_LOGIT_ROWS];
        int64_t count = total - first < EXEC_LOGIT_ROWS ? total - first : EXEC_LOGIT_ROWS;
        struct exec_head head = {.rows = rows, .row_count = count};
        struct error err;
        for (int64_t i = 0; i < count; i++)
            rows[i] = (int32_t)(first + i);
        check(exec_head(run->runner->exec, &head, &err), &err);
        expect_head(run, rows, count);
        for (int64_t i = 0; i < count; i++, t++) {
            while (t == run->segments[s].token_count) {
                s++;
                t = 0;
            }
            const struct sequence *sequence = run->of_segment[s];
            int64_t position = run->segments[s].first_position + t;
            memcpy(result->logits + (sequence->first_row + position) * result->vocab,
                   head.logits + i * head.stride, (size_t)result->vocab * sizeof *head.logits);
            if (position + 1 < sequence->token_count)
                result->nll += token_nll(head.logits + i * head.stride, result->vocab,
                                         sequence->tokens[position + 1]);
        }
    }
}

/* Feeds up to `count` tokens of each sequence, but not beyond `end_of(sequence)`. */
static void feed(struct run *run, enum layer_form form, bool is_prompt, bool is_rest)
{
    struct model_runner *runner = run->runner;
    struct error err;
    run->segment_count = 0;
    for (int g = 0; g < runner->layout.attention.dp; g++) {
        for (int64_t s = 0; s < run->sequence_count; s++) {
            struct sequence *sequence = &run->sequences[s];
            int64_t left = sequence->prompt_count - sequence->fed;
            int64_t count = !is_prompt ? 1 : is_rest ? left : (left + 1) / 2;
            if (sequence->group != g || count == 0)
                continue;
            run->of_segment[run->segment_count] = sequence;
            run->segments[run->segment_count++] = (struct exec_segment){
                sequence->tokens + sequence->fed, count, sequence->fed, sequence->pages, g};
            sequence->fed += count;
        }
    }
    if (run->before != NULL)
        run->before(run->before_context, run->pass++);
    if (run->segment_count == 0)
        return;
    check(exec_forward(runner->exec, &runner->cache, form, run->segments, run->segment_count, &err),
          &err);
    if (run->before == NULL) {
        expect_pass(run);
        walk_pass(run);
    }
    logits_take(run);
}

void scenario_run(struct scenario_result *out, struct model_runner *runner,
                  const struct scenario *scenario)
{
    scenario_run_with(out, runner, scenario, NULL, NULL);
}

void scenario_run_with(struct scenario_result *out, struct model_runner *runner,
                       const struct scenario *scenario, void (*before)(void *context, int pass),
                       void *context)
{
    struct run *run = memory_alloc(1, sizeof *run);
    cr_assert_not_null(run);
    *out = (struct scenario_result){.vocab = runner->config->vocab_count};
    run->before = before;
    run->before_context = context;
    run->runner = runner;
    run->result = out;
    run->routing = memory_alloc((size_t)(runner->config->layer_count * runner->exec->token_max *
                                         runner->config->expert_top_k),
                                sizeof *run->routing);
    sequences_open(run, scenario);
    out->logits = memory_alloc((size_t)(out->token_count * out->vocab), sizeof *out->logits);
    cr_assert(run->routing != NULL && out->logits != NULL);
    exec_record_routing(runner->exec, run->routing);
    feed(run, FORM_OWNED, true, false);
    feed(run, FORM_OWNED, true, true);
    for (int step = 0; step < SCENARIO_DECODE_STEPS; step++)
        feed(run, step % 2 == 0 ? FORM_GATHERED : exec_decode_form(runner->exec), false, false);
    exec_record_routing(runner->exec, NULL);
    sequences_close(run);
    memory_free(run->routing);
    memory_free(run);
}

double scenario_mean(const struct scenario_result *found, const struct scenario_result *expected)
{
    double error = 0, sum = 0, squares = 0;
    int64_t count = expected->token_count * expected->vocab;
    cr_assert_eq(found->token_count, expected->token_count);
    for (int64_t i = 0; i < count; i++) {
        error += pow((double)found->logits[i] - expected->logits[i], 2);
        sum += expected->logits[i];
        squares += pow(expected->logits[i], 2);
    }
    return sqrt(error / (squares - sum * sum / (double)count));
}

double scenario_worst(const struct scenario_result *found, const struct scenario_result *expected)
{
    double worst = 0;
    cr_assert_eq(found->token_count, expected->token_count);
    for (int64_t row = 0; row < expected->token_count; row++) {
        const float *a = found->logits + row * expected->vocab;
        const float *b = expected->logits + row * expected->vocab;
        double sum = 0, squares = 0, most = 0;
        for (int64_t i = 0; i < expected->vocab; i++) {
            double difference = fabs((double)a[i] - b[i]);
            sum += b[i];
            squares += (double)b[i] * b[i];
            most = difference > most || isnan(difference) ? difference : most;
        }
        double mean = sum / (double)expected->vocab;
        double spread = sqrt(squares / (double)expected->vocab - mean * mean);
        worst = most / spread > worst || isnan(most) ? most / spread : worst;
    }
    return worst;
}

/* sum of exp(logits), from the largest on; `most` is that. */
static double exponents_sum(double *most, const float *logits, int64_t count)
{
    double sum = 0;
    *most = logits[0];
    for (int64_t i = 1; i < count; i++)
        *most = logits[i] > *most ? logits[i] : *most;
    for (int64_t i = 0; i < count; i++)
        sum += exp(logits[i] - *most);
    return sum;
}

double scenario_nll_change(const struct scenario_result *found,
                           const struct scenario_result *expected)
{
    double of_found = 0, of_expected = 0;
    cr_assert_eq(found->token_count, expected->token_count);
    for (int64_t row = 0; row < expected->token_count; row++) {
        const float *a = found->logits + row * expected->vocab;
        const float *b = expected->logits + row * expected->vocab;
        double most_a, most_b, sum_b = exponents_sum(&most_b, b, expected->vocab);
        double all_a = log(exponents_sum(&most_a, a, expected->vocab)) + most_a;
        double all_b = log(sum_b) + most_b;
        for (int64_t i = 0; i < expected->vocab; i++) {
            double chance = exp(b[i] - most_b) / sum_b;
            of_found += chance * (all_a - a[i]);
            of_expected += chance * (all_b - b[i]);
        }
    }
    return of_found / of_expected - 1;
}
