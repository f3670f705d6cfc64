/* From a model's name to its backup: what `phasor quantize` does. */
#ifndef PHASOR_ENGINE_QUANTIZE_H
#define PHASOR_ENGINE_QUANTIZE_H

#include "quant/backup_write.h"

#define QUANTIZE_THREADS_MAX 4096

struct quantize_params {
    const char *model, *revision;
    bool verifies;                    /* else writes */
    struct backup_write_params write; /* path NULL: in the cache */
};

enum status quantize_run(struct backup_report *out, const struct quantize_params *params,
                         struct error *err) MUST_CHECK;

/* The path in the cache, whatever params->write.path is; freed by memory_free. */
enum status quantize_path(char **out, const struct quantize_params *params,
                          struct error *err) MUST_CHECK;

#endif
