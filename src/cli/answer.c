#include "answer.h"

#include <stdio.h>

enum phasor_status answer_read(json_t **out, const char *text, struct phasor_error *err)
{
    json_error_t reason;
    *out = json_loads(text, JSON_ALLOW_NUL, &reason); /* a recording may have one in its texts */
    if (*out != NULL)
        return PHASOR_OK;
    err->status = PHASOR_INTERNAL;
    snprintf(err->message, sizeof err->message,
             "the library's answer is not the JSON that it should be: %s", reason.text);
    return err->status;
}
