/* Streams: order, concurrency, the ring, priorities, progress, and how they end. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>

#include "base/memory.h"
#include "base/system.h"
#include "device/thread_team.h"
#include "device_tools.h"

TestSuite(stream, .timeout = 60);

struct journal {
    int count;
    int numbers[MANY_CALLS];
};

struct entry {
    struct journal *journal;
    int number;
};

static enum status write_work(void *argument, struct error *err)
{
    (void)err;
    struct entry *entry = argument;
    entry->journal->numbers[entry->journal->count++] = entry->number;
    return STATUS_OK;
}

Test(stream, runs_in_order_beyond_its_ring)
{
    static struct journal journal;
    struct device *device = device_open(2);
    for (int i = 0; i < MANY_CALLS; i++)
        device->ops->call(device->stream, write_work, &(struct entry){&journal, i},
                          sizeof(struct entry));
    synchronize_ok(device, device->stream);
    cr_assert_eq(journal.count, MANY_CALLS);
    for (int i = 0; i < MANY_CALLS; i++)
        cr_assert_eq(journal.numbers[i], i);
    device_destroy(device);
}

/* The host and the stream at every distance, with and without sleep between. */
Test(stream, bursts_of_every_length)
{
    struct device *device = device_open(1);
    atomic_int count = 0;
    int expected = 0;
    for (int length = 0; length < 600; length += 1 + length / 8) {
        for (int i = 0; i < length; i++)
            put_count(device, device->stream, &count);
        synchronize_ok(device, device->stream);
        expected += length;
        cr_assert_eq(atomic_load(&count), expected);
        if (length % 3 == 0)
            sleep_ms(1);
    }
    device_destroy(device);
}

struct filling {
    struct device *device;
    atomic_int *count;
    atomic_int put;
};

static void *fill(void *context)
{
    struct filling *filling = context;
    for (int i = 0; i < MANY_CALLS; i++) {
        put_count(filling->device, filling->device->stream, filling->count);
        atomic_fetch_add(&filling->put, 1);
    }
    return NULL;
}

Test(stream, a_full_ring_holds_the_host)
{
    struct device *device = device_open(1);
    atomic_int opened = 0, count = 0;
    struct filling filling = {.device = device, .count = &count};
    pthread_t host;
    put_gate(device, device->stream, NULL, &opened);
    cr_assert_eq(pthread_create(&host, NULL, fill, &filling), 0);
    sleep_ms(100);
    cr_assert_lt(atomic_load(&filling.put), 1000);
    cr_assert_eq(atomic_load(&count), 0);
    atomic_store(&opened, 1);
    pthread_join(host, NULL);
    synchronize_ok(device, device->stream);
    cr_assert_eq(atomic_load(&count), MANY_CALLS);
    device_destroy(device);
}

static enum status look_work(void *argument, struct error *err)
{
    unsigned char *bytes = argument;
    for (int i = 0; i < STREAM_CALL_BYTES; i++) {
        if (bytes[i] != (unsigned char)(i * 7))
            return error_set(err, STATUS_INTERNAL, "byte %d of the argument is %d", i, bytes[i]);
        bytes[i] = 0; /* it is the call's own */
    }
    return (uintptr_t)argument % _Alignof(max_align_t) == 0 ? STATUS_OK : STATUS_INTERNAL;
}

Test(stream, the_argument_of_a_call_is_copied)
{
    struct device *device = device_open(1);
    unsigned char bytes[STREAM_CALL_BYTES];
    atomic_int opened = 0;
    put_gate(device, device->stream, NULL, &opened);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < STREAM_CALL_BYTES; i++)
            bytes[i] = (unsigned char)(i * 7);
        device->ops->call(device->stream, look_work, bytes, sizeof bytes);
    }
    memset(bytes, 1, sizeof bytes);
    atomic_store(&opened, 1);
    synchronize_ok(device, device->stream);
    device_destroy(device);
}

