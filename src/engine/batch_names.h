/* The names of a run's files, looked at before any of them is opened: that each can be what it is
 * to be, and that none destroys another file of the run, of the model, or of somebody else. */
#ifndef PHASOR_ENGINE_BATCH_NAMES_H
#define PHASOR_ENGINE_BATCH_NAMES_H

#include "base/status.h"
#include "engine/side_file.h"
#include "phasor.h"

enum batch_side { SIDE_METRICS, SIDE_SUMMARY, SIDE_TRACE, SIDE_RECORD, SIDE_ROUTING, SIDE_COUNT };

/* The files that tell about the run, by its parameters; borrows the names. */
struct side_file batch_names_side(const struct phasor_batch_params *params, enum batch_side side);

/* What has to hold in any case. Checks of output and errors that batch_writer_open makes are left
 * to it. Leaves nothing behind. */
enum status batch_names_check(const struct phasor_batch_params *params,
                              struct error *err) MUST_CHECK;

/* That output and errors are no files of the model, which --overwrite would destroy; whatever a
 * run wrote into the model's directory before is none. */
enum status batch_names_check_model(const struct phasor_batch_params *params, const char *model_dir,
                                    struct error *err) MUST_CHECK;

/* All that can be told before a model is loaded: batch_names_check, and whether the input can be
 * read, and output and errors written. */
enum status batch_names_check_early(const struct phasor_batch_params *params,
                                    struct error *err) MUST_CHECK;

#endif
