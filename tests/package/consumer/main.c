/* A program of somebody else's: generates a few tokens with an installed libphasor. Its own
 * status_name must not meet the one inside of the library. */
#include <phasor.h>
#include <stdio.h>
#include <string.h>

const char *status_name(int status);
const char *status_name(int status)
{
    return status == 0 ? "fine" : "failed";
}

static int say(void *context, const char *text, size_t length)
{
    (void)context;
    return fwrite(text, 1, length, stdout) == length ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct phasor_error err = {0};
    struct phasor_model *model = NULL;
    struct phasor_model_params model_params = phasor_model_params_default();
    struct phasor_generate_params params = phasor_generate_params_default();
    struct phasor_generate_result result = {0};
    enum phasor_status status = PHASOR_INVALID_ARGUMENT;

    if (argc != 2 || strcmp(phasor_version(), PHASOR_VERSION) != 0)
        return 2;
    model_params.model = argv[1];
    model_params.thread_count = 2;
    params.prompt = "In the beginning";
    params.max_tokens = 4;
    params.kv_bytes = 16 << 20;
    params.text = say;
    if (phasor_model_open(&model, &model_params, &err) == PHASOR_OK)
        status = phasor_generate(model, &params, &result, &err);
    phasor_model_close(model);
    printf("\n%s: %d tokens %s\n", status_name((int)status), (int)result.completion_tokens,
           err.message);
    return status == PHASOR_OK && result.completion_tokens == 4 ? 0 : 1;
}