Test(stream, two_run_at_the_same_time)
{
    struct device *device = device_open(1);
    struct stream *other = stream_open(device, STREAM_NORMAL);
    atomic_int first = 0, second = 0;
    put_gate(device, device->stream, &first, &second); /* each opens the other's gate */
    put_gate(device, other, &second, &first);
    synchronize_ok(device, device->stream);
    synchronize_ok(device, other);
    device->ops->stream_destroy(device, other);
    device_destroy(device);
}

Test(stream, every_stream_computes)
{
    struct device *device = device_open(2);
    struct stream *streams[3] = {device->stream, stream_open(device, STREAM_NORMAL),
                                 stream_open(device, STREAM_LOW)};
    static float out[3][64 * 1000], in[64 * 1000];
    for (int i = 0; i < 64 * 1000; i++)
        in[i] = (float)i;
    for (int s = 0; s < 3; s++) {
        for (int round = 0; round < 3; round++)
            device->ops->add(streams[s], &(struct op_add){out[s], in, 1000, 64});
    }
    for (int s = 0; s < 3; s++) {
        synchronize_ok(device, streams[s]);
        for (int i = 0; i < 64 * 1000; i++)
            cr_assert_eq(out[s][i], 3 * in[i]);
    }
    device->ops->stream_destroy(device, streams[1]);
    device->ops->stream_destroy(device, streams[2]);
    device->ops->stream_destroy(device, NULL);
    device_destroy(device);
}

struct thread_facts {
    int policy, nice, cpu_count, cpu;
    pthread_t thread;
};

static enum status facts_work(void *argument, struct error *err)
{
    struct thread_facts *facts = *(struct thread_facts **)argument;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return error_set(err, STATUS_INTERNAL, "no affinity");
    facts->policy = sched_getscheduler(0);
    facts->nice = getpriority(PRIO_PROCESS, 0);
    facts->cpu_count = CPU_COUNT(&set);
    facts->thread = pthread_self();
    for (facts->cpu = 0; !CPU_ISSET(facts->cpu, &set); facts->cpu++)
        ;
    return STATUS_OK;
}

static struct thread_facts facts_of(struct device *device, struct stream *stream)
{
    struct thread_facts facts, *to = &facts;
    device->ops->call(stream, facts_work, &to, sizeof to);
    synchronize_ok(device, stream);
    return facts;
}

Test(stream, a_low_one_is_low)
{
    struct device *device = device_open(1);
    struct stream *low = stream_open(device, STREAM_LOW);
    struct stream *normal = stream_open(device, STREAM_NORMAL);
    struct thread_facts facts = facts_of(device, low);
    cr_assert(facts.policy == SCHED_IDLE || facts.nice == 19, "policy %d, nice %d", facts.policy,
              facts.nice);
    cr_assert_eq(facts.policy, SCHED_IDLE); /* Linux refuses it to nobody */
    cr_assert_neq(facts_of(device, normal).policy, SCHED_IDLE);
    cr_assert_neq(facts_of(device, device->stream).policy, SCHED_IDLE);
    device->ops->stream_destroy(device, low);
    device->ops->stream_destroy(device, normal);
    device_destroy(device);
}

static void facts_each(void *context, int worker)
{
    struct thread_facts *facts = (struct thread_facts *)context + worker;
    struct error err;
    facts->cpu = facts_work(&facts, &err) == STATUS_OK ? facts->cpu : -1;
}

