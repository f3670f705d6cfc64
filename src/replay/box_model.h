/* A box as replay and the planner see it: devices, and links between them. Read from a JSON file
 * (docs/box-format.md; the shipped ones are in boxes/), every number of which names its source.
 *
 * The ranks, the host, the disk and any switches are the ends of links. Bytes take the route of the
 * fewest links, among equals that of the lowest link numbers, compared from the sender on; ranks
 * and disks do not forward. A link's two directions are apart, but where it is half duplex. Latency
 * is that of the links on the route, and of the collective's step.
 */
#ifndef PHASOR_REPLAY_BOX_MODEL_H
#define PHASOR_REPLAY_BOX_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "replay/recording.h"

#define BOX_FILE_BYTES_MAX ((size_t)1 << 20)

#define BOX_LINKS_MAX     256
#define BOX_ENDS_MAX      160
#define BOX_PROTOCOLS_MAX 4
#define BOX_ROUTE_MAX     8

struct box_link {
    char name[32];
    int ends[2];
    double bytes_per_second; /* of a direction; half duplex: of both together */
    double latency;          /* seconds */
    bool is_half_duplex;
};

enum algorithm { ALGORITHM_DIRECT, ALGORITHM_RING, ALGORITHM_COUNT };

/* How a communicator sends: the one that is soonest done on an idle box is taken for each call.
 * NCCL's LL, LL128 and Simple are such. */
struct box_protocol {
    char name[16];
    double base_latency;    /* seconds, once for a collective */
    double step_latency;    /* seconds, for each step */
    double message_latency; /* seconds, direct: for each message of the member who has most */
    double efficiency;      /* above 0, at most 1: of the links' bandwidth */
};

struct box_collective {
    enum algorithm algorithm;
    int protocol_count; /* >= 1 */
    struct box_protocol protocols[BOX_PROTOCOLS_MAX];
};

/* Of one device, for modelled durations: the longer of flops over peak and bytes over bandwidth;
 * and `launch` in any case. Efficiencies are above 0, at most 1. */
struct box_device {
    double peak_flops; /* of bf16 or fp16 products */
    double memory_bytes_per_second;
    double launch; /* seconds */
    double flops_efficiency[WORK_KIND_COUNT];
    double bytes_efficiency[WORK_KIND_COUNT];
    uint64_t memory_bytes;
};

/* A route: links from the sender's end on, and the direction of each (0: from ends[0] to
 * ends[1]). */
struct box_route {
    int count;
    uint8_t link[BOX_ROUTE_MAX];
    uint8_t direction[BOX_ROUTE_MAX];
};

struct box_model {
    char name[32];
    char title[128];
    int rank_count;
    int end_count;  /* ranks first: end r is rank r */
    int host, disk; /* ends; -1: it has none */
    char end_names[BOX_ENDS_MAX][32];
    int link_count;
    struct box_link links[BOX_LINKS_MAX];
    struct box_device device;
    struct box_collective collectives[COLLECTIVE_OP_COUNT];
    int memory_of[RECORDING_RANKS_MAX]; /* which shared memory a rank computes from; -1: its own */
    int memory_count;
    double memory_bytes_per_second[RECORDING_RANKS_MAX];
    bool has_one_slot;   /* all ranks compute on one */
    uint64_t host_bytes; /* of the host's memory; 0: not said */
};

enum status box_model_read(struct box_model *out, const char *path, struct error *err) MUST_CHECK;
/* Of a file's text that was parsed already, which stays the caller's; `path` is for sentences. With
 * a seed as `draw` the numbers of `json` itself become what is drawn (box_draw.h), also where this
 * fails then; 0: as they stand. STATUS_INVALID_ARGUMENT where none has a range. */
enum status box_model_of(struct box_model *out, json_t *json, const char *path, uint64_t draw,
                         struct error *err) MUST_CHECK;

/* Between any two ends; STATUS_INVALID_ARGUMENT where no links join them, or too many. */
enum status box_model_route(struct box_route *out, const struct box_model *box, int from, int to,
                            struct error *err) MUST_CHECK;

#endif
