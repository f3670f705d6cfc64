/* The devices of one machine, one host thread for each rank, and what joins them. */
#ifndef PHASOR_COMM_BOX_H
#define PHASOR_COMM_BOX_H

#include "comm/comm.h"

struct box;
struct thread_team;
struct trace_lane;

struct box_params {
    int rank_count;               /* 1 .. COMM_RANKS_MAX; may exceed the cores */
    int thread_count;             /* of all ranks together; 0: the CPUs that the process may use.
                                   * Each rank has its share, at least 1; they are pinned to
                                   * neighbouring CPUs where every thread has its own */
    double patience_seconds;      /* see comm_domain_params */
    const char *const *tag_names; /* see comm_domain_params */
    int tag_count;
    const int *gpus;         /* [rank_count]: rank r is cuda:gpus[r], on which others may be, too:
                              * all of these have an equal part of its multiprocessors, or none
                              * has; NULL: each is a share of the CPU. Those below but `trace` and
                              * `log` are the CPU's */
    const char *kernels;     /* see cpu_share; NULL */
    struct turn *turn;       /* see device/device.h; NULL */
    struct trace *trace;     /* see cpu_share; NULL */
    struct comm_links links; /* {0}: as fast as they are */
    struct log_sink log;     /* see comm_domain_params; and is told of GPUs without parts */
};

enum status box_open(struct box **out, const struct box_params *params,
                     struct error *err) MUST_CHECK;
void box_close(struct box *box); /* NULL is allowed */

int box_rank_count(const struct box *box);
struct device *box_device(const struct box *box, int rank);
struct comm_domain *box_domain(const struct box *box);
struct trace *box_trace(const struct box *box); /* NULL: none */

/* Whether each rank has memory that is not the host's. */
bool box_memory_is_apart(const struct box *box);

/* Bytes that all ranks together can still have, and that they have; where memory is apart by the
 * rank with the least left, and the most: a plan gives them alike. On the host these are the
 * machine's, and all that the process holds through base/memory.h. */
uint64_t box_memory_left(const struct box *box);
uint64_t box_memory_held(const struct box *box);

/* Runs work(context, rank, err) on the host thread of every rank (rank 0: the caller's) and returns
 * when all are done. When one fails, all collectives are aborted, so that the others end as well;
 * the answer is the first cause, and the box is of no more use. One caller at a time. */
enum status box_run(struct box *box,
                    enum status (*work)(void *context, int rank, struct error *err), void *context,
                    struct error *err) MUST_CHECK;

/* Host threads of the caller's, one for each rank. */
struct box_hosts {
    struct thread_team *team;
    struct trace_lane *lanes[COMM_RANKS_MAX]; /* theirs while they work */
};
enum status box_hosts_init(struct box_hosts *out, const struct box *box, const char *lane_name,
                           struct error *err) MUST_CHECK;
void box_hosts_deinit(struct box_hosts *hosts); /* {0} is allowed */

/* The same as box_run on these, so that it can go on beside a box_run. The ranks' streams are
 * device->stream's users' alone: what the work puts on others has to have ended when it returns,
 * also where it failed. */
enum status box_run_on(struct box *box, const struct box_hosts *hosts,
                       enum status (*work)(void *context, int rank, struct error *err),
                       void *context, struct error *err) MUST_CHECK;

#endif
