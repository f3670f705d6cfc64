/* Collectives between the ranks of a box.
 *
 * A communicator joins some ranks; each has its own end, `struct comm`, numbered 0 .. size - 1 in
 * the order in which the ranks were given. A collective is put on a stream of the rank's device and
 * runs in its order; every member calls the same ones in the same order. Arrays of counts are
 * borrowed until the stream has passed. Reductions add in the order of the members, so the same
 * input gives the same bits.
 *
 * Failures are the stream's (device/device.h): a call that does not fit the others' (its operation,
 * its counts), a member that does not come, and an abort all end the run on every rank with one
 * sentence that names rank and operation. Nothing is copied before all members' calls have been
 * checked against one another.
 *
 * Backends: `local` (ranks of one process), `slow`, the same with links as slow as they are told,
 * by which replay is held against runs; of GPUs `nccl`, where every rank has one of its own and
 * there is an NCCL (nccl_library.h), and `virtual`, where there is none, some share one, or links
 * are to be slow. Which it is, the devices say, which are all of one kind.
 */
#ifndef PHASOR_COMM_COMM_H
#define PHASOR_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "device/device.h"

#define COMM_RANKS_MAX 64
#define COMM_TAGS_MAX  16 /* kinds of traffic that are counted apart; the caller names them */

/* ---- What all communicators of a box share: the failure, the watchdog, the counters -----------
 */

struct comm_domain;

/* Slow links, in both directions at once: of the CPU's ranks one between each two (slow.c), of GPUs
 * one for each rank, over which goes all that it sends or receives in collectives, one after
 * another where several run at once (virtual.c). So fast, behind so much for each step of a
 * collective. */
struct comm_links {
    double bytes_per_second; /* 0: as fast as memory is, and no latency */
    double latency_seconds;
};

struct comm_domain_params {
    struct device *const *devices; /* [rank_count], borrowed */
    int rank_count;                /* 1 .. COMM_RANKS_MAX */
    double patience_seconds;      /* no rank's stream moves for so long while one is waited for: the
                                   * run is ended; 0: 10 seconds, and 100
                                   * where links of GPUs are slow */
    const char *const *tag_names; /* [tag_count] for sentences, NULLs allowed */
    int tag_count;                /* <= COMM_TAGS_MAX; 0: tags have no names */
    struct comm_links links;      /* {0}: none are slow */
    struct log_sink log; /* is told once how several GPUs are joined, and of what is aborted
                          * and does not end; it outlives the domain */
};

/* Installs the failure handler of each device, so that a stream that fails ends the waiting of all
 * others. */
enum status comm_domain_create(struct comm_domain **out, const struct comm_domain_params *params,
                               struct error *err) MUST_CHECK;
void comm_domain_destroy(struct comm_domain *domain); /* after its communicators; NULL is allowed */

/* Ends every collective that waits or comes later, in all communicators; the first cause stays and
 * is what all streams report. Any thread. */
void comm_domain_abort(struct comm_domain *domain, int rank, const struct error *cause);

/* Whether the run was ended; then `*cause` (may be NULL) is the first failure, its sentence naming
 * the rank. Returns STATUS_OK where nothing failed. Any thread. */
enum status comm_domain_failure(const struct comm_domain *domain, struct error *cause) MUST_CHECK;

/* For waiting that is none of a collective's. The one who works says so, piece by piece, where that
 * is not on device->stream; the one who waits asks about every comm_domain_poll_seconds: 0, or the
 * patience, once no rank has moved for so long. Any thread. */
void comm_domain_moved(struct comm_domain *domain, int rank);
double comm_domain_poll_seconds(const struct comm_domain *domain);
double comm_domain_quiet_seconds(struct comm_domain *domain);

/* From here until it is called with false a rank waits for somebody outside the box (a caller who
 * is asked): that takes no patience from who waits for the rank. One thread at a time. */
void comm_domain_set_away(struct comm_domain *domain, bool is_away);

/* Bytes of payload that have left `rank` for other ranks, counted where they are copied: payload
 * times receivers. Any thread; exact when the streams have been synchronized. */
uint64_t comm_domain_bytes(const struct comm_domain *domain, int rank, int tag);

/* ---- Communicators --------------------------------------------------------------------------- */

struct comm;

/* Fills out[0 .. member_count - 1] with the ends of the given ranks (distinct). */
enum status comm_create(struct comm **out, struct comm_domain *domain, const int *ranks,
                        int member_count, struct error *err) MUST_CHECK;
/* Each member's end; the last one frees what they share. Not while a collective is under way. */
void comm_destroy(struct comm *comm); /* NULL is allowed */

int comm_size(const struct comm *comm);
int comm_member(const struct comm *comm); /* this end's number */

/* ---- Collectives. Counts are >= 0 and may be 0; `tag` says where bytes are counted. ------------
 * Buffers are of the rank's device. Cost: bytes that leave a rank are stated for each. */

/* out = the members' bytes one after another. counts[m] is equal at all members. `in` may be the
 * member's own place in `out`. Bytes: counts[own] x (size - 1). */
struct comm_all_gather {
    void *out;             /* [sum of counts] */
    const void *in;        /* [counts[own]] */
    const int64_t *counts; /* [size] bytes */
    int tag;
};
void comm_all_gather(struct comm *comm, struct stream *stream, const struct comm_all_gather *op);

/* out = the own part of the sum of all members' `in`. counts[m] is equal at all members. `out` may
 * be the own part of `in`. Bytes: 4 x (sum of counts - counts[own]). */
struct comm_reduce_scatter {
    float *out;            /* [counts[own]] */
    const float *in;       /* [sum of counts] */
    const int64_t *counts; /* [size] values */
    int tag;
};
void comm_reduce_scatter(struct comm *comm, struct stream *stream,
                         const struct comm_reduce_scatter *op);

/* out = the sum of all members' `in`; out may be in. It is a reduce-scatter and an all-gather over
 * parts of ceil(count / size) rounded up to 16 values (comm_part), and counts bytes as they do. */
struct comm_all_reduce {
    float *out;      /* [count] */
    const float *in; /* [count] */
    int64_t count;
    int tag;
};
void comm_all_reduce(struct comm *comm, struct stream *stream, const struct comm_all_reduce *op);

/* Member m's part of an all-reduce: values [*first, *first + *count). */
void comm_part(int64_t *first, int64_t *count, int64_t total, int size, int member);

/* send_counts[m] bytes from in + send_offsets[m] go to member m, where they arrive at out +
 * receive_offsets[this member]; the counts of sender and receiver agree. `in` and `out` do not
 * overlap. The own part is copied and not counted. Bytes: sum of send_counts but the own. */
struct comm_all_to_all_v {
    void *out;
    const void *in;
    const int64_t *send_counts, *send_offsets;       /* [size] bytes */
    const int64_t *receive_counts, *receive_offsets; /* [size] bytes */
    int tag;
};
void comm_all_to_all_v(struct comm *comm, struct stream *stream,
                       const struct comm_all_to_all_v *op);

/* A group of messages that run together; every member calls it, with no messages where it has
 * none. The i-th send from a to b meets the i-th receive at b from a, of the same bytes. Received
 * bytes do not overlap anything that is sent. To itself is allowed and not counted. Bytes: what is
 * sent. */
struct comm_message {
    int peer;
    void *data; /* a receive writes it, a send only reads it */
    int64_t bytes;
};
struct comm_exchange {
    const struct comm_message *sends;
    const struct comm_message *receives;
    int64_t send_count, receive_count;
    int tag;
};
void comm_exchange(struct comm *comm, struct stream *stream, const struct comm_exchange *op);

#endif
