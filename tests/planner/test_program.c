/* The plan that is found is the one that an integer program finds which is told neither candidates
 * nor totals: it has what each phase costs in each layout, what changes cost, what memory each
 * combination takes, and chooses.
 *
 * HAP, section III-C. Equation 4: one attention S, one layout of the experts P in prefill and D in
 * decode, here also with packed weights, and beyond HAP one way and one size of pass and wave, each
 * by variables of 0 and 1; the sum of their products' costs is least. Products are linearized:
 * y stands for all of one combination. Equation 5: its memory is no more than there is. Equation 6:
 * of a change what passes do not hide. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "problems.h"

TestSuite(program, .timeout = 280);

#define COMBINATIONS_MAX 40000
#define LAYOUTS_MAX      32

struct combination {
    int attention, prefill, decode, way, size; /* of each part its choice */
    double seconds, memory;
};

/* What the program chooses from: attentions as layouts whose experts are of no matter. */
struct program {
    const struct plan_problem *problem;
    struct attention_layout attentions[LAYOUTS_MAX];
    struct expert_layout experts[LAYOUTS_MAX];
    int attention_count, expert_count;
    struct combination *of;
    int count;
};

/* ---- What there is to choose ----------------------------------------------------------------- */

static struct layout layout_with(const struct program *program, int attention, int experts)
{
    return (struct layout){program->problem->rank_count, program->attentions[attention],
                           program->experts[experts]};
}

static bool is_legal(const struct program *program, const struct layout *layout)
{
    struct error ignored;
    return layout_check(layout, program->problem->shape, &ignored) == STATUS_OK;
}

/* Every degree that divides the ranks, legal or not. */
static void choices_make(struct program *out)
{
    int ranks = out->problem->rank_count;
    int64_t shared = out->problem->shape->shared_expert_dim;
    for (int tp = 1; tp <= ranks; tp++) {
        if (ranks % tp != 0)
            continue;
        out->experts[out->expert_count++] = (struct expert_layout){.tp = tp, .ep = ranks / tp};
        out->attentions[out->attention_count++] =
            (struct attention_layout){.tp = tp, .dp = ranks / tp};
        struct layout cut = {ranks, out->attentions[out->attention_count - 1], out->experts[0]};
        if (tp == 1 || shared == 0 || !layout_ffn_is_cut(&cut, shared))
            continue;
        cut.attention.replicate_ffn = true;
        out->attentions[out->attention_count++] = cut.attention;
    }
}

/* ---- Costs ----------------------------------------------------------------------------------- */

/* Slots that layers are written to ahead: the most with which all rules of plan_memory hold. */
static int64_t spares_of(const struct plan_problem *problem, const struct plan_memory *one)
{
    for (int64_t spares = problem->shape->moe_layer_count; spares > 1; spares--) {
        double added = (double)(spares - 1) * (double)one->spare;
        double weights = (double)one->weights + (double)one->experts + 2 * added;
        double all = (double)plan_memory_total(one) + 2 * added,
               there = (double)problem->memory_bytes;
        if (added <= floor(there / 8) && weights <= floor(there / 2) && all <= there)
            return spares;
    }
    return 1;
}

struct cost {
    const struct plan_problem *problem;
    struct layout prefill, decode;
    enum plan_way way;
    bool is_packed;
    int64_t pass, wave, spares;
};

/* Of one layer, to decode's layout or back. */
static double layer_of(const struct cost *cost, bool is_back)
{
    const struct plan_problem *problem = cost->problem;
    const struct model_shape *shape = problem->shape;
    const struct profile *profile = problem->profile;
    const struct layout *from = is_back ? &cost->decode : &cost->prefill;
    const struct layout *to = is_back ? &cost->prefill : &cost->decode;
    struct change change;
    switch (cost->way) {
    case PLAN_RESHARD:
        change = change_by_reshard(shape, from, to, problem->native);
        return change_reshard_seconds(profile, &change, problem->rank_count);
    case PLAN_RELOAD:
        change = change_by_reload(shape, from, to, problem->native);
        return change_reload_seconds(profile, &change);
    default: /* from a backup, and back from the checkpoint, all of it */
        change = change_by_upload(shape, to, is_back ? problem->native : problem->backup);
        return is_back ? change_reload_seconds(profile, &change)
                       : change_upload_seconds(profile, &change, cost->is_packed);
    }
}

