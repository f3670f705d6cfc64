#define _GNU_SOURCE
#include "comm/box.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/memory.h"
#include "comm_tools.h"
#include "device/thread_team.h"

/* ---- Opening ----------------------------------------------------------------------------------
 */

Test(box, refuses_numbers_of_ranks)
{
    struct box *box = NULL;
    struct error err;
    int refused[] = {-1, 0, COMM_RANKS_MAX + 1};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(box_open(&box, &(struct box_params){.rank_count = refused[i]}, &err),
                     STATUS_INVALID_ARGUMENT);
        cr_assert_not_null(strstr(err.message, "1 to 64"), "%s", err.message);
        cr_assert_null(box);
    }
    box_close(NULL);
}

/* Sums to what was asked for, and nobody is without a thread. */
static void check_shares(int rank_count, int thread_count, int expected)
{
    struct box *box;
    struct error err;
    struct box_params params = {.rank_count = rank_count, .thread_count = thread_count};
    cr_assert_eq(box_open(&box, &params, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(box_rank_count(box), rank_count);
    int total = 0, most = 0, least = 1000;
    for (int r = 0; r < rank_count; r++) {
        int count = box_device(box, r)->ops->host_workers(box_device(box, r));
        total += count;
        most = count > most ? count : most;
        least = count < least ? count : least;
    }
    cr_assert_eq(total, expected, "%d ranks, %d threads: %d", rank_count, thread_count, total);
    cr_assert(least >= 1 && most - least <= 1);
    box_close(box);
}

Test(box, shares_its_threads_evenly)
{
    int cpu_count = thread_team_cpu_count();
    check_shares(1, 0, cpu_count);
    check_shares(1, 3, 3);
    check_shares(3, 8, 8);
    check_shares(4, 2, 4);
    check_shares(cpu_count + 1, 0, cpu_count + 1);
    check_shares(2, 2, 2);
}

/* ---- Which CPUs the ranks run on --------------------------------------------------------------
 */

struct affinity {
    struct box *box;
    cpu_set_t sets[COMM_RANKS_MAX];
};

static enum status affinity_read(void *argument, struct error *err)
{
    cpu_set_t *set = *(cpu_set_t **)argument;
    if (sched_getaffinity(0, sizeof *set, set) != 0)
        return error_set(err, STATUS_IO, "sched_getaffinity");
    return STATUS_OK;
}

static enum status affinity_rank(void *context, int rank, struct error *err)
{
    struct affinity *affinity = context;
    struct device *device = box_device(affinity->box, rank);
    cpu_set_t *set = &affinity->sets[rank];
    device->ops->call(device->stream, affinity_read, &set, sizeof set);
    return device->ops->synchronize(device->stream, err);
}

static void affinity_fill(struct affinity *out, int rank_count)
{
    out->box = test_box_open(rank_count, FOREVER);
    test_box_run(out->box, affinity_rank, out);
    box_close(out->box);
}

Test(box, pins_its_threads_where_each_has_a_cpu)
{
    static struct affinity affinity;
    int cpu_count = thread_team_cpu_count();
    if (cpu_count > COMM_RANKS_MAX)
        cr_skip_test("%d CPUs are more than ranks", cpu_count);
    affinity_fill(&affinity, cpu_count);
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int r = 0; r < cpu_count; r++) {
        cr_assert_eq(CPU_COUNT(&affinity.sets[r]), 1, "rank %d", r);
        CPU_OR(&all, &all, &affinity.sets[r]);
    }
    cr_assert_eq(CPU_COUNT(&all), cpu_count);
}

Test(box, does_not_pin_threads_that_share_cpus)
{
    static struct affinity affinity;
    int cpu_count = thread_team_cpu_count();
    if (cpu_count >= COMM_RANKS_MAX)
        cr_skip_test("%d CPUs are not fewer than ranks", cpu_count);
    affinity_fill(&affinity, cpu_count + 1);
    for (int r = 0; r <= cpu_count; r++)
        cr_assert_eq(CPU_COUNT(&affinity.sets[r]), cpu_count, "rank %d", r);
}

/* ---- Running ----------------------------------------------------------------------------------
 */

struct visit {
    pthread_t threads[5];
    int calls[5];
};

static enum status visit_rank(void *context, int rank, struct error *err)
{
    struct visit *visit = context;
    (void)err;
    visit->threads[rank] = pthread_self();
    visit->calls[rank]++;
    return STATUS_OK;
}

Test(box, runs_each_rank_on_its_host_thread)
{
    struct box *box = test_box_open(5, FOREVER);
    struct visit first = {0}, second = {0};
    test_box_run(box, visit_rank, &first);
    test_box_run(box, visit_rank, &second);
    cr_assert(pthread_equal(first.threads[0], pthread_self()));
    for (int r = 0; r < 5; r++) {
        cr_assert_eq(first.calls[r] + second.calls[r], 2);
        cr_assert(pthread_equal(first.threads[r], second.threads[r]));
        for (int other = 0; other < r; other++)
            cr_assert(!pthread_equal(first.threads[r], first.threads[other]));
    }
    cr_assert_eq(comm_domain_failure(box_domain(box), NULL), STATUS_OK);
    box_close(box);
}

/* ---- Without memory ---------------------------------------------------------------------------
 */

static enum status open_with_comms(struct box **box, struct comm **comms, struct error *err)
{
    enum status status;
    TRY(box_open(box, &(struct box_params){.rank_count = 3, .thread_count = 4}, err));
    TRY_GOTO(comm_create(comms, box_domain(*box), (int[]){0, 1, 2}, 3, err), no_first);
    TRY_GOTO(comm_create(comms + 3, box_domain(*box), (int[]){2, 0}, 2, err), no_second);
    return STATUS_OK;

no_second:
    test_comms_destroy(comms, 3);
no_first:
    box_close(*box);
    return status;
}

Test(box, each_allocation_may_fail)
{
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        struct box *box;
        struct comm *comms[5];
        struct error err = {.message = ""};
        memory_fail_at(n, 0);
        enum status status = open_with_comms(&box, comms, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            cr_assert(n > 8, "only %d allocations", (int)n - 1);
            test_comms_destroy(comms, 5);
            box_close(box);
        } else {
            cr_assert_eq(status, STATUS_NO_MEMORY);
            cr_assert_not_null(strstr(err.message, "cannot allocate"), "%s", err.message);
        }
        cr_assert_eq(memory_counters_get().live_count, live, "n = %d", (int)n);
        if (status == STATUS_OK)
            return;
    }
}
