/* Progress on stderr: one line that is redrawn on a terminal, plain lines every few seconds
 * elsewhere, nothing when quiet. Honours NO_COLOR and TERM=dumb. */
#ifndef PHASOR_CLI_PROGRESS_H
#define PHASOR_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "phasor.h"

struct progress {
    bool is_quiet;
    bool is_verbose; /* informational messages are shown, too */
    bool is_terminal;
    bool has_color;
    bool is_drawn; /* a line stands on the terminal and has to be erased */
    double drawn_at;
    double started_at; /* of the present phase */
    uint64_t done;     /* bytes or points in it, as they were told last */
    uint64_t steps;    /* points that came one by one since others came together */
    uint64_t found;    /* points that nobody measured now */
};

/* Seconds of a clock that nobody sets. */
double progress_now(void);

void progress_init(struct progress *progress, bool is_quiet, bool is_verbose);

/* A new phase begins: its clock starts. */
void progress_begin(struct progress *progress);

/* They are cheap when it is not time to draw. */
void progress_bytes(struct progress *progress, const char *label, uint64_t done, uint64_t total);
void progress_points(struct progress *progress, const char *label, uint64_t done, uint64_t total,
                     const char *what);
/* With the time that is left, as if each point that is to come took as long as those that were
 * measured: for points that are alike, of a caller that knows no better. */
void progress_points_left(struct progress *progress, const char *label, uint64_t done,
                          uint64_t total, const char *what);
void progress_rows(struct progress *progress, const struct phasor_batch_progress *now);

/* Takes the line off the terminal, so that something else can be written. */
void progress_erase(struct progress *progress);

/* A phasor_log_fn; `context` is the progress. */
void progress_log(void *context, enum phasor_log_level level, const char *message);

#endif
