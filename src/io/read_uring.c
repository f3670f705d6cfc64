/* io_uring: requests go into a ring that the kernel reads, results come from another. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "base/memory.h"
#include "io/uring_calls.h"

struct uring {
    const struct uring_calls *calls;
    struct uring_ring *ring;
    int files[2]; /* cached, direct; or one for both */
    bool has_files, has_buffers;
};

/* ---- What to do about a refusal -------------------------------------------------------------- */

/* 0, 1 (the members of one group may) or 2; -1 where the kernel has no such switch. */
static int disabled_by_sysctl(void)
{
    int disabled = -1;
    FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &disabled) != 1)
        disabled = -1;
    fclose(file);
    return disabled;
}

/* What Linux lets each user lock since 5.16: a smaller limit somebody has set, and may raise. */
#define USUAL_LIMIT_BYTES ((rlim_t)8 << 20)

static bool locked_limit_is_usual(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur >= USUAL_LIMIT_BYTES;
}

static void locked_limit_print(char *out, size_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        snprintf(out, size, "there is no limit of locked memory");
    else
        snprintf(out, size, "the limit of locked memory is %llu KiB (ulimit -l, LimitMEMLOCK=)",
                 (unsigned long long)limit.rlim_cur >> 10);
}

static enum status not_usable(int failure, struct error *err)
{
    char cure[160];
    if ((failure == EPERM || failure == EACCES) && disabled_by_sysctl() > 0)
        snprintf(cure, sizeof cure, "sysctl kernel.io_uring_disabled is %d; 0 allows it",
                 disabled_by_sysctl());
    else if (failure == EPERM || failure == EACCES || failure == ENOSYS)
        snprintf(cure, sizeof cure,
                 "the kernel has none, or a container forbids it: let its seccomp profile allow "
                 "io_uring_setup, io_uring_enter and io_uring_register");
    else if (failure == ENOMEM)
        locked_limit_print(cure, sizeof cure);
    else if (failure == EMFILE || failure == ENFILE)
        snprintf(cure, sizeof cure, "raise the limit of open files (%s)",
                 failure == EMFILE ? "ulimit -n, LimitNOFILE=" : "sysctl fs.file-max");
    else
        snprintf(cure, sizeof cure, "Linux 5.6 or later has what is needed");
    return error_set(err, STATUS_UNSUPPORTED, "io_uring cannot be used (%s): %s", strerror(failure),
                     cure);
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Registered files save looking them up at each request. Nobody needs to know of a refusal. */
static void register_files(struct uring *uring, const struct read_target *target)
{
    uring->files[0] = target->fd;
    uring->files[1] = target->direct_fd >= 0 ? target->direct_fd : target->fd;
    uring->has_files = uring->calls->register_files(uring->ring, uring->files, 2) == 0;
    for (int i = 0; uring->has_files && i < 2; i++)
        uring->files[i] = i;
}

/* Behind what is noted of the file. */
static void note_unregistered(struct read_target *target, const struct read_queue_params *params,
                              int failure)
{
    char limit[100];
    size_t length = strlen(target->note);
    locked_limit_print(limit, sizeof limit);
    target->note_is_usual = length == 0 && locked_limit_is_usual();
    snprintf(target->note + length, sizeof target->note - length,
             "%sthe kernel does not keep hold of the buffers (%zu KiB, %s): %s",
             length > 0 ? "; " : "", (size_t)params->buffer_count * params->buffer_bytes >> 10,
             strerror(failure), limit);
}

/* Registered buffers save pinning their pages at each request. */
static enum status register_buffers(struct uring *uring, const struct read_queue_params *params,
                                    struct read_target *target, struct error *err)
{
    struct iovec *vectors;
    TRY(memory_get((void **)&vectors, (size_t)params->buffer_count, sizeof *vectors,
                   "registering buffers", err));
    for (int i = 0; i < params->buffer_count; i++)
        vectors[i] = (struct iovec){target->buffers + (size_t)i * params->buffer_bytes,
                                    params->buffer_bytes};
    int failure =
        uring->calls->register_buffers(uring->ring, vectors, (unsigned)params->buffer_count);
    memory_free(vectors);
    target->is_registered = uring->has_buffers = failure == 0;
    if (failure != 0)
        note_unregistered(target, params, -failure);
    return STATUS_OK;
}

static enum status uring_open(void **out, const struct read_queue_params *params,
                              struct read_target *target, struct error *err)
{
    struct uring *uring;
    const struct uring_calls *calls = params->uring == NULL ? uring_calls_system() : params->uring;
    if (calls == NULL)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "io_uring cannot be used: phasor was built without liburing (on Debian and "
            "Ubuntu: apt-get install liburing-dev, then build again)");
    TRY(memory_get((void **)&uring, 1, sizeof *uring, "io_uring", err));
    uring->calls = calls;
    int failure = calls->setup(&uring->ring, (unsigned)target->request_count);
    enum status status = failure == 0 ? STATUS_OK : not_usable(-failure, err);
    if (status != STATUS_OK)
        goto free_uring;
    register_files(uring, target);
    TRY_GOTO(register_buffers(uring, params, target, err), exit_ring);
    *out = uring;
    return STATUS_OK;

exit_ring:
    calls->exit(uring->ring);
free_uring:
    memory_free(uring);
    return status;
}

/* The kernel would go on with what is in flight after the ring is closed: where that is something,
 * the ring stays. */
static void uring_close(void *backend, bool is_abandoned)
{
    struct uring *uring = backend;
    if (is_abandoned)
        return;
    uring->calls->exit(uring->ring);
    memory_free(uring);
}

/* ---- Requests -------------------------------------------------------------------------------- */

static int uring_begin(void *backend, const struct read_request *request)
{
    struct uring *uring = backend;
    return uring->calls->read(uring->ring, request, uring->files[request->is_direct],
                              uring->has_files, uring->has_buffers ? request->buffer : -1);
}

static int uring_next(void *backend, struct read_result *out, double seconds)
{
    struct uring *uring = backend;
    return uring->calls->next(uring->ring, out, seconds);
}

const struct read_backend_ops read_uring = {uring_open, uring_close, uring_begin, uring_next};
