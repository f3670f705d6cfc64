#include "simt_engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "simt_control.h"
#include "simt_switch.h"

namespace simt {

uint3 thread_index, block_index;
dim3 block_size, grid_size;
unsigned char *dynamic_shared;

namespace {

#define WARP_LANES 32

enum class standing : unsigned char { ready, at_barrier, in_warp, watching, gone };

/* A thread of a block. Its fiber outlives it and runs the thread of the same number of the next
 * block. */
struct fiber {
    stack own;
    standing state;
    uint3 index;
    site at; /* of the barrier or warp operation that it stands in */
    warp_call call;
    uint64_t result; /* of the warp operation */
    int predicate;   /* of the barrier */
    const uint8_t *watched;
    uint8_t unwanted; /* of what it watches */
};

#define THREADS_MAX 1024 /* of a block */

fiber fibers[THREADS_MAX];
int fiber_count; /* that any block has needed so far; the others have no stack yet */
int count;       /* of the block that runs */
int current;
stack scheduler;
const std::function<void()> *body;
block_votes votes;

/* Of each warp of the block, a bit for each lane. */
struct warp_lanes {
    unsigned there, gone, waiting; /* in a warp operation */
};
warp_lanes warps[THREADS_MAX / WARP_LANES];

simt_order order = SIMT_FORWARD;
uint64_t random_state = random_start(0);

/* ---- What is wrong with a kernel ------------------------------------------------------------- */

void describe(const char *role, const fiber &thread)
{
    std::fprintf(stderr, "  %s (%u, %u, %u) ", role, thread.index.x, thread.index.y,
                 thread.index.z);
    if (thread.state == standing::gone)
        std::fprintf(stderr, "has returned\n");
    else if (thread.state == standing::in_warp)
        std::fprintf(stderr, "at %s:%d, mask %08x\n", thread.at.file, thread.at.line,
                     thread.call.mask);
    else
        std::fprintf(stderr, "at %s:%d\n", thread.at.file, thread.at.line);
}

[[noreturn]] void refuse(const char *sentence, const fiber &thread, const fiber *other)
{
    std::fprintf(stderr, "simt: %s, in block (%u, %u, %u)\n", sentence, block_index.x,
                 block_index.y, block_index.z);
    describe("thread", thread);
    if (other != nullptr)
        describe("thread", *other);
    std::abort();
}

fiber *find(standing state)
{
    for (int i = 0; i < count; i++) {
        if (fibers[i].state == state)
            return &fibers[i];
    }
    return nullptr;
}

/* Nobody can go on. */
[[noreturn]] void refuse_stuck()
{
    fiber *at_barrier = find(standing::at_barrier), *in_warp = find(standing::in_warp);
    fiber *watching = find(standing::watching), *gone = find(standing::gone);
    if (watching != nullptr)
        refuse("a thread waits for what nobody does", *watching, gone);
    if (at_barrier != nullptr)
        refuse("a barrier that not all threads of the block reach", *at_barrier,
               gone != nullptr ? gone : in_warp);
    refuse("lanes that wait for others of their mask for ever", *in_warp, gone);
}

/* ---- Fibers ---------------------------------------------------------------------------------- */

void yield()
{
    fiber &me = fibers[current];
    stack_switch(me.own, scheduler);
}

void fiber_main()
{
    stack_entered(scheduler);
    for (;;) {
        (*body)();
        fibers[current].state = standing::gone;
        warps[current / WARP_LANES].gone |= 1u << current % WARP_LANES;
        yield();
    }
}

void fiber_resume(int number)
{
    current = number;
    thread_index = fibers[number].index;
    stack_switch(scheduler, fibers[number].own);
}

/* ---- A block --------------------------------------------------------------------------------- */

/* All threads stand at it, at one place. */
void barrier_pass()
{
    votes = {0, 1, 0};
    for (int i = 0; i < count; i++) {
        fiber &thread = fibers[i];
        if (thread.at.line != fibers[0].at.line || std::strcmp(thread.at.file, fibers[0].at.file))
            refuse("threads of a block meet at different barriers", fibers[0], &thread);
        votes.any |= thread.predicate != 0;
        votes.all &= thread.predicate != 0;
        votes.count += thread.predicate != 0;
        thread.state = standing::ready;
    }
}

bool all_are(standing state)
{
    for (int i = 0; i < count; i++) {
        if (fibers[i].state != state)
            return false;
    }
    return true;
}

/* Whether the thread can go on; what it watches may have come. */
bool can_go(fiber &thread)
{
    if (thread.state == standing::watching && *thread.watched != thread.unwanted)
        thread.state = standing::ready;
    return thread.state == standing::ready;
}

/* One warp runs as far as it comes without the others. */
void warp_run_ahead(int base)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int number = base; number < std::min(base + WARP_LANES, count); number++) {
            if (can_go(fibers[number])) {
                moved = true;
                fiber_resume(number);
            }
        }
    }
}