static double link_of(const struct cost *cost)
{
    const struct plan_problem *problem = cost->problem;
    struct change change =
        cost->way == PLAN_UPLOAD
            ? change_by_upload(problem->shape, &cost->decode, problem->backup)
            : change_by_reload(problem->shape, &cost->prefill, &cost->decode, problem->native);
    return cost->way == PLAN_RESHARD ? 0 : change.taken / problem->profile->host_to_device;
}

/* Waves are all alike here, and a wave's steps, too. */
static double moving_seconds(const struct cost *cost)
{
    const struct plan_problem *problem = cost->problem;
    double waves = (double)problem->load.sequences / (double)cost->wave;
    double layers = (double)problem->shape->moe_layer_count;
    double steps = (double)problem->load.output_tokens - 1;
    struct prefill_cost prefill =
        plan_prefill_cost(problem, &cost->prefill, cost->pass, cost->wave);
    struct pass_cost decode =
        plan_wave_decode_cost(problem, &cost->decode, cost->is_packed, cost->wave);
    double step = steps > 0 ? pass_cost_total(&decode) / steps : 0, exchanging = 0;
    for (int part = COST_EXCHANGE; part < COST_PART_COUNT; part++)
        exchanging += prefill.cost.seconds[part];
    struct hiding hiding = {
        .layers = (int64_t)layers,
        .spares = cost->spares,
        .is_beside = cost->way != PLAN_RESHARD,
        .layer = layer_of(cost, false),
        .layer_link = link_of(cost),
        .exchanging = exchanging,
        .link_sharing = profile_link_sharing(problem->profile),
        .prefill = pass_cost_total(&prefill.cost),
        .last_pass = prefill.last_pass,
        .decode_layer = step / (double)problem->shape->layer_count,
    };
    double back = layers * layer_of(cost, true);
    if (cost->way != PLAN_RESHARD)
        back -= fmin((double)cost->spares * layer_of(cost, true), step * fmin(steps, 32));
    double ways_back = problem->is_queue ? waves : waves - 1;
    return waves * (pass_cost_total(&prefill.cost) + hiding_exposed(&hiding) +
                    pass_cost_total(&decode)) +
           ways_back * fmax(back, 0);
}

/* Where nothing moves, whoever waits comes as soon as somebody has ended. */
static double staying_seconds(const struct cost *cost)
{
    struct pass_cost prefill =
        plan_refilled_prefill_cost(cost->problem, &cost->prefill, cost->pass, cost->wave);
    struct pass_cost decode =
        plan_refilled_decode_cost(cost->problem, &cost->decode, cost->is_packed, cost->wave);
    return pass_cost_total(&prefill) + pass_cost_total(&decode);
}

/* ---- Combinations ---------------------------------------------------------------------------- */

/* What a way is for: none where nothing changes; no native weights are made packed ones. */
static bool way_is_meant(enum plan_way way, bool changes, bool is_packed, bool allows_int4)
{
    if (!changes)
        return way == PLAN_NONE;
    if ((is_packed || way == PLAN_UPLOAD) && !allows_int4)
        return false;
    return way == PLAN_KEEP || way == PLAN_UPLOAD ||
           (!is_packed && (way == PLAN_RESHARD || way == PLAN_RELOAD));
}

static void combination_add(struct program *out, struct cost *cost,
                            const struct combination *chosen)
{
    const struct plan_problem *problem = out->problem;
    const struct plan_layouts layouts = {.of = {cost->prefill, cost->decode},
                                         .decode_is_packed = cost->is_packed};
    enum plan_room room = cost->way == PLAN_NONE   ? PLAN_ROOM_ONE
                          : cost->way == PLAN_KEEP ? PLAN_ROOM_BOTH
                                                   : PLAN_ROOM_SPARE;
    struct plan_memory memory =
        problem->memory(problem->memory_context, &layouts, room, cost->pass, cost->wave);
    bool moves = room == PLAN_ROOM_SPARE;
    cost->spares = moves && cost->way != PLAN_RESHARD ? spares_of(problem, &memory) : 1;
    double seconds = moves ? moving_seconds(cost) : staying_seconds(cost);
    cr_assert_lt(out->count, COMBINATIONS_MAX);
    if (!isfinite(seconds))
        return;
    struct combination *made = &out->of[out->count++];
    *made = *chosen;
    made->seconds = seconds;
    made->memory =
        (double)plan_memory_total(&memory) + (double)(cost->spares - 1) * (double)memory.spare;
}

