/* See nccl_stub.h. All state is within the emulated runtime's lock (simt_lock). */
#include "nccl_stub.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "simt_control.h"

/* ---- What nccl.h says of the calls that are stood in for ------------------------------------- */

enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};

struct ncclUniqueId {
    char internal[128];
};

struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct ncclComm;
typedef struct ncclComm *ncclComm_t;

#define DEFAULT_VERSION 23203

namespace {

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "nccl stub: ");
    std::vfprintf(stderr, format, arguments);
    std::fprintf(stderr, "\n");
    va_end(arguments);
    std::abort();
}

class within_lock {
  public:
    within_lock()
    {
        simt_lock();
    }
    ~within_lock()
    {
        simt_unlock();
    }
    within_lock(const within_lock &) = delete;
};

/* ---- What there is --------------------------------------------------------------------------- */

struct part;

/* From one member to another; the n-th that is sent meets the n-th that is received. */
struct message {
    part *of;
    bool is_gathered; /* of an all-gather */
    char *memory;
    size_t bytes;
};
struct pair {
    std::deque<message> sends, receives; /* that were launched */
};

/* The members of a communicator. */
struct clique {
    int id, size = 0;
    std::vector<ncclComm *> members; /* that have come */
    std::map<std::pair<int, int>, pair> pairs;
    std::set<std::pair<int, int>> meant; /* the second by the first, in any group so far */
};

struct call {
    bool is_send;
    int peer;
    message what;
    size_t index = 0; /* in its pair */
};

/* What a member launches at once. */
struct part {
    ncclComm *comm;
    cudaStream_t stream;
    std::vector<call> calls;
    std::vector<std::pair<char *, const char *>> own; /* of all-gathers, `own_bytes` each */
    std::vector<size_t> own_bytes;
    bool is_lost = false, has_begun = false, has_pulled = false, has_ended = false;
};

} // namespace

struct ncclComm {
    clique *of = nullptr;
    int member = 0, device = 0;
    int polls_left = 0;
    bool is_joining = true, is_aborted = false, is_finalized = false;
    ncclResult_t error = ncclSuccess;
    part *waiting = nullptr; /* is launched when polls_left is 0 */
    std::vector<part *> parts;
};

namespace {

std::map<std::string, std::unique_ptr<clique>> cliques;
std::vector<std::unique_ptr<ncclComm>> all_comms; /* items on streams name them */
std::vector<std::unique_ptr<part>> all_parts;
std::set<ncclComm *> live;
std::map<int, part *> on_gpu;
/* In which order the two GPUs of a pair have launched what is between them: of the first and the
 * second GPU, the communicators. */
std::map<std::pair<int, int>, std::pair<std::vector<int>, std::vector<int>>> orders;
int polls = 2, id_count;
uint64_t jitter, fail_in, lose_in, hang_in, launches, aborts;
int hangs; /* how often those that hang were told to go on */
ncclResult_t fail_result, lose_result;

/* The calls of a thread between begin and end of a group. */
struct group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<part *> parts;
};
thread_local group here;

#define RETURN_IF_FAILING()                                                                        \
    do {                                                                                           \
        if (fail_in > 0 && --fail_in == 0) {                                                       \
            here.error = here.depth > 0 ? fail_result : ncclSuccess;                               \
            return fail_result;                                                                    \
        }                                                                                          \
    } while (0)

void check_live(ncclComm *comm, const char *what)
{
    if (live.count(comm) == 0)
        die("%s of a handle that is no communicator any more", what);
}

/* ---- A launch -------------------------------------------------------------------------------- */

pair &pair_of(const part *of, const call &c)
{
    int self = of->comm->member;
    auto ends = c.is_send ? std::make_pair(self, c.peer) : std::make_pair(c.peer, self);
    return of->comm->of->pairs[ends];
}

bool may_begin(void *context)
{
    part *p = static_cast<part *>(context);
    return p->comm->is_aborted || (!p->is_lost && on_gpu[p->comm->device] == nullptr);
}

