/* A small job for the tests of resuming: good and wrong rows, an output and an error file, and what
 * stands in them when nobody disturbs the run. */
#ifndef RESUME_TOOLS_H
#define RESUME_TOOLS_H

#include <stdbool.h>

#include "base/disk.h"
#include "phasor.h"

#define JOB_MODEL TEST_DATA "/models/mixtral" /* no tokenizer: it loads in a moment */
#define JOB_OTHER TEST_DATA "/models/mixtral-tied"

#define ROW(id, body)                                                                              \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{" body    \
    "}}\n"

struct job {
    char folder[256], input[300], output[300], errors[300], record[300];
    char *expected; /* its lines in order, with created 0 */
};

/* Writes the input into the test's folder; runs nothing. */
void job_init(struct job *job);
/* Runs it undisturbed, keeps what is expected, and removes the files. Its own process opens the
 * model, so that the caller has no threads and may fork. */
void job_expect(struct job *job);
void job_deinit(struct job *job);

/* Removes output, errors and record. */
void job_clear(const struct job *job);

struct phasor_batch_params job_params(const struct job *job);
struct phasor_model *job_model(const char *path);

/* Runs it in a process of its own; what waitpid tells. Exits with the status of the run. */
int job_run_apart(const struct phasor_batch_params *params, const struct disk_hooks *hooks);

/* Runs it here, with a model that is open. */
enum phasor_status job_run(struct phasor_model *model, const struct phasor_batch_params *params,
                           struct phasor_batch_result *result, struct phasor_error *err);

/* All lines of output and errors, sorted, with created 0; freed by free(). Fails the test when a
 * line is not whole, or one has another `created` than the record's `begun`. */
char *job_lines(const struct job *job);

/* Fails the test unless each row has its line, once, with the expected bytes. */
void job_check(const struct job *job, const char *what);

#endif
