/* How long prefill takes at least. */
#ifndef PHASOR_ENGINE_PREFILL_TRIAL_H
#define PHASOR_ENGINE_PREFILL_TRIAL_H

#include "exec/exec.h"

/* Of a short pass: it reads most of the weights that a long one reads, and computes less. So what
 * it hides a long one hides, and what it takes is seconds where a long one takes minutes. */
#define PREFILL_TRIAL_TOKENS 256

/* Tokens of the pass where passes have `token_max` at most (0: not known), a multiple of the
 * groups. */
int64_t prefill_trial_tokens(const struct model_config *config, const struct layout *layout,
                             int64_t token_max);

/* Bytes that it has on all ranks meanwhile. */
uint64_t prefill_trial_bytes(const struct exec_params *params);

/* Seconds of a pass of params->token_max tokens, a prompt for each data-parallel group
 * (segment_max). The text means nothing. A failure is for want of memory, or of the box. */
enum status prefill_trial(double *seconds, const struct exec_params *params,
                          struct error *err) MUST_CHECK;

#endif
