/* What there is of NCCL to run on one GPU: a communicator of one member. Boxes join such a rank by
 * copies; here its group is made for NCCL by hand, and all that nccl.c does for two it does for
 * one: it joins, launches, looks after the launch, and ends or aborts it. On emulated GPUs by the
 * stub, on a machine's own by the NCCL that it has. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "comm/nccl.h"
#include "comm_tools.h"
#include "device_bytes.h"
#include "gpu.h"

TestSuite(nccl_alone, .timeout = 120);

#define BYTES  ((int64_t)1 << 20)
#define ROUNDS 3

struct alone {
    struct box *box;
    struct device *device;
    struct comm *comm;
    unsigned char *sent, *came; /* BYTES of the host's */
    void *in, *out;             /* of the GPU's */
};

/* Where the machine has none there is nothing to test. */
static const struct nccl_library *library_find(void)
{
    const struct nccl_library *library = NULL;
    struct error err;
    enum status status = nccl_library_get(&library, &err);
    if (status == STATUS_NOT_FOUND)
        cr_skip_test("%s", err.message);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    return library;
}

/* As comm_create of ranks that NCCL joins. */
static struct comm *comm_open(struct comm_domain *domain)
{
    struct comm_group *group;
    struct error err;
    cr_assert_eq(
        memory_get((void **)&group, 1, sizeof *group + sizeof group->ends[0], "a test", &err),
        STATUS_OK);
    group->domain = domain;
    group->backend = &comm_backend_nccl;
    group->size = 1;
    atomic_init(&group->ends_left, 1);
    group->ends[0].group = group;
    cr_assert_eq(group->backend->init(group, &err), STATUS_OK, "%s", err.message);
    cr_assert(group->is_joined);
    domain_add(domain, group);
    return &group->ends[0];
}

static void *gpu_copy(struct device *device, const void *in)
{
    struct error err;
    void *out;
    cr_assert_eq(device->ops->memory_get(device, &out, BYTES, "a test", &err), STATUS_OK, "%s",
                 err.message);
    device_write(device, out, in, BYTES);
    return out;
}

static struct alone alone_open(void)
{
    static const struct log_sink silence;
    struct box_params params = {.rank_count = 1, .thread_count = 1, .gpus = (const int[]){0}};
    const struct nccl_library *library = library_find();
    struct alone alone;
    struct error err;
    gpu_count_use(1);
    cr_assert_eq(box_open(&alone.box, &params, &err), STATUS_OK, "%s", err.message);
    struct comm_domain *domain = box_domain(alone.box);
    cr_assert_null(domain->nccl);
    cr_assert_eq(nccl_domain_create(&domain->nccl, domain, library, &silence, &err), STATUS_OK,
                 "%s", err.message);
    alone.device = box_device(alone.box, 0);
    alone.comm = comm_open(domain);
    alone.sent = memory_alloc_raw(BYTES, 2);
    cr_assert_not_null(alone.sent);
    alone.came = alone.sent + BYTES;
    for (int64_t i = 0; i < BYTES; i++)
        alone.sent[i] = (unsigned char)(i % 251 + 1);
    memset(alone.came, 0, BYTES);
    alone.in = gpu_copy(alone.device, alone.sent);
    alone.out = gpu_copy(alone.device, alone.came);
    return alone;
}

static void alone_close(struct alone *alone)
{
    alone->device->ops->memory_free(alone->device, alone->in);
    alone->device->ops->memory_free(alone->device, alone->out);
    comm_destroy(alone->comm);
    box_close(alone->box);
    memory_free(alone->sent);
    gpu_check_nothing_left();
}

static enum status gather(struct alone *alone, void *out, const void *in, struct error *err)
{
    static const int64_t counts[] = {BYTES};
    struct stream *stream = alone->device->stream;
    comm_all_gather(alone->comm, stream, &(struct comm_all_gather){out, in, counts, 0});
    return alone->device->ops->synchronize(stream, err);
}

static void gather_well(struct alone *alone)
{
    struct error err;
    cr_assert_eq(gather(alone, alone->out, alone->in, &err), STATUS_OK, "%s", err.message);
}

Test(nccl_alone, brings_what_is_gathered)
{
    struct alone alone = alone_open();
    for (int round = 0; round < ROUNDS; round++) {
        struct error err;
        gather_well(&alone);
        cr_assert_eq(gather(&alone, alone.out, alone.out, &err), STATUS_OK, "%s", err.message);
        device_read(alone.device, alone.came, alone.out, BYTES);
        cr_assert_arr_eq(alone.came, alone.sent, BYTES);
        memset(alone.came, 0, BYTES);
        device_write(alone.device, alone.out, alone.came, BYTES);
    }
    cr_assert_eq(comm_domain_failure(box_domain(alone.box), NULL), STATUS_OK);
    alone_close(&alone);
}

/* A second one beside it, by which nothing has been brought. */
Test(nccl_alone, two_communicators)
{
    struct alone alone = alone_open();
    struct comm *first = alone.comm, *second = comm_open(box_domain(alone.box));
    gather_well(&alone);
    alone.comm = second;
    gather_well(&alone);
    comm_destroy(first);
    gather_well(&alone);
    comm_destroy(comm_open(box_domain(alone.box)));
    alone_close(&alone);
}

/* When the run ends it is aborted by who watches; what comes then says why. */
Test(nccl_alone, is_aborted)
{
    struct alone alone = alone_open();
    struct comm_domain *domain = box_domain(alone.box);
    struct error cause, err;
    gather_well(&alone);
    error_set(&cause, STATUS_IO, "injected");
    comm_domain_abort(domain, 0, &cause);
    cr_assert_eq(gather(&alone, alone.out, alone.in, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "rank 0: injected");
    for (int i = 0; i < 10000; i++) {
        pthread_mutex_lock(&alone.comm->nccl->lock);
        bool is_gone = alone.comm->nccl->handle == NULL;
        pthread_mutex_unlock(&alone.comm->nccl->lock);
        if (is_gone)
            break;
        sleep_microseconds(1000);
    }
    cr_assert_null(nccl_end_take(alone.comm->nccl));
    alone_close(&alone);
}

Test(nccl_alone, is_destroyed_unused)
{
    struct alone alone = alone_open();
    alone_close(&alone);
}
