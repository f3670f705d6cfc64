#include "contracts.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "checks.h"

static check_fn *const checks[OP_COUNT] = {
    [OP_EMBED] = check_embed,
    [OP_RMS_NORM] = check_rms_norm,
    [OP_ADD] = check_add,
    [OP_MATMUL] = check_matmul,
    [OP_ROPE_APPEND] = check_rope_append,
    [OP_ATTENTION] = check_attention,
    [OP_ROUTE] = check_route,
    [OP_DISPATCH] = check_dispatch,
    [OP_GROUP] = check_group,
    [OP_FFN_UP] = check_ffn_up,
    [OP_FFN_DOWN] = check_ffn_down,
    [OP_COMBINE] = check_combine,
    [OP_CHOOSE] = check_choose,
    [OP_CANDIDATES] = check_candidates,
    [OP_SHARED_ADD] = check_shared_add,
    [OP_GATHER] = check_gather,
    [OP_DEQUANTIZE] = check_dequantize,
    [OP_COPY] = check_copy,
    [OP_FILL] = check_fill,
};

/* ---- Bit for bit --------------------------------------------------------------------------- */

struct bits {
    void *data[4];
};

static struct bits bits_take(const struct workload *w)
{
    struct bits bits = {{NULL}};
    for (int i = 0; i < w->output_count; i++) {
        bits.data[i] = memory_alloc_raw(w->outputs[i].bytes, 1);
        cr_assert_not_null(bits.data[i]);
        memcpy(bits.data[i], w->outputs[i].data, w->outputs[i].bytes);
    }
    return bits;
}

static void bits_check(const struct bits *bits, const struct workload *w, const char *name,
                       const char *how, int number)
{
    for (int i = 0; i < w->output_count; i++)
        cr_assert(memcmp(bits->data[i], w->outputs[i].data, w->outputs[i].bytes) == 0,
                  "%s: output %d differs with %s (%d)", name, i, how, number);
}

static void prepare(const struct contract_ways *ways, struct workload *w, int way)
{
    workload_reset(w);
    if (ways->prepare != NULL)
        ways->prepare(way);
}

static void check_bits(const struct contract_ways *ways, struct workload *w, int alone_count,
                       const char *name)
{
    prepare(ways, w, 0);
    workload_launch(w, ways->devices[0]);
    struct bits bits = bits_take(w);
    for (int way = 1; way < ways->count; way++) {
        prepare(ways, w, way);
        workload_launch(w, ways->devices[way]);
        bits_check(&bits, w, name, "another way to run it", way);
    }
    for (int way = 0; w->row_count > 0 && way < alone_count; way++) {
        prepare(ways, w, way);
        for (int64_t row = w->row_count - 1; row >= 0; row--)
            workload_launch_row(w, ways->devices[way], row);
        bits_check(&bits, w, name, "each row alone", way);
    }
    for (int i = 0; i < 4; i++)
        memory_free(bits.data[i]);
}

/* ---- Every case ---------------------------------------------------------------------------- */

static void check_case(const struct contract_ways *ways, enum kernel_op op,
                       const struct kernel_case *c, int alone_count, const char *name)
{
    struct workload workload;
    workload_create(&workload, op, c);
    workload.takes_pairs = ways->takes_pairs;
    workload.takes_halves = ways->takes_halves;
    workload.widens_int4 = ways->widens_int4;
    workload.head_dim_pairs = ways->head_dim_pairs;
    if (ways->prepare != NULL)
        ways->prepare(0);
    checks[op](&workload, ways->devices[0], name);
    if (ways->count > 1 || alone_count > 0)
        check_bits(ways, &workload, alone_count, name);
    workload_destroy(&workload);
}

/* At least one of an operation's is. */
static bool is_alone(const struct contract_ways *ways, int number, int count)
{
    int first = ways->alone_first % count;
    return number >= first && (number - first) % ways->alone_step == 0;
}

static int count_for_test(const struct case_list *list)
{
    int count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += list->cases[i].use == FOR_TEST;
    return count;
}

void contracts_check(const struct contract_ways *ways, enum kernel_op op)
{
    int number = 0, count = count_for_test(case_lists[op]);
    cr_assert_gt(count, 0);
    for (size_t i = 0; i < case_lists[op]->count; i++) {
        const struct kernel_case *c = &case_lists[op]->cases[i];
        char name[256];
        int used = snprintf(name, sizeof name, "%s, case %zu: ", ways->name, i);
        if (c->use != FOR_TEST)
            continue;
        case_describe(name + used, sizeof name - (size_t)used, op, c);
        check_case(ways, op, c, is_alone(ways, number++, count) ? ways->alone_count : 0, name);
    }
}