void begin(void *context)
{
    part *p = static_cast<part *>(context);
    if (p->comm->is_aborted)
        return;
    p->has_begun = true;
    on_gpu[p->comm->device] = p;
}

bool may_pull(void *context)
{
    part *p = static_cast<part *>(context);
    if (p->comm->is_aborted)
        return true;
    return std::all_of(p->calls.begin(), p->calls.end(), [p](const call &c) {
        const auto &sends = pair_of(p, c).sends;
        return c.is_send || (sends.size() > c.index && sends[c.index].of->has_begun &&
                             !sends[c.index].of->comm->is_aborted);
    });
}

void pull(void *context)
{
    part *p = static_cast<part *>(context);
    if (p->comm->is_aborted)
        return;
    for (const call &c : p->calls) {
        if (!c.is_send)
            std::memcpy(c.what.memory, pair_of(p, c).sends[c.index].memory, c.what.bytes);
        simt_peer_bytes_add(c.is_send ? 0 : c.what.bytes);
    }
    for (size_t i = 0; i < p->own.size(); i++)
        std::memmove(p->own[i].first, p->own[i].second, p->own_bytes[i]);
    p->has_pulled = true;
}

bool may_end(void *context)
{
    part *p = static_cast<part *>(context);
    if (p->comm->is_aborted)
        return true;
    return std::all_of(p->calls.begin(), p->calls.end(), [p](const call &c) {
        const auto &receives = pair_of(p, c).receives;
        return !c.is_send || (receives.size() > c.index && receives[c.index].of->has_pulled);
    });
}

void end(void *context)
{
    part *p = static_cast<part *>(context);
    p->has_ended = true;
    if (on_gpu[p->comm->device] == p)
        on_gpu[p->comm->device] = nullptr;
}

/* Names the call in its pair, and holds it against the other side's. */
void meet(part *p, call &c)
{
    pair &both = pair_of(p, c);
    auto &own = c.is_send ? both.sends : both.receives;
    const auto &others = c.is_send ? both.receives : both.sends;
    c.index = own.size();
    own.push_back(c.what);
    if (others.size() <= c.index)
        return;
    const message &other = others[c.index];
    if (other.bytes != c.what.bytes || other.is_gathered != c.what.is_gathered)
        die("communicator %d, message %zu: member %d %s %zu bytes%s, member %d %s %zu%s",
            p->comm->of->id, c.index + 1, p->comm->member, c.is_send ? "sends" : "receives",
            c.what.bytes, c.what.is_gathered ? " of an all-gather" : "", c.peer,
            c.is_send ? "receives" : "sends", other.bytes,
            other.is_gathered ? " of an all-gather" : "");
}

/* Two GPUs launch what is between them in one order, whatever the communicator. */
void check_order(const part *p)
{
    std::set<int> peers;
    for (const call &c : p->calls)
        peers.insert(p->comm->of->members[(size_t)c.peer]->device);
    for (int peer : peers) {
        int self = p->comm->device;
        auto &order = orders[{std::min(self, peer), std::max(self, peer)}];
        auto &own = self < peer ? order.first : order.second;
        const auto &other = self < peer ? order.second : order.first;
        own.push_back(p->comm->of->id);
        size_t n = own.size();
        if (other.size() >= n && other[n - 1] != own[n - 1])
            die("cuda:%d launches communicator %d where cuda:%d has launched communicator %d: they "
                "wait for each other for ever",
                self, own[n - 1], peer, other[n - 1]);
    }
}

bool overlap(const message &a, const message &b)
{
    return a.bytes > 0 && b.bytes > 0 && a.memory < b.memory + b.bytes &&
           b.memory < a.memory + a.bytes;
}

void check_memory(const part *p)
{
    for (const call &a : p->calls) {
        for (const call &b : p->calls) {
            if (!a.is_send && &a != &b && overlap(a.what, b.what))
                die("communicator %d, member %d: what is received overlaps what is %s",
                    p->comm->of->id, p->comm->member, b.is_send ? "sent" : "received");
        }
    }
}

