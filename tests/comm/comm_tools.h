/* Ranks to test with. */
#ifndef TESTS_COMM_COMM_TOOLS_H
#define TESTS_COMM_COMM_TOOLS_H

#include "comm/box.h"
#include "scenario.h"

/* A way to join ranks: each runs the same suite. */
struct backend {
    const char *name;
    /* One thread for each rank; patience 0: 10 seconds. */
    enum status (*open)(struct box **out, int rank_count, double patience_seconds,
                        struct error *err);
    void (*close)(struct box *box);
};
extern const struct backend backends[];
extern const int backend_count;

/* Seconds of patience that no delay uses up: what does not end then hangs, and the runner ends it.
 */
#define FOREVER 1e9

/* The name of tag t is tag_names[t]; the last one has none. */
extern const char *const tag_names[COMM_TAGS_MAX];

/* On the first backend; closed by box_close. */
struct box *test_box_open(int rank_count, double patience_seconds);

/* Asserts that the run succeeds. */
void test_box_run(struct box *box, enum status (*work)(void *context, int rank, struct error *err),
                  void *context);

/* A communicator of ranks 0 .. member_count - 1. */
void test_comm_create(struct comm **out, struct box *box, int member_count);
void test_comms_destroy(struct comm **comms, int member_count);

/* Puts a pause of microseconds on the stream. */
void stream_pause(struct box *box, int rank, int64_t microseconds);
void sleep_microseconds(int64_t microseconds);

/* PHASOR_TEST_SEED, or a fixed one; printed, so that a failure can be repeated. */
uint64_t test_seed(const char *test);

/* Every member's images of one scenario, on the host. */
struct trial {
    struct scenario scenario;
    unsigned char *before[MEMBERS_MAX], *after[MEMBERS_MAX], *expected[MEMBERS_MAX];
};
void trial_prepare(struct trial *trial); /* after scenario_make */
void trial_free(struct trial *trial);

/* Puts one member's part on its device's stream: its image to `block` on the device, the
 * collective, the block to `after`. */
void trial_post(struct trial *trial, struct comm *comm, struct device *device,
                struct stream *stream, unsigned char *block);

/* Whether the member has what it must have; the sentence says which byte is wrong. */
enum status trial_check(const struct trial *trial, int member, struct error *err) MUST_CHECK;

#endif
