/* From a recording and a box to a report: what `phasor replay` does. */
#ifndef PHASOR_ENGINE_REPLAY_H
#define PHASOR_ENGINE_REPLAY_H

#include <stdbool.h>

#include "base/status.h"

struct replay_params {
    const char *recording_path;
    const char *box; /* a name of box_files.h or a file's; NULL: as recorded */
    bool is_modelled, is_scaled;
    bool leaves_out_host;   /* with is_modelled */
    const char *trace_path; /* NULL: none is written */
    double link_scale;      /* with is_scaled: that of another recording; 0: this one's */
};

/* `*out_json` is released by memory_free. */
enum status replay_run(char **out_json, const struct replay_params *params,
                       struct error *err) MUST_CHECK;

#endif