void launch(part *p)
{
    if (simt_stream_device(p->stream) != p->comm->device)
        die("communicator %d, member %d: its stream is cuda:%d's, and it is cuda:%d's",
            p->comm->of->id, p->comm->member, simt_stream_device(p->stream), p->comm->device);
    launches++;
    if (lose_in > 0 && --lose_in == 0) {
        p->is_lost = true;
        p->comm->error = lose_result;
    }
    check_memory(p);
    check_order(p);
    for (call &c : p->calls)
        meet(p, c);
    p->comm->parts.push_back(p);
    simt_hold(p->stream, may_begin, begin, p);
    simt_hold(p->stream, may_pull, pull, p);
    simt_hold(p->stream, may_end, end, p);
}

/* Members connect when both mean to. */
bool may_launch(const part *p)
{
    const auto &meant = p->comm->of->meant;
    return std::all_of(p->calls.begin(), p->calls.end(), [&](const call &c) {
        return meant.count({c.peer, p->comm->member}) != 0;
    });
}

/* ---- Groups ---------------------------------------------------------------------------------- */

part *part_of(ncclComm *comm, cudaStream_t stream)
{
    for (part *p : here.parts) {
        if (p->comm == comm && p->stream == stream)
            return p;
        if (p->comm == comm)
            die("communicator %d, member %d: two streams in one group", comm->of->id, comm->member);
    }
    all_parts.emplace_back(new part{comm, stream, {}, {}, {}});
    here.parts.push_back(all_parts.back().get());
    return here.parts.back();
}

ncclResult_t group_close()
{
    std::vector<part *> parts = std::move(here.parts);
    ncclResult_t error = here.error;
    here.parts.clear();
    here.error = ncclSuccess;
    if (error != ncclSuccess)
        return error;
    bool are_launched = true;
    for (part *p : parts) {
        for (const call &c : p->calls)
            p->comm->of->meant.insert({p->comm->member, c.peer});
        if (polls == 0 && may_launch(p)) {
            launch(p);
            continue;
        }
        are_launched = false;
        p->comm->waiting = p;
        p->comm->polls_left = polls;
    }
    return are_launched ? ncclSuccess : ncclInProgress;
}

/* Of sends, receives and all-gathers. */
void check_ready(ncclComm *comm, const char *what)
{
    check_live(comm, what);
    if (here.depth == 0)
        die("%s outside of a group: it would wait for its peer", what);
    if (comm->is_joining || comm->waiting != nullptr || comm->is_finalized)
        die("%s of communicator %d, member %d, which is not ready", what, comm->of->id,
            comm->member);
}

} // namespace

#define API extern "C" __attribute__((visibility("default")))

/* ---- Calls ----------------------------------------------------------------------------------- */

API ncclResult_t ncclGetVersion(int *out)
{
    const char *given = std::getenv(NCCL_STUB_VERSION);
    *out = given != nullptr ? std::atoi(given) : DEFAULT_VERSION;
    return ncclSuccess;
}

API const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return texts[result];
}

API const char *ncclGetLastError(ncclComm_t)
{
    return "the stub was told to";
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    within_lock guard;
    RETURN_IF_FAILING();
    std::memset(out, 0, sizeof *out);
    std::snprintf(out->internal, sizeof out->internal, "stub %d", ++id_count);
    cliques[out->internal].reset(new clique{id_count, 0, {}, {}, {}});
    return ncclSuccess;
}

