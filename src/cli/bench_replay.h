/* Times of a plan on a box that is not here, for phasor bench: passes that were recorded on this
 * machine, replayed over the box's links. docs/bench.md has what is added up.
 */
#ifndef PHASOR_CLI_BENCH_REPLAY_H
#define PHASOR_CLI_BENCH_REPLAY_H

#include "bench_models.h"

struct bench_replayer {
    const struct bench_results *results; /* borrowed: question and cells */
    const char *folder;                  /* of recordings, which stay */
    struct bench_models models;          /* for what is not recorded yet */
    /* Of the question's models; "": not asked for yet. */
    char identities[BENCH_LIST_MAX][PHASOR_FINGERPRINT_BYTES];
    char static_tp[BENCH_LIST_MAX][BENCH_PLAN_BYTES]; /* whose speed here is the scale */
    bool makes_none;                                  /* recordings: there have to be all */
    int (*progress)(void *context);                   /* before each pass: not 0 stops */
    void *context;
};

/* As bench_runner_run: prefill of the round's own recordings, each rank's computation as long as it
 * was, with links as much slower as this machine's ranks computed slower in static TP's, which is
 * recorded for that where it is not among the modes; decode of durations that the box's figures
 * say, with sixteen lengths of the context; changes of layout as the planner has them. What was
 * recorded before is not recorded again. */
enum phasor_status bench_replayer_run(struct bench_replayer *replayer, struct bench_run *out,
                                      struct phasor_error *err);

/* Whether the last run that was made comes out as it did, by the recordings that are there: else
 * those, or phasor, are not what they were. Fails where one that is there cannot be replayed. */
enum phasor_status bench_replayer_agrees(bool *agrees, struct bench_replayer *replayer,
                                         struct phasor_error *err);

void bench_replayer_deinit(struct bench_replayer *replayer);

#endif
