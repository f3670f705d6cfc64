/* The emulated GPU: what is right runs as on a GPU in every order, and each planted bug is found.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planted.h"
#include "simt_control.h"

TestSuite(simt, .timeout = 60);

#define COUNT 300

static cudaStream_t stream_open(void)
{
    cudaStream_t stream;
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    return stream;
}

/* Pinned: kernels reach it, and the host looks at it. */
static void *memory_open(size_t bytes)
{
    void *memory;
    cr_assert_eq(cudaMallocHost(&memory, bytes), cudaSuccess);
    return memory;
}

static void synchronize_ok(cudaStream_t stream)
{
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
}

/* ---- What is right --------------------------------------------------------------------------- */

/* Each runs a kernel and says whether its results are what they should be. */
static bool reverse_is_right(cudaStream_t stream, bool barrier)
{
    int *in = memory_open(COUNT * sizeof *in), *out = memory_open(COUNT * sizeof *out);
    bool right = true;
    for (int i = 0; i < COUNT; i++)
        in[i] = i;
    planted_reverse(out, in, COUNT, barrier, stream);
    synchronize_ok(stream);
    for (int i = 0; i < COUNT; i++) {
        int first = i / 64 * 64, last = first + 63 < COUNT ? first + 63 : COUNT - 1;
        right = right && out[i] == first + last - i;
    }
    cudaFreeHost(in);
    cudaFreeHost(out);
    return right;
}

static void check_sum(cudaStream_t stream)
{
    float *in = memory_open(COUNT * sizeof *in), *out = memory_open(sizeof *out);
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)i;
    planted_sum(out, in, COUNT, stream);
    synchronize_ok(stream);
    cr_assert_eq(*out, COUNT * (COUNT - 1) / 2);
    cudaFreeHost(in);
    cudaFreeHost(out);
}

static void check_indices(cudaStream_t stream)
{
    int *out = memory_open(PLANTED_BLOCKS * sizeof *out);
    planted_indices(out, stream);
    synchronize_ok(stream);
    for (int i = 0; i < PLANTED_BLOCKS; i++)
        cr_assert_eq(out[i], 1000 * i + 24);
    cudaFreeHost(out);
}

static void check_votes(cudaStream_t stream)
{
    int(*out)[64] = memory_open(VOTE_COUNT * sizeof *out);
    planted_votes(out[0], stream);
    synchronize_ok(stream);
    for (int i = 0; i < 64; i++) {
        unsigned ballot = 0;
        for (int lane = 0; lane < 32; lane++)
            ballot |= (unsigned)((i / 32 * 32 + lane) % 3 == 0) << lane;
        cr_assert_eq(out[VOTE_SHUFFLE][i], i / 8 * 8 + 5);
        cr_assert_eq(out[VOTE_UP][i], i % 16 < 3 ? i : i - 3);
        cr_assert_eq(out[VOTE_DOWN][i], i % 16 > 12 ? i : i + 3);
        cr_assert_eq(out[VOTE_XOR][i], i ^ 9);
        cr_assert_eq((unsigned)out[VOTE_BALLOT][i], ballot);
        cr_assert_eq(out[VOTE_ANY][i], i >= 32);
        cr_assert_eq(out[VOTE_ALL][i], i < 32);
        cr_assert_eq(out[VOTE_BLOCK_COUNT][i], 22);
        cr_assert_eq(out[VOTE_BLOCK_OR][i], 1);
        cr_assert_eq(out[VOTE_BLOCK_AND][i], 0);
    }
    cudaFreeHost(out);
}

static void check_atomics(cudaStream_t stream)
{
    static const int expected[PLANTED_ATOMICS] = {256 * 255 / 2, 255, -255, 7, 5, -1, -65536};
    int *out = memory_open(sizeof expected);
    memset(out, 0, sizeof expected);
    out[6] = -1;
    planted_atomics(out, stream);
    synchronize_ok(stream);
    for (int i = 0; i < PLANTED_ATOMICS; i++)
        cr_assert_eq(out[i], expected[i], "%d: %d", i, out[i]);
    cudaFreeHost(out);
}