API ncclResult_t ncclGroupStart()
{
    uint64_t seed;
    {
        within_lock guard;
        RETURN_IF_FAILING();
        here.depth++;
        seed = jitter = jitter * 6364136223846793005u + (jitter != 0 ? 1442695040888963407u : 0);
    }
    if (seed != 0)
        usleep((useconds_t)(seed >> 33) % 400);
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd()
{
    within_lock guard;
    if (here.depth == 0)
        die("a group ends that has not begun");
    here.depth--;
    if (fail_in > 0 && --fail_in == 0)
        here.error = fail_result;
    return here.depth > 0 ? ncclSuccess : group_close();
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int member,
                                        ncclConfig_t *config)
{
    within_lock guard;
    RETURN_IF_FAILING();
    if (config->size < sizeof *config || config->magic != 0xcafebeef || config->version < 21400 ||
        config->blocking != 0)
        die("a configuration that is none, or blocks");
    if (cliques.count(id.internal) == 0 || member < 0 || member >= size)
        die("no such communicator, or member %d of %d", member, size);
    clique *of = cliques[id.internal].get();
    if (of->size != 0 && of->size != size)
        die("communicator %d has %d members, and has %d", of->id, size, of->size);
    of->size = size;
    of->members.resize((size_t)size);
    all_comms.emplace_back(new ncclComm());
    ncclComm *comm = all_comms.back().get();
    comm->of = of;
    comm->member = member;
    comm->device = simt_current_device();
    comm->polls_left = polls;
    of->members[(size_t)member] = comm;
    live.insert(comm);
    for (ncclComm *other : of->members) {
        if (other != nullptr && other != comm && other->device == comm->device)
            comm->error = ncclInvalidUsage;
    }
    *out = comm;
    return ncclInProgress;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    within_lock guard;
    check_live(comm, "ncclCommGetAsyncError");
    RETURN_IF_FAILING();
    *out = comm->error;
    if (comm->error != ncclSuccess)
        return ncclSuccess;
    *out = ncclInProgress;
    const auto &members = comm->of->members;
    if (comm->polls_left > 0) {
        comm->polls_left--;
        return ncclSuccess;
    }
    if (comm->is_joining && std::count(members.begin(), members.end(), nullptr) > 0)
        return ncclSuccess;
    comm->is_joining = false;
    if (comm->waiting != nullptr && !may_launch(comm->waiting))
        return ncclSuccess;
    if (comm->waiting != nullptr)
        launch(std::exchange(comm->waiting, nullptr));
    bool runs = std::any_of(comm->parts.begin(), comm->parts.end(),
                            [](const part *p) { return !p->has_ended; });
    if (comm->is_finalized && runs) {
        simt_step();
        return ncclSuccess;
    }
    *out = comm->error;
    return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    within_lock guard;
    check_live(comm, "ncclCommFinalize");
    RETURN_IF_FAILING();
    comm->is_finalized = true;
    comm->polls_left = polls;
    return ncclInProgress;
}

API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    within_lock guard;
    check_live(comm, "ncclCommDestroy");
    for (const part *p : comm->parts) {
        if (!p->has_ended)
            die("communicator %d, member %d: destroyed while it runs", comm->of->id, comm->member);
    }
    if (!comm->is_finalized)
        die("communicator %d, member %d: destroyed before it was finalized", comm->of->id,
            comm->member);
    live.erase(comm);
    RETURN_IF_FAILING();
    return ncclSuccess;
}

/* As NCCL's: it returns when what the member has launched has left its GPU, for which what stands
 * before it on its streams has to go on. */
static void wait_until_left(const ncclComm *comm)
{
    for (;;) {
        {
            within_lock guard;
            if (simt_is_broken() || std::all_of(comm->parts.begin(), comm->parts.end(),
                                                [](const part *p) { return p->has_ended; }))
                return;
            if (simt_step())
                continue;
        }
        usleep(100);
    }
}

static ncclResult_t abort_tell(ncclComm_t comm)
{
    within_lock guard;
    check_live(comm, "ncclCommAbort");
    live.erase(comm);
    aborts++;
    comm->is_aborted = true;
    comm->waiting = nullptr;
    for (auto &[gpus, order] : orders) { /* what it has launched alone is no order */
        for (auto *list : {&order.first, &order.second})
            list->erase(std::remove(list->begin(), list->end(), comm->of->id), list->end());
    }
    for (part *p : comm->parts) {
        if (on_gpu[comm->device] == p)
            on_gpu[comm->device] = nullptr;
    }
    RETURN_IF_FAILING();
    return ncclSuccess;
}

