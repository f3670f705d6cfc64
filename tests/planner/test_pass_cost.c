/* What a pass pays beside its layers, and what devices that share a core do not pay. */
#include <criterion/criterion.h>
#include <math.h>

#include "model_shapes.h"
#include "problems.h"

TestSuite(pass_cost, .timeout = 60);

static struct layout layout_of(const char *text)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

static struct pass_cost cost_of(const struct test_problem *test, const char *text, double deviation,
                                const struct pass_shape *pass)
{
    struct layout layout = layout_of(text);
    struct routing routing = {.deviation = deviation};
    return pass_cost(&test->profile, &test->shape, &layout, &test->problem.types, &routing, pass);
}

/* Each rank copies the rotations of its group's rows. */
Test(pass_cost, copies_between_host_and_devices_take_time)
{
    struct test_problem test;
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    const struct pass_shape pass = {
        .form = FORM_OWNED, .rows = 64, .pairs = 64, .seen = 64, .logit_rows = 8};
    problem_simple(&test, shape, &(struct simple_box){4, INFINITY, INFINITY, INFINITY, 0});
    test.profile.host_step = 0.5;
    test.profile.host_to_device = 1000;
    double rotation = (double)shape->head_dim * 4 / 1000;
    double cut = cost_of(&test, "tp4|tp4", 0, &pass).seconds[COST_HOST];
    double apart = cost_of(&test, "dp4|ep4", 0, &pass).seconds[COST_HOST];
    cr_expect_float_eq(cut, 0.5 + 64 * rotation, 1e-6);
    cr_expect_float_eq(apart, 0.5 + 16 * rotation, 1e-6);
}

/* Where a table tells what an exchange with one member takes: here half of an even one's time. */
Test(pass_cost, an_uneven_exchange_is_no_even_one)
{
    struct test_problem test;
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    const struct pass_shape pass = {.form = FORM_OWNED, .rows = 1 << 20, .logit_rows = 1};
    static const double bytes[] = {1, 1e9}, seconds[] = {0.5e-9, 0.5};
    const double fullest = 1 + 0.5 * 1.1886 * sqrt(4.0 / 8);
    problem_simple(&test, shape, &(struct simple_box){4, INFINITY, INFINITY, 1e9, 0});
    for (int kind = TRAFFIC_DISPATCH; kind <= (int)TRAFFIC_COMBINE;
         kind += (int)TRAFFIC_COMBINE - (int)TRAFFIC_DISPATCH) {
        int part = COST_EXCHANGE + kind, count = test.profile.collective_count;
        double even = cost_of(&test, "dp4|ep4", 0, &pass).seconds[part];
        double uneven = cost_of(&test, "dp4|ep4", 0.5, &pass).seconds[part];
        cr_expect_float_eq(uneven / even, fullest, 1e-2);
        test.collectives[count] =
            (struct collective_table){GROUP_ALL_TO_ALL, 4, false, 2, bytes, seconds, true};
        test.profile.collective_count++;
        cr_expect_float_eq(cost_of(&test, "dp4|ep4", 0, &pass).seconds[part] / even, 1, 1e-2);
        cr_expect_float_eq(cost_of(&test, "dp4|ep4", 0.5, &pass).seconds[part] / uneven,
                           1 - (fullest - 1) / 3 / 2, 1e-2);
        test.profile.collective_count--;
    }
}

/* Experts' time is as that of their rows here: of the fullest group while each device has a core;
 * two to a core, no more than of all rows, until the fullest has twice its share. */
Test(pass_cost, who_shares_a_core_does_not_wait_for_the_fullest)
{
    struct test_problem test;
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    const struct pass_shape pass = {.form = FORM_OWNED, .rows = 1 << 20, .logit_rows = 1};
    double even, own, shared, most;
    problem_simple(&test, shape, &(struct simple_box){4, 1e9, INFINITY, INFINITY, 0});
    even = cost_of(&test, "dp4|ep4", 0, &pass).seconds[COST_EXPERTS];
    own = cost_of(&test, "dp4|ep4", 0.5, &pass).seconds[COST_EXPERTS];
    test.profile.sharing = 2;
    shared = cost_of(&test, "dp4|ep4", 0.5, &pass).seconds[COST_EXPERTS];
    most = cost_of(&test, "dp4|ep4", 100, &pass).seconds[COST_EXPERTS];
    cr_expect_float_eq(own / even, 1 + 0.5 * 1.1886 * sqrt(4.0 / 8), 1e-2);
    cr_expect_float_eq(shared / even, 1, 1e-2);
    cr_expect_float_eq(most / even, 2, 1e-2); /* four times the mean, on a core of its own */
}