/* Of the CPUs that may be used, the last two. */
Test(stream, a_share_of_the_cpus_is_pinned)
{
    int cpu_count = thread_team_cpu_count();
    if (cpu_count < 2)
        cr_skip_test("one CPU");
    cpu_set_t allowed;
    int last = -1, before = -1;
    cr_assert_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            before = last;
            last = cpu;
        }
    }
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = 2, .first_cpu = cpu_count - 2};
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    struct thread_facts facts[2];
    device->ops->host_run(device, facts_each, facts);
    cr_assert(facts[0].cpu_count == 1 && facts[0].cpu == before, "%d", facts[0].cpu);
    cr_assert(facts[1].cpu_count == 1 && facts[1].cpu == last, "%d", facts[1].cpu);
    struct stream *beside = stream_open(device, STREAM_NORMAL);
    cr_assert_eq(facts_of(device, beside).cpu_count, cpu_count);
    device->ops->stream_destroy(device, beside);
    device_destroy(device);

    device = device_open(2);
    device->ops->host_run(device, facts_each, facts);
    cr_assert(facts[0].cpu_count == cpu_count && facts[1].cpu_count == cpu_count);
    cr_assert_eq(thread_team_cpu_count(), cpu_count);
    device_destroy(device);
}

Test(stream, host_work_runs_on_the_devices_threads)
{
    struct device *device = device_open(3);
    struct thread_facts facts[3];
    cr_assert_eq(device->ops->host_workers(device), 3);
    device->ops->host_run(device, facts_each, facts);
    cr_assert(pthread_equal(facts[0].thread, facts_of(device, device->stream).thread));
    for (int i = 0; i < 3; i++) {
        cr_assert(!pthread_equal(facts[i].thread, pthread_self()));
        cr_assert(!pthread_equal(facts[i].thread, facts[(i + 1) % 3].thread));
    }
    device_destroy(device);
}

struct observation {
    const struct device *device;
    atomic_int stop;
    int fell;
    uint64_t last;
};

static void *observe(void *context)
{
    struct observation *observation = context;
    while (!atomic_load(&observation->stop)) {
        uint64_t now = observation->device->ops->progress(observation->device->stream);
        observation->fell += now < observation->last;
        observation->last = now;
    }
    return NULL;
}

Test(stream, progress_grows_and_never_falls)
{
    struct device *device = device_open(2);
    static char from[8 << 20], to[8 << 20];
    struct observation observation = {.device = device};
    atomic_int count = 0;
    pthread_t observer;
    cr_assert_eq(pthread_create(&observer, NULL, observe, &observation), 0);
    uint64_t before = device->ops->progress(device->stream);
    for (int i = 0; i < 300; i++)
        put_count(device, device->stream, &count);
    synchronize_ok(device, device->stream);
    uint64_t after = device->ops->progress(device->stream);
    cr_assert_geq(after, before + 300);
    for (int i = 0; i < 10; i++)
        device->ops->copy(device->stream, &(struct op_copy){to, from, sizeof from});
    synchronize_ok(device, device->stream);
    cr_assert_geq(device->ops->progress(device->stream), after + 10 * 32, "pieces count");
    atomic_store(&observation.stop, 1);
    pthread_join(observer, NULL);
    cr_assert_eq(observation.fell, 0);
    device_destroy(device);
}

Test(stream, progress_moves_within_an_operation)
{
    struct device *device = device_open(1);
    size_t bytes = 64 << 20;
    void *from = memory_alloc(bytes, 1), *to = memory_alloc(bytes, 1);
    cr_assert(from != NULL && to != NULL);
    atomic_int opened = 0, entered = 0, done = 0;
    put_gate(device, device->stream, &entered, &opened);
    device->ops->copy(device->stream, &(struct op_copy){to, from, (int64_t)bytes});
    put_count(device, device->stream, &done);
    cr_assert(flag_wait(&entered, 1));
    uint64_t start = device->ops->progress(device->stream), last = start;
    int steps = 0;
    atomic_store(&opened, 1);
    while (!atomic_load(&done)) {
        uint64_t now = device->ops->progress(device->stream);
        steps += now != last;
        last = now;
    }
    synchronize_ok(device, device->stream);
    /* One for the gate and one for the copy would be 2. */
    cr_assert_gt(steps, 2);
    memory_free(from);
    memory_free(to);
    device_destroy(device);
}

