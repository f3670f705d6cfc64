/* One collective as all its members see it: what each puts in, what each must get, and how many
 * bytes leave it; computed serially and by the words of comm.h, in memory of the test. */
#ifndef TESTS_COMM_SCENARIO_H
#define TESTS_COMM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "comm/comm.h"

#define MEMBERS_MAX  8
#define MESSAGES_MAX 40

enum kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL_V, EXCHANGE, KIND_COUNT };
extern const char *const kind_names[KIND_COUNT];

/* How much there is to move. */
enum profile {
    PROFILE_NOTHING,
    PROFILE_ONE,
    PROFILE_ODD,
    PROFILE_UNEVEN, /* some members have nothing */
    PROFILE_LONE,   /* only the last member has something */
    PROFILE_LARGE,  /* above 1 MiB */
    PROFILE_RANDOM,
    PROFILE_COUNT
};
extern const char *const profile_names[PROFILE_COUNT];

bool kind_can_be_in_place(enum kind kind);

/* A member's memory, in one block: margin, `in`, margin, `out`, margin; in place `in` and `out`
 * lie as the collective allows. What lies between must not change. */
struct image_place {
    int64_t bytes, in_at, out_at;
};

struct scenario {
    enum kind kind;
    enum profile profile;
    bool in_place;
    int tag;
    int size;
    uint64_t seed; /* of what the members put in */
    struct image_place places[MEMBERS_MAX];

    int64_t counts[MEMBERS_MAX]; /* all-gather: bytes; reductions: values (all-reduce: [0]) */

    /* All-to-all-v: bytes from a to b; where they lie at a and at b. */
    int64_t sends[MEMBERS_MAX][MEMBERS_MAX], receives[MEMBERS_MAX][MEMBERS_MAX];
    int64_t send_offsets[MEMBERS_MAX][MEMBERS_MAX], receive_offsets[MEMBERS_MAX][MEMBERS_MAX];

    /* Exchange: those from a to b are sent and received in this order. */
    struct {
        int from, to;
        int64_t bytes, from_at, to_at; /* in `in` of the one, `out` of the other */
    } messages[MESSAGES_MAX];
    int message_count;
    struct comm_message send_lists[MEMBERS_MAX][MESSAGES_MAX];
    struct comm_message receive_lists[MEMBERS_MAX][MESSAGES_MAX];
};

/* Draws what is open (PROFILE_RANDOM, the exchange's messages) from `random`. */
void scenario_make(struct scenario *out, enum kind kind, enum profile profile, bool in_place,
                   int size, int tag, struct random *random);

/* What the member has before; image[0 .. places[member].bytes - 1]. */
void scenario_fill(const struct scenario *scenario, int member, unsigned char *image);

/* What the member has after: `image` holds what it had before, as do images[m] for all members. */
void scenario_expect(const struct scenario *scenario, int member, unsigned char *image,
                     unsigned char *const *images);

/* Bytes that leave the member. */
uint64_t scenario_bytes(const struct scenario *scenario, int member);

/* Calls the collective for the member that `comm` is the end of, whose block on the device is
 * `block`. The scenario stays until the stream has passed. */
void scenario_post(struct scenario *scenario, struct comm *comm, struct stream *stream,
                   unsigned char *block);

#endif
