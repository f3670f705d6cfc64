/* Machines that forbid or limit what a queue would use: set up for real, in the test's process. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "forbid.h"
#include "io/uring_calls.h"
#include "reads.h"

TestSuite(read_machine, .init = reads_init, .fini = reads_deinit, .timeout = 60);

static void expect_threads_instead(const char *cure)
{
    struct read_queue *queue = NULL;
    struct error err;
    struct read_queue_params params = reads_params(READ_URING, true);
    struct resources before = resources_now();
    bool was_built = uring_calls_system() != NULL;
    cr_assert_eq(read_queue_create(&queue, &params, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, was_built ? cure : "liburing-dev"), "%s", err.message);
    cr_assert_eq(err.status, STATUS_UNSUPPORTED);
    expect_resources("a refusal", before);
    params.backend = READ_THREADS;
    reads_expect("threads instead", &params, 50);
}

Test(read_machine, A20_setting_up_is_forbidden)
{
    forbid(__NR_io_uring_setup, EPERM);
    expect_threads_instead("Operation not permitted");
}

Test(read_machine, A20_setting_up_is_unknown)
{
    forbid(__NR_io_uring_setup, ENOSYS);
    expect_threads_instead("let its seccomp profile allow io_uring_setup");
}

Test(read_machine, A20_using_it_is_forbidden)
{
    if (!uring_works())
        return; /* refused before that */
    forbid(__NR_io_uring_enter, EPERM);
    expect_threads_instead("io_uring cannot be used");
}

/* The kernel takes nothing that is handed over by itself, so it has each entry again with the next:
 * what had failed must not be read then. */
Test(read_machine, what_the_kernel_did_not_take_is_not_read_later)
{
    struct read_queue_params params = reads_params(READ_URING, true);
    if (!uring_works())
        return;
    forbid_value(__NR_io_uring_enter, 1, 1, EAGAIN);
    struct read_queue_use use = reads_expect("each by the second time", &params, 50);
    cr_assert_geq(use.again_count, 50);
    cr_assert_eq(use.dropped_count, 0);
}

Test(read_machine, A20_no_descriptors_are_left)
{
    struct rlimit limit = {(rlim_t)resources_now().descriptor + 2, 100};
    struct read_queue_params params = reads_params(READ_URING, true);
    struct read_queue *queue = NULL;
    struct error err;
    if (!uring_works())
        return;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(read_queue_create(&queue, &params, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "Too many open files"), "%s", err.message);
}

Test(read_machine, no_thread_can_be_started)
{
    struct read_queue_params params = reads_params(READ_THREADS, true);
    struct read_queue *queue = NULL;
    struct error err;
    struct resources before = resources_now();
    forbid(__NR_clone3, EAGAIN);
    cr_assert_eq(read_queue_create(&queue, &params, &err), STATUS_IO);
    cr_assert_not_null(
        strstr(err.message, "cannot start a thread that reads: Resource temporarily"), "%s",
        err.message);
    expect_resources("no threads", before);
}

/* The limit holds for users without CAP_IPC_LOCK: root becomes one of them. */
Test(read_machine, A21_little_memory_may_be_locked)
{
    struct rlimit limit = {64 * 1024, 64 * 1024};
    struct read_queue_params params = reads_params(READ_URING, true);
    struct error err = {.message = ""};
    if (!uring_works())
        return;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (geteuid() == 0)
        cr_assert_eq(setresuid(65534, 65534, 65534), 0);
    cr_assert_eq(prctl(PR_SET_DUMPABLE, 1), 0); /* or its /proc/self stays root's */
    struct read_queue *queue = reads_queue(&params);
    struct read_queue_use use = read_queue_use_get(queue);
    cr_assert(!use.is_registered && !use.note_is_usual);
    cr_assert_eq(use.is_direct, direct_works(file_path));
    cr_assert_not_null(strstr(use.note, "(512 KiB, Cannot allocate memory): the limit of locked "
                                        "memory is 64 KiB"),
                       "%s", use.note);
    cr_assert_eq(reads_run(queue, 1, 100, &err), STATUS_OK, "%s", err.message);
    cr_assert(read_queue_destroy(queue));
}

/* Files of /proc have no O_DIRECT. */
Test(read_machine, A22_the_file_system_refuses_to_avoid_the_cache)
{
    static const char *const name = "/proc/self/auxv";
    char expected[64];
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(pread(fd, expected, sizeof expected, 0), (ssize_t)sizeof expected);
    for (int backend = 0; backend <= READ_THREADS; backend++) {
        struct read_queue_params params = reads_params((enum read_backend)backend, true);
        struct read_done done;
        if (backend == READ_URING && !uring_works())
            continue;
        params.fd = fd;
        params.path = name;
        struct read_queue *queue = reads_queue(&params);
        struct read_queue_use use = read_queue_use_get(queue);
        cr_assert(!use.is_direct);
        cr_assert_not_null(strstr(use.note, "refuses O_DIRECT (Invalid argument)"), "%s", use.note);
        read_queue_submit(queue, 1, 0, 0, sizeof expected);
        cr_assert_eq(read_queue_wait(queue, &done, 100, NULL), STATUS_OK);
        cr_assert_eq(memcmp(read_queue_buffer(queue, 0), expected, sizeof expected), 0);
        cr_assert(read_queue_destroy(queue));
    }
    close(fd);
}

/* No descriptor is left for it: the file system was not asked. */
Test(read_machine, a_file_that_cannot_be_opened_anew)
{
    struct read_queue_params params = reads_params(READ_THREADS, true);
    int fd = open("/proc/self/auxv", O_RDONLY | O_CLOEXEC);
    struct rlimit usual, none;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    none = (struct rlimit){(rlim_t)fd + 2, usual.rlim_max}; /* the queue has one of its own */
    params.fd = fd;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct read_queue *queue = reads_queue(&params);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
    struct read_queue_use use = read_queue_use_get(queue);
    cr_assert_not_null(strstr(use.note, "could not be opened anew with O_DIRECT (Too many open"),
                       "%s", use.note);
    cr_assert(read_queue_destroy(queue));
    close(fd);
}