static enum status nap(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    sleep_ms(20);
    return STATUS_OK;
}

Test(stream, time_counts_for_the_stage_that_stands)
{
    struct device *device = device_open(2);
    struct stage_total totals[DEVICE_STAGES];
    double before = system_seconds();
    device->ops->stage(device->stream, 3, -1);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->stage(device->stream, DEVICE_STAGES - 1, -1);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->stage(device->stream, 3, -1);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->stage(device->stream, 0, -1);
    synchronize_ok(device, device->stream);
    double whole = system_seconds() - before;
    device->ops->stage_totals(device->stream, totals);
    cr_expect_geq(totals[3].seconds, 0.04);
    cr_expect_geq(totals[DEVICE_STAGES - 1].seconds, 0.04);
    cr_expect_leq(totals[3].seconds + totals[DEVICE_STAGES - 1].seconds, whole);
    for (int stage = 1; stage < DEVICE_STAGES - 1; stage++)
        cr_expect(stage == 3 || totals[stage].seconds == 0, "%d", stage);
    device_destroy(device);
}

Test(stream, destroying_runs_what_is_queued)
{
    uint64_t live = memory_counters_get().live_count;
    for (int of_device = 0; of_device < 2; of_device++) {
        struct device *device = device_open(2);
        struct stream *stream = of_device ? device->stream : stream_open(device, STREAM_LOW);
        atomic_int opened = 0, count = 0;
        put_gate(device, stream, NULL, &opened);
        for (int i = 0; i < 200; i++)
            put_count(device, stream, &count);
        atomic_store(&opened, 1);
        if (!of_device) {
            device->ops->stream_destroy(device, stream);
            cr_assert_eq(atomic_load(&count), 200);
        }
        device_destroy(device);
        cr_assert_eq(atomic_load(&count), 200);
    }
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(stream, opens_and_closes_at_once)
{
    uint64_t live = memory_counters_get().live_count;
    for (int i = 0; i < 50; i++) {
        struct device *device = device_open(1 + i % 3);
        struct stream *stream = stream_open(device, i % 2 ? STREAM_LOW : STREAM_NORMAL);
        if (i % 5 == 0)
            sleep_ms(1);
        device->ops->stream_destroy(device, stream);
        device_destroy(device);
    }
    device_destroy(NULL);
    cr_assert_eq(memory_counters_get().live_count, live);
}

static enum status all_create(struct device **device, struct stream **stream, struct event **event,
                              void **memory, struct error *err)
{
    struct cpu_share share = {.thread_count = 3, .first_cpu = -1};
    TRY(device_cpu_create(device, &share, err));
    TRY((*device)->ops->stream_create(*device, stream, STREAM_LOW, err));
    TRY((*device)->ops->event_create(*device, event, err));
    TRY((*device)->ops->memory_get(*device, memory, 5000, "a test", err));
    return STATUS_OK;
}

Test(stream, each_allocation_may_fail)
{
    uint64_t live = memory_counters_get().live_count;
    enum status status = STATUS_NO_MEMORY;
    for (uint64_t n = 1; status != STATUS_OK; n++) {
        struct device *device = NULL;
        struct stream *stream = NULL;
        struct event *event = NULL;
        void *memory = NULL;
        struct error err;
        memory_fail_at(n, 0);
        status = all_create(&device, &stream, &event, &memory, &err);
        memory_fail_at(0, 0);
        cr_assert(status == STATUS_OK ? n > 7 : status == STATUS_NO_MEMORY, "%d at %d", (int)status,
                  (int)n);
        if (device != NULL) {
            device->ops->memory_free(device, memory);
            device->ops->event_destroy(device, event);
            device->ops->stream_destroy(device, stream);
            device_destroy(device);
        }
        cr_assert_eq(memory_counters_get().live_count, live, "at %d", (int)n);
    }
}