/* Where each token has all experts it comes to each group, whatever is liked. */
Test(pass_cost, a_token_comes_to_a_group_once)
{
    struct test_problem test;
    struct model_shape shape = model_shapes[MIXTRAL_8X7B].shape;
    const struct pass_shape pass = {.form = FORM_OWNED, .rows = 4096, .logit_rows = 1};
    shape.expert_top_k = shape.expert_count;
    problem_simple(&test, &shape, &(struct simple_box){4, 1e9, INFINITY, 1, 0});
    struct pass_cost even = cost_of(&test, "dp4|ep4", 0, &pass);
    struct pass_cost liked = cost_of(&test, "dp4|ep4", 2, &pass);
    int dispatch = COST_EXCHANGE + TRAFFIC_DISPATCH;
    double leave = 1024.0 * 3 * (double)shape.hidden_dim * 4 * (double)shape.layer_count;
    cr_expect_float_eq(even.seconds[dispatch] / leave, 1, 1e-9);
    cr_expect_float_eq(liked.seconds[dispatch] / leave, 1, 1e-9);
    cr_expect_float_eq(liked.seconds[COST_EXPERTS] / even.seconds[COST_EXPERTS], 1, 1e-9);
}

/* With bytes at 1 a second: what operations on rows move, a norm and a sum five times as much as
 * their shape says, by layer and rank. */
static void check_rows(const char *text, double own, double group, double sent, double pairs,
                       double received)
{
    struct test_problem test;
    struct model_shape shape = model_shapes[MIXTRAL_8X7B].shape;
    const struct pass_shape pass = {.form = FORM_OWNED, .rows = 4000, .logit_rows = 1};
    shape.layer_count = shape.moe_layer_count = 1;
    shape.expert_top_k = shape.expert_count; /* each token comes to each group */
    problem_simple(&test, &shape, &(struct simple_box){4, INFINITY, 1, INFINITY, 0});
    struct pass_cost cost = cost_of(&test, text, 0, &pass);
    double hidden = (double)shape.hidden_dim;
    double qkv = (double)((shape.head_count + 2 * shape.kv_head_count) * shape.head_dim);
    double moved = 3 * 2 * own * hidden + /* two norms and sums, and the embedding or last norm */
                   0.4 * 2 * group * qkv + 0.4 * 2 * own * (double)shape.expert_count +
                   0.2 * 2 * (pairs + received) * hidden;
    if (sent > 0)
        moved += 0.2 * 2 * (sent + own) * hidden;
    struct work_shape router = {
        WORK_MATMUL, DTYPE_BF16, {(int64_t)own, shape.expert_count, shape.hidden_dim}};
    cr_expect_float_eq(cost.seconds[COST_ROWS] / (moved * 4 + work_shape_bytes(&router)), 1, 0.01,
                       "%s", text);
    cr_expect_float_eq(cost.seconds[COST_EXCHANGE + TRAFFIC_DISPATCH], 0.4 * 2 * sent * hidden * 4,
                       1e3, "%s", text);
}

Test(pass_cost, rows_are_moved_as_the_executor_moves_them)
{
    check_rows("dp4|ep4", 1000, 1000, 4000, 8000, 4000);
    check_rows("dp4|tp2ep2", 1000, 1000, 2000, 16000, 4000);
    check_rows("dp4|tp4", 1000, 1000, 0, 32000, 4000);
}

/* The same of the shared expert: its products, and the sum, which reads its row, the sum's and the
 * gate's input, and writes: `rows` have the products, `summed` the sum. */
static void check_shared(const char *text, enum layer_form form, double rows, double summed,
                         double width)
{
    struct test_problem test;
    struct model_shape shape = model_shapes[QWEN2_57B_A14B].shape;
    const struct pass_shape pass = {.form = form, .rows = 4000, .logit_rows = 1};
    shape.layer_count = shape.moe_layer_count = 1;
    problem_simple(&test, &shape, &(struct simple_box){4, INFINITY, 1, INFINITY, 0});
    struct work_shape up = {
        WORK_FFN_UP, DTYPE_BF16, {(int64_t)rows, 1, (int64_t)width, shape.hidden_dim}};
    struct work_shape down = up;
    down.kind = WORK_FFN_DOWN;
    double bytes = work_shape_bytes(&up) + work_shape_bytes(&down) +
                   0.4 * 4 * summed * (double)shape.hidden_dim * 4;
    cr_expect_float_eq(cost_of(&test, text, 0, &pass).seconds[COST_SHARED] / bytes, 1, 1e-3, "%s",
                       text);
}

Test(pass_cost, a_shared_experts_sum_is_of_the_rows_that_it_is_added_to)
{
    check_shared("dp4|ep4", FORM_OWNED, 1000, 1000, 20480);   /* whole, for own tokens */
    check_shared("tp4|ep4", FORM_OWNED, 4000, 1000, 5120);    /* cut, and reduced before the sum */
    check_shared("tp4|tp4", FORM_OWNED, 4000, 4000, 5120);    /* cut, added before the reduction */
    check_shared("tp4|ep4", FORM_GATHERED, 4000, 4000, 5120); /* the same */
}
