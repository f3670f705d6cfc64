/* What a call of the library answers with, read again. */
#ifndef PHASOR_CLI_ANSWER_H
#define PHASOR_CLI_ANSWER_H

#include <jansson.h>
#include <stdbool.h>

#include "phasor.h"

/* `*out` is the caller's, and so stays `text`. What the answer took from a file, and its reader
 * accepted, is accepted here, too. */
enum phasor_status answer_read(json_t **out, const char *text,
                               struct phasor_error *err) PHASOR_MUST_CHECK;

/* phasor_inspect's. */
enum phasor_status answer_inspect(json_t **out, const struct phasor_inspect_params *params,
                                  struct phasor_error *err) PHASOR_MUST_CHECK;

/* To standard output: as it is, or as `print` shows it. Returns the exit code. */
int answer_show(const char *text, bool as_json, void (*print)(const json_t *root));

#endif
