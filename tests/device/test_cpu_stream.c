/* What only streams of the CPU device have: their threads, and pieces of operations. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "device/cpu_places.h"
#include "device/thread_team.h"
#include "device_tools.h"

TestSuite(cpu_stream, .timeout = 60);

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

Test(cpu_stream, a_low_one_is_low)
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
Test(cpu_stream, a_share_of_the_cpus_is_pinned)
{
    int cpu_count = thread_team_cpu_count();
    if (cpu_count < 2)
        cr_skip_test("one CPU");
    cpu_set_t allowed;
    cr_assert_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int before = cpu_of_set(&allowed, cpu_count - 2), last = cpu_of_set(&allowed, cpu_count - 1);
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

Test(cpu_stream, host_work_runs_on_the_devices_threads)
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

Test(cpu_stream, progress_grows_and_never_falls)
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
        device->ops->copy(device->stream,
                          &(struct op_copy){.out = to, .in = from, .bytes = sizeof from});
    synchronize_ok(device, device->stream);
    cr_assert_geq(device->ops->progress(device->stream), after + 10 * 32, "pieces count");
    atomic_store(&observation.stop, 1);
    pthread_join(observer, NULL);
    cr_assert_eq(observation.fell, 0);
    device_destroy(device);
}

#define COPY_BYTES ((size_t)8 << 20)
#define LOOKS      4

/* What is copied cannot be read at first: whoever comes to a quarter of it looks, and opens it. */
static struct {
    struct device *device;
    char *from;
    int count; /* of looks */
    uint64_t seen[LOOKS];
} within;

static void look_and_open(int number, siginfo_t *info, void *context)
{
    size_t quarter = COPY_BYTES / LOOKS, at = (size_t)((char *)info->si_addr - within.from);
    (void)number, (void)context;
    if (at >= COPY_BYTES || within.count == LOOKS)
        _exit(1);
    within.seen[within.count++] = within.device->ops->progress(within.device->stream);
    mprotect(within.from + at / quarter * quarter, quarter, PROT_READ);
}

Test(cpu_stream, progress_moves_within_an_operation)
{
    struct sigaction action = {.sa_sigaction = look_and_open, .sa_flags = SA_SIGINFO};
    static char to[COPY_BYTES];
    within.device = device_open(1);
    within.from = mmap(NULL, COPY_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(within.from != MAP_FAILED);
    cr_assert_eq(sigaction(SIGSEGV, &action, NULL), 0);
    within.device->ops->copy(
        within.device->stream,
        &(struct op_copy){.out = to, .in = within.from, .bytes = (int64_t)COPY_BYTES});
    synchronize_ok(within.device, within.device->stream);
    cr_assert_eq(within.count, LOOKS);
    for (int i = 1; i < LOOKS; i++)
        cr_assert_gt(within.seen[i], within.seen[i - 1], "at quarter %d", i);
    munmap(within.from, COPY_BYTES);
    device_destroy(within.device);
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

Test(cpu_stream, each_allocation_may_fail)
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

/* A thread whose stack is larger than the address space is refused. */
Test(cpu_stream, whose_thread_cannot_start)
{
    uint64_t live = memory_counters_get().live_count;
    struct device *device = device_open(1);
    struct stream *stream = NULL;
    struct error err;
    pthread_attr_t usual, huge;
    cr_assert_eq(pthread_getattr_default_np(&usual), 0);
    pthread_attr_init(&huge);
    cr_assert_eq(pthread_attr_setstacksize(&huge, (size_t)1 << 50), 0);
    cr_assert_eq(pthread_setattr_default_np(&huge), 0);
    cr_assert_eq(device->ops->stream_create(device, &stream, STREAM_LOW, &err), STATUS_IO);
    pthread_setattr_default_np(&usual);
    cr_assert_not_null(strstr(err.message, "cannot start the thread of a stream"), "%s",
                       err.message);
    cr_assert_null(stream);
    device_destroy(device);
    cr_assert_eq(memory_counters_get().live_count, live);
}