static void sizes_add(struct program *out, struct cost *cost, struct combination *chosen)
{
    const struct plan_problem *problem = out->problem;
    for (int p = 0; p < problem->pass_count; p++) {
        for (int w = 0; w < problem->wave_count; w++) {
            int64_t all = problem->load.sequences, wave = problem->waves[w];
            chosen->size = p * problem->wave_count + w;
            cost->pass = problem->passes[p];
            cost->wave = wave < all ? wave : all;
            combination_add(out, cost, chosen);
        }
    }
}

static void layouts_add(struct program *out, struct combination *chosen)
{
    struct cost cost = {.problem = out->problem,
                        .prefill = layout_with(out, chosen->attention, chosen->prefill),
                        .decode = layout_with(out, chosen->attention, chosen->decode / 2),
                        .is_packed = chosen->decode % 2 == 1};
    const struct plan_layouts layouts = {.of = {cost.prefill, cost.decode},
                                         .decode_is_packed = cost.is_packed};
    struct error ignored;
    bool changes = cost.is_packed || chosen->prefill != chosen->decode / 2;
    if (!is_legal(out, &cost.prefill) || !is_legal(out, &cost.decode) ||
        plan_layouts_check(&layouts, out->problem->shape, &ignored) != STATUS_OK)
        return;
    for (int way = 0; way < PLAN_WAY_COUNT; way++) {
        cost.way = (enum plan_way)way;
        chosen->way = way;
        if (way_is_meant(cost.way, changes, cost.is_packed, out->problem->allows_int4))
            sizes_add(out, &cost, chosen);
    }
}

static void combinations_make(struct program *out)
{
    for (int attention = 0; attention < out->attention_count; attention++) {
        for (int prefill = 0; prefill < out->expert_count; prefill++) {
            for (int decode = 0; decode < 2 * out->expert_count; decode++)
                layouts_add(out, &(struct combination){attention, prefill, decode, 0, 0, 0, 0});
        }
    }
}

/* ---- The program ----------------------------------------------------------------------------- */

static const struct {
    char name;
    size_t offset;
} parts[] = {{'s', offsetof(struct combination, attention)},
             {'p', offsetof(struct combination, prefill)},
             {'d', offsetof(struct combination, decode)},
             {'w', offsetof(struct combination, way)},
             {'z', offsetof(struct combination, size)}};

#define PARTS       (sizeof parts / sizeof *parts)
#define CHOICES_MAX 64

static int part_of(const struct combination *combination, size_t part)
{
    int value;
    memcpy(&value, (const char *)combination + parts[part].offset, sizeof value);
    return value;
}

static bool is_used(const struct program *program, size_t part, int value)
{
    for (int i = 0; i < program->count; i++) {
        if (part_of(&program->of[i], part) == value)
            return true;
    }
    return false;
}

/* One choice of the part; the products with a choice add up to it. */
static void write_part(FILE *out, const struct program *program, size_t part)
{
    fprintf(out, " one%c:", parts[part].name);
    for (int value = 0; value < CHOICES_MAX; value++) {
        if (is_used(program, part, value))
            fprintf(out, " + %c%d_", parts[part].name, value);
    }
    fprintf(out, " = 1\n");
    for (int value = 0; value < CHOICES_MAX; value++) {
        if (!is_used(program, part, value))
            continue;
        fprintf(out, " %c%d:", parts[part].name, value);
        for (int i = 0; i < program->count; i++) {
            if (part_of(&program->of[i], part) == value)
                fprintf(out, " + y%d\n", i);
        }
        fprintf(out, " - %c%d_ = 0\n", parts[part].name, value);
    }
}

