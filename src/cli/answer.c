#include "answer.h"

#include <stdio.h>

#include "commands.h"

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

enum phasor_status answer_inspect(json_t **out, const struct phasor_inspect_params *params,
                                  struct phasor_error *err)
{
    char *text;
    enum phasor_status status = phasor_inspect(&text, params, err);
    if (status != PHASOR_OK)
        return status;
    status = answer_read(out, text, err);
    phasor_text_free(text);
    return status;
}

int answer_show(const char *text, bool as_json, void (*print)(const json_t *root))
{
    json_t *root;
    struct phasor_error err;
    if (as_json) {
        printf("%s\n", text);
        return EXIT_DONE;
    }
    if (answer_read(&root, text, &err) != PHASOR_OK)
        return fail(&err);
    print(root);
    json_decref(root);
    return EXIT_DONE;
}
