/* What tokenizer_config.json adds to a tokenizer. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/internal.h"

static enum status keep(const char **out, struct tokenizer *tokenizer, const json_t *value,
                        const char *file, struct error *err)
{
    *out = arena_copy_text(&tokenizer->arena, json_string_value(value), json_string_length(value));
    if (*out == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate the contents of %s", file);
    return STATUS_OK;
}

/* A token is written as its text or as an object with "content". */
static enum status read_token_text(const char **out, struct tokenizer *tokenizer,
                                   const json_t *config, const char *key, const char *file,
                                   struct error *err)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (value == NULL || json_is_null(value))
        return STATUS_OK;
    if (!json_is_string(value))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected a token, found %s", file, key,
                         json_kind(value));
    return keep(out, tokenizer, value, file, err);
}

/* The template is a string, or a list of named ones, of which "default" counts. */
static enum status read_template(struct tokenizer *tokenizer, const json_t *config,
                                 const char *file, struct error *err)
{
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            value = json_object_get(entry, "template");
            break;
        }
    }
    if (!json_is_string(value))
        return STATUS_OK;
    tokenizer->chat_template_length = json_string_length(value);
    return keep(&tokenizer->chat_template, tokenizer, value, file, err);
}

/* The Llama tokenizer classes build the frame from these two switches; others ignore them. */
static bool uses_switches(const json_t *config)
{
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    return class != NULL &&
           (strcmp(class, "LlamaTokenizer") == 0 || strcmp(class, "LlamaTokenizerFast") == 0);
}

static enum status apply_switch(struct tokenizer *tokenizer, const json_t *config, const char *key,
                                const char *token, int32_t *ids, size_t *count, const char *file,
                                struct error *err)
{
    bool wanted;
    if (!json_is_boolean(json_object_get(config, key)))
        return STATUS_OK;
    TRY(json_get_bool_or(&wanted, config, file, key, false, err));
    int32_t id = token == NULL ? -1 : vocab_find(&tokenizer->vocab, token, strlen(token));
    if (wanted && id < 0)
        return error_set(err, STATUS_FORMAT, "%s: \"%s\" is true, but there is no such token", file,
                         key);
    *count = wanted ? 1 : 0;
    ids[0] = id;
    return STATUS_OK;
}

enum status tokenizer_read_config(struct tokenizer *tokenizer, const json_t *config,
                                  const char *file, struct error *err)
{
    struct frame *frame = &tokenizer->frame;
    TRY(read_token_text(&tokenizer->bos_text, tokenizer, config, "bos_token", file, err));
    TRY(read_token_text(&tokenizer->eos_text, tokenizer, config, "eos_token", file, err));
    TRY(read_template(tokenizer, config, file, err));
    if (!uses_switches(config))
        return STATUS_OK;
    TRY(apply_switch(tokenizer, config, "add_bos_token", tokenizer->bos_text, frame->before,
                     &frame->before_count, file, err));
    return apply_switch(tokenizer, config, "add_eos_token", tokenizer->eos_text, frame->after,
                        &frame->after_count, file, err);
}
