/* A tokenizer.json; behind a line "====" a text; behind another one tokenizer_config.json. */
#include "fuzz.h"
#include "tokenizer_checks.h"

static void try_text(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    for (unsigned bits = 0; bits < 4; bits++) {
        struct encode_options options = {.add_special = bits & 1, .parse_special = bits >> 1};
        struct text decoded = {0};
        (void)check_text(&decoded, tokenizer, text, length, options);
        text_deinit(&decoded);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    struct fuzz_input input = {(const char *)data, size, false};
    struct tokenizer *tokenizer = NULL;
    struct error err;
    char *json, *text, *config;
    size_t json_length, text_length, config_length;
    fuzz_part(&json, &json_length, &input);
    fuzz_part(&text, &text_length, &input);
    bool has_config = fuzz_part(&config, &config_length, &input);
    enum status status = tokenizer_parse(&tokenizer, json, json_length, has_config ? config : NULL,
                                         config_length, "tokenizer.json", &err);
    memory_free(json); /* the tokenizer points nowhere into them */
    memory_free(config);
    if (status == STATUS_OK) {
        check_ids(tokenizer);
        try_text(tokenizer, text, text_length);
    } else {
        fuzz_check_error(status, &err);
        FUZZ_CHECK(tokenizer == NULL);
    }
    tokenizer_close(tokenizer);
    memory_free(text);
    fuzz_end(&account);
    return 0;
}
