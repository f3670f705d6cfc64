#include "bench_identity.h"

#include <stdio.h>
#include <string.h>

/* The name of its backup begins with it. */
enum phasor_status bench_identity_get(char out[BENCH_IDENTITY_BYTES], const char *model,
                                      struct phasor_error *err)
{
    struct phasor_quantize_params params = phasor_quantize_params_default();
    char *path;
    params.model = model;
    enum phasor_status status = phasor_backup_path(&path, &params, err);
    if (status != PHASOR_OK)
        return status;
    const char *slash = strrchr(path, '/');
    snprintf(out, BENCH_IDENTITY_BYTES, "%s", slash == NULL ? path : slash + 1);
    phasor_text_free(path);
    return PHASOR_OK;
}