/* Lets each thread that can go on once, in the order that is asked for; false: none could. In
 * random order some have to wait for the next time, and at times a warp runs ahead of all. */
bool threads_pass(std::vector<int> &numbers)
{
    bool moved = false;
    if (order == SIMT_RANDOM) {
        uint64_t ahead = random_next(random_state) % (uint64_t)(2 * count);
        if (ahead < (uint64_t)count)
            warp_run_ahead((int)ahead / WARP_LANES * WARP_LANES);
        for (int i = count - 1; i > 0; i--)
            std::swap(numbers[i], numbers[random_next(random_state) % (uint64_t)(i + 1)]);
    }
    for (int number : numbers) {
        if (!can_go(fibers[number]))
            continue;
        moved = true;
        if (order != SIMT_RANDOM || random_next(random_state) % 4 != 0)
            fiber_resume(number);
    }
    return moved;
}

void block_run()
{
    std::vector<int> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    if (order == SIMT_REVERSE)
        std::reverse(numbers.begin(), numbers.end());
    for (int i = 0; i < count; i++)
        fibers[i].state = standing::ready;
    for (int first = 0; first < count; first += WARP_LANES)
        warps[first / WARP_LANES] = {~0u >> std::max(0, first + WARP_LANES - count), 0, 0};
    for (;;) {
        while (threads_pass(numbers))
            ;
        if (all_are(standing::gone))
            return;
        if (!all_are(standing::at_barrier))
            refuse_stuck();
        barrier_pass();
    }
}

