#include "fake_uring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"
#include "reads.h"

struct fake fake;

void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
}

static uint64_t draw(uint64_t bound)
{
    return random_at(11, fake.draw++, 0) % bound;
}

/* 0 or -errno. */
static int fault(enum fake_call call)
{
    if (fake.n == 0 || call != fake.call)
        return 0;
    fake.count++;
    return fake.count == fake.n || (fake.is_sticky && fake.count > fake.n) ? -fake.error : 0;
}

static int fake_setup(struct uring_ring **out, unsigned entries)
{
    int failure = fault(FAKE_SETUP);
    cr_assert_geq(entries, BUFFER_COUNT);
    if (failure != 0)
        return failure;
    *out = (struct uring_ring *)&fake;
    fake.ring_count++;
    return 0;
}

static void fake_exit(struct uring_ring *ring)
{
    (void)ring;
    cr_assert_eq(fake.flying_count, 0, "the ring is closed while the kernel reads");
    fake.ring_count--;
}

static int fake_register_files(struct uring_ring *ring, const int *fds, unsigned count)
{
    (void)ring;
    int failure = fault(FAKE_FILES);
    fake.has_files = failure == 0;
    for (unsigned i = 0; failure == 0 && i < count; i++)
        fake.fds[i] = fds[i];
    return failure;
}

static int fake_register_buffers(struct uring_ring *ring, const struct iovec *buffers,
                                 unsigned count)
{
    (void)ring, (void)buffers;
    cr_assert_eq(count, BUFFER_COUNT);
    int failure = fault(FAKE_BUFFERS);
    fake.has_buffers = failure == 0;
    return failure;
}

static int fake_read(struct uring_ring *ring, const struct read_request *request, int file,
                     bool has_files, int buffer)
{
    (void)ring;
    int failure = fault(FAKE_READ);
    cr_assert_eq(buffer, fake.has_buffers ? request->buffer : -1);
    if (failure != 0)
        return failure;
    cr_assert_lt(fake.flying_count, 64);
    cr_assert_eq(has_files, fake.has_files);
    fake.files[fake.flying_count] = has_files ? fake.fds[file] : file;
    fake.flying[fake.flying_count++] = *request;
    return 0;
}

/* Bytes, or -errno. */
static int result_of(const struct read_request *request, int fd)
{
    int failure = fault(FAKE_RESULT);
    if (failure != 0)
        return failure;
    if (fake.lacks_read)
        return -EINVAL;
    if (request->is_direct && fake.refuses_direct && fake.refuses_after-- <= 0)
        return -EINVAL;
    size_t bytes = request->bytes;
    if (fake.is_short)
        bytes = 1 + draw(draw(2) == 0 ? bytes : bytes / 4096 + 1);
    ssize_t got = pread(fd, request->place, bytes, (off_t)request->offset);
    return got < 0 ? -errno : (int)got;
}

static void complete(struct read_result *out, int i)
{
    out->ticket = fake.flying[i].ticket;
    out->count = result_of(&fake.flying[i], fake.files[i]);
    fake.flying[i] = fake.flying[--fake.flying_count];
    fake.files[i] = fake.files[fake.flying_count];
}

static void sleep_for(double seconds)
{
    double most = seconds < 0.9 ? seconds : 0.9;
    if (seconds > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * most)}, NULL);
}

static int fake_next(struct uring_ring *ring, struct read_result *out, double seconds)
{
    (void)ring;
    int failure = fault(FAKE_NEXT);
    if (failure != 0)
        return failure;
    if (fake.again_count > 0 && draw(2) == 0) {
        *out = fake.again[--fake.again_count];
        return 1;
    }
    if (fake.hangs || fake.flying_count == 0 || (fake.is_shuffled && draw(3) == 0)) {
        sleep_for(fake.is_shuffled && !fake.hangs ? 0 : seconds);
        return 0;
    }
    sleep_for(fake.delay);
    complete(out, fake.is_shuffled ? (int)draw((uint64_t)fake.flying_count) : 0);
    for (int i = 0; fake.is_doubled && i < 2 && fake.again_count < 64; i++)
        fake.again[fake.again_count++] = *out;
    return 1;
}

void fake_write_late(void)
{
    for (int i = 0; i < fake.flying_count; i++)
        memset(fake.flying[i].place, 0x77, fake.flying[i].bytes);
    fake.flying_count = 0;
}

const struct uring_calls fake_uring = {
    fake_setup, fake_exit, fake_register_files, fake_register_buffers, fake_read, fake_next};
