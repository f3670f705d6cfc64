/* Which checkpoint is behind a path, for phasor bench: another may be there the next time. */
#ifndef PHASOR_CLI_BENCH_IDENTITY_H
#define PHASOR_CLI_BENCH_IDENTITY_H

#include "phasor.h"

#define BENCH_IDENTITY_BYTES 33

/* The fingerprint of the model's weights, 32 digits. Fails where there are none. */
enum phasor_status bench_identity_get(char out[BENCH_IDENTITY_BYTES], const char *model,
                                      struct phasor_error *err) PHASOR_MUST_CHECK;

#endif