void fibers_prepare(dim3 block)
{
    count = (int)(block.x * block.y * block.z);
    for (; fiber_count < count; fiber_count++)
        stack_create(fibers[fiber_count].own, fiber_main);
    for (unsigned i = 0; i < (unsigned)count; i++)
        fibers[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
}

/* The n-th block to run; `total` of them. In random order from a random one on in steps that have
 * no divisor in common with `total`. */
uint64_t block_at(uint64_t n, uint64_t total, uint64_t start, uint64_t step)
{
    if (order == SIMT_FORWARD)
        return n;
    if (order == SIMT_REVERSE)
        return total - 1 - n;
    return (start + n * step) % total;
}

/* ---- Warps ----------------------------------------------------------------------------------- */

uint64_t shuffle_result(int base, int lane, const fiber &thread)
{
    const warp_call &call = thread.call;
    int first = lane / call.width * call.width, within = lane % call.width;
    int from = lane;
    if (call.kind == WARP_SHUFFLE)
        from = first + (call.lane_or_delta & (call.width - 1));
    else if (call.kind == WARP_SHUFFLE_UP && within >= call.lane_or_delta)
        from = lane - call.lane_or_delta;
    else if (call.kind == WARP_SHUFFLE_DOWN && within + call.lane_or_delta < call.width)
        from = lane + call.lane_or_delta;
    else if (call.kind == WARP_SHUFFLE_XOR && (lane ^ call.lane_or_delta) < first + call.width)
        from = lane ^ call.lane_or_delta;
    if (from < 0 || from >= WARP_LANES || (call.mask >> from & 1) == 0)
        refuse("a shuffle reads a lane that its mask leaves out", thread, nullptr);
    return fibers[base + from].call.value;
}

/* All lanes of the mask are there: they go on, unless they mean different things. */
void warp_pass(int base, const fiber &me)
{
    unsigned mask = me.call.mask, ballot = 0;
    for (unsigned left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        const fiber &other = fibers[base + lane];
        if (other.call.mask != mask || other.call.kind != me.call.kind ||
            other.at.line != me.at.line)
            refuse("lanes of a warp meet in different operations", me, &other);
        ballot |= (unsigned)(other.call.value != 0) << lane;
    }
    for (unsigned left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        fiber &thread = fibers[base + lane];
        thread.state = standing::ready;
        thread.result = me.call.kind == WARP_SYNC     ? 0
                        : me.call.kind == WARP_BALLOT ? ballot
                                                      : shuffle_result(base, lane, thread);
    }
    warps[base / WARP_LANES].waiting &= ~mask;
}

/* That the lanes of the mask can come. */
void mask_check(int base, const fiber &me)
{
    const warp_lanes &lanes = warps[base / WARP_LANES];
    if ((me.call.mask >> (current - base) & 1) == 0)
        refuse("a lane takes part in an operation whose mask leaves it out", me, nullptr);
    if ((me.call.mask & ~lanes.there) != 0)
        refuse("a mask names lanes that the block does not have", me, nullptr);
    if ((me.call.mask & lanes.gone) != 0)
        refuse("a mask names a lane that has returned", me,
               &fibers[base + __builtin_ctz(me.call.mask & lanes.gone)]);
}

} // namespace

block_votes barrier(int predicate, site at)
{
    fiber &me = fibers[current];
    me.at = at;
    me.predicate = predicate;
    me.state = standing::at_barrier;
    yield();
    return votes;
}

void wait_while(const uint8_t *watched, uint8_t unwanted, site at)
{
    fiber &me = fibers[current];
    if (*watched != unwanted)
        return;
    me.at = at;
    me.watched = watched;
    me.unwanted = unwanted;
    me.state = standing::watching;
    yield();
}

uint64_t warp(const warp_call &call, site at)
{
    fiber &me = fibers[current];
    int base = current / WARP_LANES * WARP_LANES;
    me.at = at;
    me.call = call;
    me.state = standing::in_warp;
    mask_check(base, me);
    warp_lanes &lanes = warps[base / WARP_LANES];
    lanes.waiting |= 1u << (current - base);
    if ((lanes.waiting & call.mask) == call.mask)
        warp_pass(base, me);
    else
        yield();
    return me.result;
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread)
{
    uint64_t total = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t start = random_next(random_state) % total,
             step = 1 + random_next(random_state) % total;
    while (std::gcd(step, total) != 1)
        step++;
    fibers_prepare(block);
    body = &thread;
    grid_size = grid;
    block_size = block;
    /* Of the size that was asked for, so that the sanitizer sees what lies beyond. */
    dynamic_shared = static_cast<unsigned char *>(std::malloc(std::max<size_t>(shared_bytes, 1)));
    if (dynamic_shared == nullptr)
        std::abort();
    for (uint64_t n = 0; n < total; n++) {
        uint64_t number = block_at(n, total, start, step);
        block_index = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                       (unsigned)(number / grid.x / grid.y)};
        std::memset(dynamic_shared, 0xFF, shared_bytes);
        block_run();
    }
    std::free(dynamic_shared);
    dynamic_shared = nullptr;
}

} // namespace simt

void simt_order_set(simt_order order, uint64_t seed)
{
    simt::order = order;
    simt::random_state = simt::random_start(seed);
}
