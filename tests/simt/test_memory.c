/* Memory of the emulated GPUs: closed to the host, open to kernels and copies, and each piece its
 * own. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planted.h"
#include "simt_control.h"

TestSuite(simt_memory, .timeout = 60);

#define COUNT 64

static cudaStream_t stream_open(void)
{
    cudaStream_t stream;
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    return stream;
}

static void *memory_open(size_t bytes)
{
    void *memory;
    cr_assert_eq(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

/* ---- What the host touches ------------------------------------------------------------------- */

enum touch {
    TOUCH_READ,
    TOUCH_WRITE,
    TOUCH_LAST,       /* its last byte */
    TOUCH_BEHIND_RUN, /* of what a kernel has just written */
    TOUCH_BESIDE_RUN, /* while some of it has run, and some has not */
    TOUCH_FREED,
    TOUCH_NOWHERE,         /* no memory of anybody: this stays what it is */
    TOUCH_FREED_BY_KERNEL, /* which the address sanitizer finds */
    TOUCH_COUNT
};
#if defined(__SANITIZE_ADDRESS__)
#define TOUCH_END      TOUCH_COUNT
#define TOUCH_POISONED TOUCH_FREED
#else
#define TOUCH_END      TOUCH_FREED_BY_KERNEL
#define TOUCH_POISONED TOUCH_COUNT
#endif

static void kernels_run(int *memory, enum touch touch, cudaStream_t stream)
{
    simt_stream_seed_set(touch == TOUCH_BESIDE_RUN ? 3 : 0);
    for (int add = 0; add < 5; add++)
        planted_add(memory, memory, COUNT, 1, stream);
    if (touch != TOUCH_BESIDE_RUN)
        (void)cudaStreamSynchronize(stream);
}

static void touch_do(int *memory, enum touch touch)
{
    volatile uintptr_t nowhere = 64;
    volatile char *at = touch == TOUCH_NOWHERE ? (char *)nowhere : (char *)memory;
    cudaStream_t stream = stream_open();
    void *other = memory_open(COUNT * sizeof *memory);
    if (touch == TOUCH_BEHIND_RUN || touch == TOUCH_BESIDE_RUN)
        kernels_run(memory, touch, stream);
    if (touch == TOUCH_FREED || touch == TOUCH_FREED_BY_KERNEL)
        (void)cudaFree(memory);
    if (touch == TOUCH_FREED_BY_KERNEL) {
        planted_add(other, memory, COUNT, 1, stream);
        (void)cudaStreamSynchronize(stream);
    } else if (touch == TOUCH_WRITE) {
        at[4] = 1;
    } else {
        (void)at[touch == TOUCH_LAST ? COUNT * sizeof *memory - 1 : 0];
    }
}

/* What a process says that does it and does not come back, or nothing. */
static void touch_say(char *said, size_t capacity, int *memory, enum touch touch)
{
    int pipes[2], status;
    size_t used = 0;
    ssize_t got;
    cr_assert_eq(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        touch_do(memory, touch);
        _exit(0);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], said + used, capacity - 1 - used)) > 0)
        used += (size_t)got;
    said[used] = '\0';
    close(pipes[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "touch %d is not found", (int)touch);
}

Test(simt_memory, whoever_touches_it_ends_the_process)
{
    int *memory = memory_open(COUNT * sizeof *memory);
    for (int touch = 0; touch < TOUCH_END; touch++) {
        char said[8192], sentence[160];
        size_t at = touch == TOUCH_WRITE ? 4 : touch == TOUCH_LAST ? COUNT * sizeof *memory - 1 : 0;
        int length = snprintf(sentence, sizeof sentence,
                              "simt: the host touched memory of cudaMalloc, at %p\n",
                              (void *)((char *)memory + at));
        touch_say(said, sizeof said, memory, (enum touch)touch);
        if (touch == TOUCH_NOWHERE)
            cr_assert_null(strstr(said, "simt:"), "%s", said);
        else if (touch == TOUCH_FREED_BY_KERNEL || touch == TOUCH_POISONED)
            cr_assert_not_null(strstr(said, "AddressSanitizer: use-after-poison"), "%s", said);
        else
            cr_assert_eq(strncmp(said, sentence, (size_t)length), 0, "touch %d: %s", touch, said);
    }
    cudaFree(memory);
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

#define PIECES 60
#define ROUNDS 30

static unsigned char found[600 << 10];

static size_t draw(size_t bound)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % bound;
}

static bool holds(const unsigned char *piece, size_t bytes, int value, cudaStream_t stream)
{
    size_t right = 0;
    cr_assert_eq(cudaMemcpyAsync(found, piece, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    while (right < bytes && found[right] == value)
        right++;
    return right == bytes;
}

/* Of any size, each filled with a number of its own; some go and others come, neighbours too. */
Test(simt_memory, pieces_are_apart)
{
    cudaStream_t stream = stream_open();
    unsigned char *pieces[PIECES] = {NULL};
    size_t bytes[PIECES];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PIECES; i++) {
            if (round > 0 && draw(2) == 0)
                continue;
            cr_assert_eq(cudaFree(pieces[i]), cudaSuccess);
            bytes[i] = 1 + draw(sizeof found);
            pieces[i] = memory_open(bytes[i]);
            cr_assert_eq(cudaMemsetAsync(pieces[i], i + 1, bytes[i], stream), cudaSuccess);
        }
        for (int i = 0; i < PIECES; i++)
            cr_assert(holds(pieces[i], bytes[i], i + 1, stream), "round %d, piece %d", round, i);
    }
    for (int i = 0; i < PIECES; i++)
        cudaFree(pieces[i]);
    cudaStreamDestroy(stream);
    cr_assert_eq(simt_live_count(), 0);
}

/* What was freed is used again, but not at once: who still names it is found by what stands there.
 */
Test(simt_memory, what_was_freed_comes_again_later)
{
    const size_t bytes = 1 << 20;
    void *first = memory_open(bytes), *next;
    int count = 0;
    cudaFree(first);
    do {
        next = memory_open(bytes);
        cudaFree(next);
        count++;
    } while (next != first && count < 100);
    cr_assert(count > 4 && count < 40, "after %d", count);
}