Test(simt, what_is_right_is_so_in_every_order)
{
    cudaStream_t stream = stream_open();
    for (int n = 0; n < 8; n++) {
        simt_order_set(n < 2 ? (enum simt_order)n : SIMT_RANDOM, (uint64_t)n);
        cr_assert(reverse_is_right(stream, true));
        check_sum(stream);
        check_indices(stream);
        check_votes(stream);
        check_atomics(stream);
    }
    cr_assert_eq(simt_kernel_count(), 40);
    cudaStreamDestroy(stream);
    cr_assert_eq(simt_live_count(), 0);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

Test(simt, a_missing_barrier_is_a_wrong_result)
{
    cudaStream_t stream = stream_open();
    for (enum simt_order order = SIMT_FORWARD; order <= SIMT_RANDOM; order++) {
        simt_order_set(order, 1);
        cr_assert(!reverse_is_right(stream, false), "order %d", (int)order);
    }
    cudaStreamDestroy(stream);
}

static bool rounds_are_right(cudaStream_t stream, bool barrier)
{
    int *out = memory_open(PLANTED_ROUNDS * sizeof *out), right = 0;
    memset(out, 0, PLANTED_ROUNDS * sizeof *out);
    planted_rounds(out, barrier, stream);
    synchronize_ok(stream);
    for (int round = 0; round < PLANTED_ROUNDS; round++)
        right += out[round] == 128 * (40 * round + 6);
    cudaFreeHost(out);
    return right == PLANTED_ROUNDS;
}

/* One that only a warp that runs ahead of the others misses. */
Test(simt, a_barrier_that_is_missing_behind_what_was_read)
{
    cudaStream_t stream = stream_open();
    for (uint64_t seed = 0; seed < 5; seed++) {
        simt_order_set(SIMT_RANDOM, seed);
        cr_assert(rounds_are_right(stream, true), "seed %d", (int)seed);
        cr_assert(!rounds_are_right(stream, false), "seed %d", (int)seed);
    }
    cudaStreamDestroy(stream);
}

/* The second stream adds to what the first has made; over all seeds up to 5. */
static int right_handovers(bool wait)
{
    int right = 0;
    int *a = memory_open(COUNT * sizeof *a), *b = memory_open(COUNT * sizeof *b);
    cudaStream_t one = stream_open(), other = stream_open();
    cudaEvent_t event;
    cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    for (int seed = 1; seed <= 5; seed++) {
        simt_stream_seed_set((uint64_t)seed);
        memset(a, 0xFF, COUNT * sizeof *a);
        memset(b, 0, COUNT * sizeof *b);
        planted_add(a, b, COUNT, 5, one);
        cr_assert_eq(cudaEventRecord(event, one), cudaSuccess);
        if (wait)
            cr_assert_eq(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
        planted_add(b, a, COUNT, 2, other);
        synchronize_ok(other);
        synchronize_ok(one);
        right += b[0] == 7 && b[COUNT - 1] == 7;
    }
    cudaEventDestroy(event);
    cudaStreamDestroy(one);
    cudaStreamDestroy(other);
    cudaFreeHost(a);
    cudaFreeHost(b);
    return right;
}

Test(simt, a_missing_event_is_a_wrong_result_for_some_seed)
{
    cr_assert_eq(right_handovers(true), 5);
    cr_assert_lt(right_handovers(false), 5);
    cr_assert_eq(simt_live_count(), 0);
}

/* What the process with this bug says before it ends, in which it does not come back. */
static void bug_say(char *said, size_t capacity, enum planted_bug bug)
{
    int pipes[2];
    size_t used = 0;
    ssize_t got;
    cr_assert_eq(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        cudaStream_t stream = stream_open();
        void *memory;
        if (cudaMalloc(&memory, 64 * sizeof(int)) != cudaSuccess)
            _exit(0);
        planted_bug(bug, memory, stream);
        cudaStreamSynchronize(stream);
        _exit(0);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], said + used, capacity - 1 - used)) > 0)
        used += (size_t)got;
    said[used] = '\0';
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "bug %d was not found", (int)bug);
}

/* `said` names a line of planted.cu that is marked. */
static bool names_wrong_line(const char *said)
{
    char line[256];
    const char *at = strstr(said, "planted.cu:");
    int number = 0, current = 0;
    bool marked = false;
    if (at == NULL || sscanf(at, "planted.cu:%d", &number) != 1)
        return false;
    FILE *file = fopen(PLANTED_SOURCE, "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (++current == number)
            marked = strstr(line, "/* wrong */") != NULL;
    }
    fclose(file);
    return marked;
}

Test(simt, what_is_undefined_ends_the_process)
{
    static const char *const sentences[BUG_OUT_OF_BOUNDS] = {
        [BUG_BARRIER_LEFT_OUT] = "a barrier that not all threads of the block reach",
        [BUG_BARRIER_ELSEWHERE] = "threads of a block meet at different barriers",
        [BUG_WARP_AT_BARRIER] = "a barrier that not all threads of the block reach",
        [BUG_MASK_WITHOUT_SELF] = "a lane takes part in an operation whose mask leaves it out",
        [BUG_MASK_OF_RETURNED] = "a mask names a lane that has returned",
        [BUG_MASK_OF_NOBODY] = "a mask names lanes that the block does not have",
        [BUG_MASKS_DIFFER] = "lanes of a warp meet in different operations",
        [BUG_SHUFFLE_FROM_OUTSIDE] = "a shuffle reads a lane that its mask leaves out",
        [BUG_OPERATIONS_DIFFER] = "lanes of a warp meet in different operations",
        [BUG_WAIT_FOR_NOBODY] = "a thread waits for what nobody does",
    };
    for (enum simt_order order = SIMT_FORWARD; order <= SIMT_RANDOM; order++) {
        simt_order_set(order, 3);
        for (int bug = 0; bug < BUG_OUT_OF_BOUNDS; bug++) {
            char said[2048];
            bug_say(said, sizeof said, (enum planted_bug)bug);
            /* Lanes that return may do so before the others come, or leave them alone. */
            cr_expect(strstr(said, sentences[bug]) != NULL ||
                          (bug == BUG_MASK_OF_RETURNED && strstr(said, "for ever") != NULL),
                      "bug %d: %s", bug, said);
            cr_expect(names_wrong_line(said), "bug %d: %s", bug, said);
            cr_expect(strstr(said, "in block (0, 0, 0)") != NULL, "bug %d: %s", bug, said);
        }
    }
}

#if defined(__SANITIZE_ADDRESS__)
Test(simt, what_is_out_of_bounds_is_found)
{
    for (int bug = BUG_OUT_OF_BOUNDS; bug < BUG_COUNT; bug++) {
        char said[8192];
        bug_say(said, sizeof said, (enum planted_bug)bug);
        cr_expect(strstr(said, bug == BUG_OUT_OF_BOUNDS
                                   ? "AddressSanitizer: use-after-poison"
                                   : "AddressSanitizer: heap-buffer-overflow") != NULL,
                  "%s", said);
        cr_expect(names_wrong_line(said), "%s", said);
    }
}
#endif
