#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "tokenizer/internal.h"

/* The largest tokenizer.json known is 35 MB. */
#define TOKENIZER_BYTES_MAX ((size_t)64 << 20)
#define CONFIG_BYTES_MAX    ((size_t)8 << 20)
#define TEMPLATE_BYTES_MAX  ((size_t)1 << 20)

void token_list_deinit(struct token_list *list)
{
    memory_free(list->ids);
    *list = (struct token_list){0};
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    pretokenizer_deinit(&tokenizer->pretokenizer);
    added_tokens_deinit(&tokenizer->added);
    bpe_deinit(&tokenizer->bpe);
    vocab_deinit(&tokenizer->vocab);
    arena_deinit(&tokenizer->arena);
    memory_free(tokenizer);
}

/* The pipeline in the order in which a text passes through it; the vocabulary before, because the
 * others name its tokens. */
static enum status read_pipeline(struct tokenizer *tokenizer, const json_t *json, const char *file,
                                 struct error *err)
{
    const json_t *model = json_object_get(json, "model");
    const json_t *added = json_object_get(json, "added_tokens");
    struct arena *arena = &tokenizer->arena;
    if (!json_is_object(model))
        return error_set(err, STATUS_FORMAT, "%s: \"model\": expected an object, found %s", file,
                         json_kind(model));
    TRY(bpe_check_model(model, file, err));
    TRY(vocab_read(&tokenizer->vocab, arena, json_object_get(model, "vocab"), added, file, err));
    TRY(normalizer_read(&tokenizer->normalizer, arena, json_object_get(json, "normalizer"), file,
                        err));
    TRY(added_tokens_read(&tokenizer->added, arena, &tokenizer->vocab, &tokenizer->normalizer,
                          added, file, err));
    TRY(pretokenizer_read(&tokenizer->pretokenizer, arena, json_object_get(json, "pre_tokenizer"),
                          file, err));
    TRY(bpe_read(&tokenizer->bpe, &tokenizer->vocab, model, file, err));
    TRY(frame_read(&tokenizer->frame, &tokenizer->vocab, json_object_get(json, "post_processor"),
                   file, err));
    return decode_plan_read(&tokenizer->decode, arena, json_object_get(json, "decoder"), file, err);
}

/* `config` may be NULL. */
static enum status build(struct tokenizer **out, const json_t *json, const char *name,
                         const json_t *config, const char *config_name, struct error *err)
{
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct tokenizer), "a tokenizer", err));
    struct tokenizer *tokenizer = memory;
    enum status status;
    TRY_GOTO(read_pipeline(tokenizer, json, name, err), fail);
    if (config != NULL)
        TRY_GOTO(tokenizer_read_config(tokenizer, config, config_name, err), fail);
    *out = tokenizer;
    return STATUS_OK;
fail:
    tokenizer_close(tokenizer);
    return status;
}

enum status tokenizer_parse(struct tokenizer **out, const char *json, size_t json_length,
                            const char *config, size_t config_length, const char *name,
                            struct error *err)
{
    json_t *json_value = NULL, *config_value = NULL;
    enum status status;
    TRY_GOTO(json_parse_object(&json_value, json, json_length, name, err), done);
    if (config != NULL)
        TRY_GOTO(json_parse_object(&config_value, config, config_length, name, err), done);
    status = build(out, json_value, name, config_value, name, err);
done:
    json_decref(json_value);
    json_decref(config_value);
    return status;
}

static enum status join_path(struct text *out, const char *dir, const char *file, struct error *err)
{
    text_clear(out);
    text_append_format(out, "%s/%s", dir, file);
    return text_check(out, "a path", err);
}

/* DIR/tokenizer_config.json, where it is there. */
static enum status load_config(json_t **out, struct text *path, const char *dir, struct error *err)
{
    TRY(join_path(path, dir, "tokenizer_config.json", err));
    struct error reason;
    enum status status = json_load_object(out, path->bytes, CONFIG_BYTES_MAX, &reason);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    return status == STATUS_OK ? status : error_set(err, status, "%s", reason.message);
}

/* DIR/chat_template.jinja, where it is there, goes before the template of the configuration. */
static enum status load_template(struct tokenizer *tokenizer, const char *dir, struct error *err)
{
    struct text path = {0};
    char *bytes = NULL;
    size_t length;
    struct error reason;
    enum status status;
    TRY_GOTO(join_path(&path, dir, "chat_template.jinja", err), done);
    status = file_read_whole(&bytes, &length, path.bytes, TEMPLATE_BYTES_MAX, &reason);
    if (status == STATUS_OK) {
        tokenizer->chat_template = arena_copy_text(&tokenizer->arena, bytes, length);
        tokenizer->chat_template_length = length;
        if (tokenizer->chat_template == NULL)
            status = error_set(err, STATUS_NO_MEMORY, "cannot allocate %s", path.bytes);
    } else if (status == STATUS_NOT_FOUND) {
        status = STATUS_OK;
    } else {
        status = error_set(err, status, "%s", reason.message);
    }
done:
    memory_free(bytes);
    text_deinit(&path);
    return status;
}

enum status tokenizer_open(struct tokenizer **out, const char *dir, struct error *err)
{
    struct text path = {0}, config_path = {0};
    json_t *json = NULL, *config = NULL;
    struct tokenizer *tokenizer = NULL;
    enum status status;
    TRY_GOTO(join_path(&path, dir, "tokenizer.json", err), done);
    TRY_GOTO(json_load_object(&json, path.bytes, TOKENIZER_BYTES_MAX, err), done);
    TRY_GOTO(load_config(&config, &config_path, dir, err), done);
    TRY_GOTO(build(&tokenizer, json, path.bytes, config, config_path.bytes, err), done);
    TRY_GOTO(load_template(tokenizer, dir, err), done);
    *out = tokenizer;
    tokenizer = NULL;
done:
    tokenizer_close(tokenizer);
    json_decref(json);
    json_decref(config);
    text_deinit(&path);
    text_deinit(&config_path);
    return status;
}

int64_t tokenizer_vocab_count(const struct tokenizer *tokenizer)
{
    return (int64_t)tokenizer->vocab.count;
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    return vocab_find(&tokenizer->vocab, text, length);
}

const char *tokenizer_token(const struct tokenizer *tokenizer, int32_t id)
{
    const struct vocab_token *token = vocab_at(&tokenizer->vocab, id);
    return token == NULL ? NULL : token->text;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    const struct vocab_token *token = vocab_at(&tokenizer->vocab, id);
    return token != NULL && (token->flags & TOKEN_SPECIAL) != 0;
}
