#include "fake_uring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"

#define RINGS_MAX  16
#define FLYING_MAX 128

struct fake fake;

struct uring_ring {
    bool is_open;
    struct read_request flying[FLYING_MAX];
    int files[FLYING_MAX];
    int flying_count;
    struct read_result again[FLYING_MAX]; /* to be given out a second and a third time */
    int again_count;
    int fds[2];
    bool has_files;
    int buffer_count; /* that are registered */
};
static struct uring_ring rings[RINGS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of `rings` and what `fake` counts */

void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    memset(rings, 0, sizeof rings);
}

static uint64_t draw(uint64_t bound)
{
    return random_at(11, fake.draw++, 0) % bound;
}

/* 0 or -errno. Under the lock, as all that follows up to the table's functions. */
static int fault(enum fake_call call)
{
    if (fake.n == 0 || call != fake.call)
        return 0;
    fake.count++;
    return fake.count == fake.n || (fake.is_sticky && fake.count > fake.n) ? -fake.error : 0;
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
    ssize_t got = pread(fd, request->place, request->bytes, (off_t)request->offset);
    if (got > 0 && fake.is_short) {
        ssize_t bytes = 1 + (ssize_t)draw(draw(2) == 0 ? (uint64_t)got : (uint64_t)got / 4096 + 1);
        bytes = bytes < got ? bytes : got;
        memset(request->place + bytes, 0x5a, (size_t)(got - bytes));
        got = bytes;
    }
    if (got > 0 && fault(FAKE_BYTES) != 0)
        request->place[draw((uint64_t)got)] ^= 4;
    return got < 0 ? -errno : (int)got;
}

static void complete(struct uring_ring *ring, struct read_result *out, int i)
{
    int last = --ring->flying_count;
    out->ticket = ring->flying[i].ticket;
    out->count = result_of(&ring->flying[i], ring->files[i]);
    ring->flying[i] = ring->flying[last];
    ring->files[i] = ring->files[last];
    fake.flying_count--;
    for (int n = 0; fake.is_doubled && n < 2 && ring->again_count < FLYING_MAX; n++)
        ring->again[ring->again_count++] = *out;
}

static struct uring_ring *ring_take(void)
{
    for (int r = 0; r < RINGS_MAX; r++) {
        if (!rings[r].is_open) {
            rings[r] = (struct uring_ring){.is_open = true};
            fake.ring_count++;
            return &rings[r];
        }
    }
    cr_assert_fail("too many rings");
    return NULL;
}

static int read_begin(struct uring_ring *ring, const struct read_request *request, int file,
                      bool has_files, int buffer)
{
    int failure = fault(FAKE_READ);
    cr_assert_eq(buffer, ring->buffer_count > 0 ? request->buffer : -1);
    cr_assert_lt(buffer, ring->buffer_count > 0 ? ring->buffer_count : 0);
    if (failure != 0)
        return failure;
    cr_assert_lt(ring->flying_count, FLYING_MAX);
    cr_assert_eq(has_files, ring->has_files);
    ring->files[ring->flying_count] = has_files ? ring->fds[file] : file;
    ring->flying[ring->flying_count++] = *request;
    fake.flying_count++;
    return 0;
}

/* As the table's next; `*sleeps` is how long it then takes. */
static int read_end(struct uring_ring *ring, struct read_result *out, double seconds,
                    double *sleeps)
{
    int failure = fault(FAKE_NEXT);
    *sleeps = 0;
    if (failure != 0)
        return failure;
    if (ring->again_count > 0 && draw(2) == 0) {
        *out = ring->again[--ring->again_count];
        return 1;
    }
    if (fake.hangs || ring->flying_count == 0 || (fake.is_shuffled && draw(3) == 0)) {
        *sleeps = fake.is_shuffled && !fake.hangs ? 0 : seconds;
        return 0;
    }
    complete(ring, out, fake.is_shuffled ? (int)draw((uint64_t)ring->flying_count) : 0);
    return 1;
}

static void sleep_for(double seconds)
{
    double most = seconds < 0.9 ? seconds : 0.9;
    if (seconds > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * most)}, NULL);
}

/* ---- The table ------------------------------------------------------------------------------- */

static int fake_setup(struct uring_ring **out, unsigned entries)
{
    pthread_mutex_lock(&lock);
    int failure = fault(FAKE_SETUP);
    cr_assert_leq(entries, FLYING_MAX);
    if (failure == 0)
        *out = ring_take();
    pthread_mutex_unlock(&lock);
    return failure;
}

static void fake_exit(struct uring_ring *ring)
{
    pthread_mutex_lock(&lock);
    cr_assert_eq(ring->flying_count, 0, "the ring is closed while the kernel reads");
    ring->is_open = false;
    fake.ring_count--;
    pthread_mutex_unlock(&lock);
}

static int fake_register_files(struct uring_ring *ring, const int *fds, unsigned count)
{
    pthread_mutex_lock(&lock);
    int failure = fault(FAKE_FILES);
    ring->has_files = failure == 0;
    for (unsigned i = 0; failure == 0 && i < count; i++)
        ring->fds[i] = fds[i];
    pthread_mutex_unlock(&lock);
    return failure;
}

static int fake_register_buffers(struct uring_ring *ring, const struct iovec *buffers,
                                 unsigned count)
{
    pthread_mutex_lock(&lock);
    (void)buffers;
    int failure = fault(FAKE_BUFFERS);
    ring->buffer_count = failure == 0 ? (int)count : 0;
    pthread_mutex_unlock(&lock);
    return failure;
}

static int fake_read(struct uring_ring *ring, const struct read_request *request, int file,
                     bool has_files, int buffer)
{
    pthread_mutex_lock(&lock);
    int failure = read_begin(ring, request, file, has_files, buffer);
    pthread_mutex_unlock(&lock);
    return failure;
}

static int fake_next(struct uring_ring *ring, struct read_result *out, double seconds)
{
    double sleeps;
    sleep_for(fake.delay);
    if (fake.stops_process) {
        fake.stops_process = false;
        kill(getpid(), SIGSTOP);
        return 0;
    }
    pthread_mutex_lock(&lock);
    int count = read_end(ring, out, seconds, &sleeps);
    pthread_mutex_unlock(&lock);
    sleep_for(sleeps);
    return count;
}

void fake_write_late(void)
{
    for (int r = 0; r < RINGS_MAX; r++) {
        for (int i = 0; i < rings[r].flying_count; i++)
            memset(rings[r].flying[i].place, 0x77, rings[r].flying[i].bytes);
        rings[r].flying_count = 0;
    }
    fake.flying_count = 0;
}

const struct uring_calls fake_uring = {
    fake_setup, fake_exit, fake_register_files, fake_register_buffers, fake_read, fake_next};
