#include "run_files.h"

#include "commands.h"

int run_files_check(const struct run_files *files)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    struct phasor_error err;
    params.input_path = files->input;
    params.output_path = files->output;
    params.error_path = files->errors;
    params.metrics_path = files->metrics;
    params.summary_path = files->summary;
    params.trace_path = files->trace;
    params.record_path = files->record;
    params.routing_counts_path = files->routing_counts;
    params.overwrite = files->keeps_output;
    return phasor_batch_check(&params, &err) == PHASOR_OK ? -1 : fail(&err);
}