/* Where this one is to hang. */
static void wait_until_let_go()
{
    int before;
    {
        within_lock guard;
        if (hang_in == 0 || --hang_in > 0)
            return;
        before = hangs;
    }
    for (;;) {
        {
            within_lock guard;
            if (hangs != before)
                return;
        }
        usleep(1000);
    }
}

API ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    ncclResult_t result = abort_tell(comm);
    wait_until_left(comm);
    wait_until_let_go();
    return result;
}

static ncclResult_t put(const char *name, bool is_send, void *memory, size_t count, int type,
                        int peer, ncclComm *comm, cudaStream_t stream)
{
    within_lock guard;
    check_ready(comm, name);
    RETURN_IF_FAILING();
    if (type != 0 || peer < 0 || peer >= comm->of->size || peer == comm->member || count == 0)
        die("%s: %zu of type %d to or from %d of %d", name, count, type, peer, comm->of->size);
    part *p = part_of(comm, stream);
    p->calls.push_back({is_send, peer, {p, false, static_cast<char *>(memory), count}});
    return ncclSuccess;
}

API ncclResult_t ncclSend(const void *in, size_t count, int type, int peer, ncclComm_t comm,
                          cudaStream_t stream)
{
    return put("ncclSend", true, const_cast<void *>(in), count, type, peer, comm, stream);
}

API ncclResult_t ncclRecv(void *out, size_t count, int type, int peer, ncclComm_t comm,
                          cudaStream_t stream)
{
    return put("ncclRecv", false, out, count, type, peer, comm, stream);
}

API ncclResult_t ncclAllGather(const void *in, void *out, size_t count, int type, ncclComm_t comm,
                               cudaStream_t stream)
{
    within_lock guard;
    check_ready(comm, "ncclAllGather");
    RETURN_IF_FAILING();
    char *own = static_cast<char *>(out) + (size_t)comm->member * count;
    message whole{nullptr, true, static_cast<char *>(out), count * (size_t)comm->of->size};
    message sent{nullptr, true, const_cast<char *>(static_cast<const char *>(in)), count};
    if (type != 0 || count == 0 || (in != own && overlap(whole, sent)))
        die("ncclAllGather: %zu of type %d, or neither in place nor apart", count, type);
    part *p = part_of(comm, stream);
    for (int m = 0; m < comm->of->size; m++) {
        if (m == comm->member)
            continue;
        char *place = static_cast<char *>(out) + (size_t)m * count;
        p->calls.push_back({true, m, {p, true, sent.memory, count}});
        p->calls.push_back({false, m, {p, true, place, count}});
    }
    p->own.emplace_back(own, static_cast<const char *>(in));
    p->own_bytes.push_back(count);
    return ncclSuccess;
}

/* ---- For tests ------------------------------------------------------------------------------- */

static const nccl_stub control = {
    [](int count) {
        within_lock guard;
        polls = count;
    },
    [](uint64_t seed) {
        within_lock guard;
        jitter = seed;
    },
    [](uint64_t n, int result) {
        within_lock guard;
        fail_in = n;
        fail_result = static_cast<ncclResult_t>(result);
    },
    []() {
        within_lock guard;
        return fail_in > 0;
    },
    [](uint64_t n, int result) {
        within_lock guard;
        lose_in = n;
        lose_result = static_cast<ncclResult_t>(result);
    },
    [](uint64_t n) {
        within_lock guard;
        hang_in = n;
        hangs += n == 0;
    },
    []() {
        within_lock guard;
        return launches;
    },
    []() {
        within_lock guard;
        return aborts;
    },
    []() {
        within_lock guard;
        return (uint64_t)live.size();
    },
};

API const nccl_stub *nccl_stub_get(void)
{
    return &control;
}
