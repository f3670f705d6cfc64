/* What prefill and decode of a wave cost: sums over passes and steps. */
#include <math.h>

#include "planner/planner.h"

static void cost_add(struct pass_cost *to, const struct pass_cost *more, double times)
{
    for (int part = 0; part < COST_PART_COUNT; part++)
        to->seconds[part] += times * more->seconds[part];
}

static struct pass_cost cost_of(const struct plan_problem *problem, const struct layout *layout,
                                const struct pass_shape *pass, bool is_packed)
{
    struct cost_types types = problem->types;
    if (is_packed)
        types.experts = DTYPE_INT4;
    return pass_cost(problem->profile, problem->shape, layout, &types, &problem->routing, pass);
}

/* Some of the rows of a wave's prompts. Of their pairs and final rows each row has its even share;
 * a prompt that is cut reads what stands before each piece again. */
static struct pass_shape prefill_pass(const struct plan_problem *problem,
                                      const struct layout *layout, int64_t wave, double rows)
{
    double prompt = (double)problem->load.prompt_tokens, all = prompt * (double)wave;
    double piece = fmin(prompt, rows / layout->attention.dp);
    double rereads = (prompt / piece - 1) / 2; /* on the mean, of a prompt's tokens */
    return (struct pass_shape){
        .form = FORM_OWNED,
        .rows = rows,
        .pairs = rows * (prompt + 1) / 2,
        .seen = rows * (1 + rereads),
        .logit_rows = (double)wave * rows / all,
    };
}

/* The groups have as many sequences as any, so that passes are as many as the fullest needs. */
static int64_t padded(int64_t wave, const struct layout *layout)
{
    return ceil_div(wave, layout->attention.dp) * layout->attention.dp;
}

struct prefill_cost plan_prefill_cost(const struct plan_problem *problem,
                                      const struct layout *layout, int64_t pass_tokens,
                                      int64_t wave)
{
    struct prefill_cost prefill = {0};
    int64_t sequences = padded(wave, layout), all = sequences * problem->load.prompt_tokens;
    int64_t whole = (all - 1) / pass_tokens; /* passes before the last */
    struct pass_shape last =
        prefill_pass(problem, layout, sequences, (double)(all - whole * pass_tokens));
    struct pass_cost cost = cost_of(problem, layout, &last, false);
    prefill.last_pass = pass_cost_total(&cost);
    cost_add(&prefill.cost, &cost, 1);
    if (whole > 0) {
        struct pass_shape pass = prefill_pass(problem, layout, sequences, (double)pass_tokens);
        cost = cost_of(problem, layout, &pass, false);
        cost_add(&prefill.cost, &cost, (double)whole);
    }
    return prefill;
}

static struct pass_shape decode_pass(const struct layout *layout, int64_t wave, double context)
{
    double rows = (double)padded(wave, layout);
    return (struct pass_shape){
        .form = layout->attention.dp == 1 ? FORM_REPLICATED : FORM_GATHERED,
        .rows = rows,
        .pairs = rows * context,
        .seen = rows * context,
        .logit_rows = rows,
    };
}

/* Simpson's rule over the growing context: exact where times are cubic in it. */
struct pass_cost plan_decode_cost(const struct plan_problem *problem, const struct layout *layout,
                                  bool is_packed, int64_t wave)
{
    static const double weights[3] = {1.0 / 6, 4.0 / 6, 1.0 / 6};
    struct pass_cost sum = {{0}};
    double steps = (double)(problem->load.output_tokens - 1);
    for (int i = 0; i < 3 && steps > 0; i++) {
        double context = (double)problem->load.prompt_tokens + 1 + (steps - 1) * i / 2;
        struct pass_shape pass = decode_pass(layout, wave, context);
        struct pass_cost cost = cost_of(problem, layout, &pass, is_packed);
        cost_add(&sum, &cost, steps * weights[i]);
    }
    return sum;
}