/* Of times in `unit`: the solver's tolerances are absolute. */
static void program_write(FILE *out, const struct program *program, double unit)
{
    fprintf(out, "Minimize\n obj:");
    for (int i = 0; i < program->count; i++)
        fprintf(out, " + %.17g y%d\n", program->of[i].seconds / unit, i);
    fprintf(out, "Subject To\n memory:");
    for (int i = 0; i < program->count; i++)
        fprintf(out, " + %.17g y%d\n", program->of[i].memory, i);
    fprintf(out, " <= %.17g\n", (double)program->problem->memory_bytes);
    for (size_t part = 0; part < PARTS; part++)
        write_part(out, program, part);
    fprintf(out, "Binary\n");
    for (int i = 0; i < program->count; i++)
        fprintf(out, " y%d\n", i);
    for (size_t part = 0; part < PARTS; part++) {
        for (int value = 0; value < CHOICES_MAX; value++) {
            if (is_used(program, part, value))
                fprintf(out, " %c%d_\n", parts[part].name, value);
        }
    }
    fprintf(out, "End\n");
}

/* The least objective, as glpsol prints it; infinite where nothing fits. */
static double program_solve(const char *path)
{
    char command[512], line[256];
    double objective = INFINITY;
    bool has_solution = false;
    snprintf(command, sizeof command,
             GLPSOL " --lp %s -o %s.out >/dev/null && grep -E '^(Status|Objective):' %s.out", path,
             path, path);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) {
        has_solution = has_solution || strstr(line, "INTEGER OPTIMAL") != NULL;
        if (strncmp(line, "Objective:", 10) == 0)
            cr_assert_eq(sscanf(line, "Objective: obj = %lf", &objective), 1, "%s", line);
    }
    cr_assert_eq(pclose(pipe), 0, "glpsol failed");
    return has_solution ? objective : INFINITY;
}

/* ---- Both ------------------------------------------------------------------------------------ */

/* Two sizes of passes and of waves, so that none is a matter of course. */
static void problem_draw(struct test_problem *out, struct random *random)
{
    problem_random(out, random);
    out->passes[0] = 256;
    out->passes[1] = 4096;
    out->waves[0] = 4;
    out->waves[1] = 64;
    out->problem.pass_count = out->problem.wave_count = 2;
    out->profile.host_to_device_busy =
        out->profile.host_to_device / (1 + random_unit(random_next(random)));
    out->profile.page_cache_read = 2 * out->profile.disk_read;
    out->profile.cache_bytes = random_below(random, 2) == 0 ? 0 : 1e9;
}

static bool check_against_program(struct random *random, const char *path)
{
    static struct combination combinations[COMBINATIONS_MAX];
    struct test_problem test;
    struct plan_table table;
    struct error err;
    problem_draw(&test, random);
    struct program program = {.problem = &test.problem, .of = combinations};
    choices_make(&program);
    combinations_make(&program);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    double unit = INFINITY;
    for (int i = 0; i < program.count; i++)
        unit = fmin(unit, program.of[i].seconds / 1000);
    program_write(file, &program, unit);
    cr_assert_eq(fclose(file), 0);
    double least = program.count > 0 ? program_solve(path) * unit : INFINITY;
    cr_assert_eq(plan_find(&table, &test.problem, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(table.fastest >= 0, isfinite(least), "the program finds %g, the planner %d", least,
                 table.fastest);
    bool has_plan = table.fastest >= 0;
    if (has_plan) {
        double found = plan_candidate_total(&table.candidates[table.fastest]);
        double chosen = plan_candidate_total(&table.candidates[table.best]);
        cr_assert(fabs(least - found) <= 1e-6 * found, "the program finds %.10g, the planner %.10g",
                  least, found);
        cr_assert_lt(chosen, PLAN_GAIN_WORTH_A_LAYOUT * found);
    }
    plan_table_deinit(&table);
    return has_plan;
}

Test(program, chooses_what_an_integer_program_chooses)
{
    char path[] = "/tmp/phasor-plan-XXXXXX", out[64];
    const char *seed = getenv("PHASOR_TEST_SEED");
    int file = mkstemp(path), solved = 0;
    int count = getenv("PHASOR_TEST_FULL") != NULL ? 1000 : 30;
    struct random random = {.seed = seed == NULL ? 0 : strtoull(seed, NULL, 10)};
    cr_assert_geq(file, 0);
    close(file);
    for (int i = 0; i < count; i++)
        solved += check_against_program(&random, path);
    snprintf(out, sizeof out, "%s.out", path);
    unlink(path);
    unlink(out);
    cr_assert_geq(solved, count / 2, "only %d of %d problems have a plan", solved, count);
    cr_log_info("%d of %d problems have a plan", solved, count);
}
