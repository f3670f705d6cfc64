/* All of it is one range of addresses, so that one call of the system opens and closes it: a page
 * of 2 MiB, where the system has such, is one entry of its tables. */
#include "simt_memory.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <execinfo.h>
#include <iterator>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(memory, bytes)   __asan_poison_memory_region(memory, bytes)
#define UNPOISON(memory, bytes) __asan_unpoison_memory_region(memory, bytes)
#else
#define POISON(memory, bytes)   (void)0
#define UNPOISON(memory, bytes) (void)0
#endif

namespace simt {

namespace {

#define ARENA_BYTES      ((size_t)64 << 30) /* of addresses */
#define PAGE_BYTES       ((size_t)2 << 20)
#define ALIGNMENT        ((size_t)256)
#define QUARANTINE_BYTES ((size_t)8 << 20)

struct range {
    char *begin;
    size_t bytes;
};

char *arena;          /* nullptr: not yet there */
size_t reached_bytes; /* of whole pages: what was ever opened */
size_t used_bytes;    /* behind it nothing has been given yet */
bool is_open;
std::map<char *, size_t> given, left; /* left: ranges between pieces, none beside another */
std::deque<range> quarantine;         /* freed, the oldest first */
size_t quarantine_bytes;
struct sigaction before; /* what a fault elsewhere is for */

/* ---- Opening and closing --------------------------------------------------------------------- */

void fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    char *at = static_cast<char *>(info->si_addr), sentence[160];
    if (at < arena || at >= arena + ARENA_BYTES) {
        sigaction(SIGSEGV, &before, nullptr); /* and the access comes again */
        return;
    }
    int length =
        std::snprintf(sentence, sizeof sentence,
                      "simt: the host touched memory of cudaMalloc, at %p\n", info->si_addr);
    if (write(STDERR_FILENO, sentence, (size_t)length) == length) {
        void *frames[32];
        backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    }
    std::abort();
}

void refuse(const char *what)
{
    std::perror(what);
    std::abort();
}

void arena_make()
{
    struct sigaction action = {};
    void *memory = mmap(nullptr, ARENA_BYTES + PAGE_BYTES, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        refuse("simt: addresses for the memory of the GPUs");
    arena = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory) + PAGE_BYTES - 1) /
                                     PAGE_BYTES * PAGE_BYTES);
    (void)madvise(arena, ARENA_BYTES, MADV_HUGEPAGE); /* else it is slower */
    used_bytes = ALIGNMENT;
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGSEGV, &action, &before) != 0)
        refuse("simt: a handler of faults");
}

unsigned close_every = 1, opened; /* see device_memory_close_every */

void protect(int access)
{
    if (mprotect(arena, reached_bytes, access) != 0)
        refuse("simt: the memory of the GPUs");
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* With a gap behind it. */
size_t room_of(size_t bytes)
{
    return (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void left_add(char *begin, size_t bytes)
{
    auto next = left.lower_bound(begin);
    if (next != left.end() && next->first == begin + bytes) {
        bytes += next->second;
        next = left.erase(next);
    }
    if (next != left.begin() && std::prev(next)->first + std::prev(next)->second == begin)
        std::prev(next)->second += bytes;
    else
        left[begin] = bytes;
}

char *left_take(size_t room)
{
    auto fits = [=](const std::pair<char *const, size_t> &of) { return of.second >= room; };
    auto found = std::find_if(left.begin(), left.end(), fits);
    if (found == left.end())
        return nullptr;
    auto [begin, bytes] = *found;
    left.erase(found);
    if (bytes > room)
        left[begin + room] = bytes - room;
    return begin;
}

char *end_take(size_t room)
{
    if (room > ARENA_BYTES - used_bytes)
        return nullptr;
    char *begin = arena + used_bytes;
    used_bytes += room;
    if (used_bytes > reached_bytes) {
        size_t reached = (used_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        POISON(arena + reached_bytes, reached - reached_bytes);
        reached_bytes = reached;
        if (is_open)
            protect(PROT_READ | PROT_WRITE);
    }
    return begin;
}

} // namespace

void *device_memory_get(size_t bytes)
{
    if (arena == nullptr)
        arena_make();
    size_t room = room_of(bytes);
    char *begin = room < bytes ? nullptr : left_take(room);
    if (begin == nullptr && room >= bytes)
        begin = end_take(room);
    if (begin == nullptr)
        return nullptr;
    given[begin] = room;
    UNPOISON(begin, bytes);
    device_memory_open();
    std::memset(begin, 0xFF, bytes);
    return begin;
}

void device_memory_free(void *memory)
{
    auto piece = given.find(static_cast<char *>(memory));
    quarantine.push_back({piece->first, piece->second});
    quarantine_bytes += piece->second;
    POISON(piece->first, piece->second);
    given.erase(piece);
    while (quarantine_bytes > QUARANTINE_BYTES) {
        left_add(quarantine.front().begin, quarantine.front().bytes);
        quarantine_bytes -= quarantine.front().bytes;
        quarantine.pop_front();
    }
}

void device_memory_open()
{
    if (is_open || arena == nullptr)
        return;
    is_open = true;
    protect(PROT_READ | PROT_WRITE);
}

void device_memory_close()
{
    if (!is_open || ++opened % close_every != 0)
        return;
    is_open = false;
    protect(PROT_NONE);
}

void device_memory_close_every(unsigned n)
{
    close_every = n;
}

} // namespace simt
