/* The rows of a batch file, for a plan that is only asked about: how long they are for a model of
 * which there may be no more than a config. */
#ifndef PHASOR_ENGINE_PLAN_ROWS_H
#define PHASOR_ENGINE_PLAN_ROWS_H

#include "engine/batch_lengths.h"
#include "model/config.h"

/* With the tokenizer in `dir`, where there is one; without, rows of token ids alone are counted, as
 * a run would refuse the others. `shares_prefixes` is as of phasor_batch_params.
 * STATUS_INVALID_ARGUMENT where no row can be run. To be deinitialised after success. */
enum status plan_rows_read(struct batch_lengths *out, const char *path, const char *dir,
                           const struct model_config *config, bool shares_prefixes,
                           struct error *err) MUST_CHECK;

#endif
