#include "tokenizer/chat.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tokenizer/chat_internal.h"
#include "tokenizer/internal.h"
#include "tokenizer/utf8_clean.h"

static const struct inst_style mixtral_style = {" [INST] ", " [/INST]", " ",
                                                "",         "",         INST_SYSTEM_FIRST};
static const struct inst_style mixtral_8x22b_style = {"[INST] ", "[/INST]", " ",
                                                      "",        "",        INST_SYSTEM_LAST};
static const struct inst_style mixtral_2023_style = {"[INST] ", " [/INST]", "",
                                                     "",        "",         INST_SYSTEM_REFUSED};
static const struct inst_style mixtral_spaced_style = {"[INST] ", " [/INST]", "",
                                                       "",        " ",        INST_SYSTEM_REFUSED};
static const struct inst_style mixtral_8x22b_2024_style = {" [INST] ", " [/INST]",         " ", " ",
                                                           "",         INST_SYSTEM_REFUSED};
static const struct inst_style kjv_moe_style = {"[INST] ", " [/INST]", " ",
                                                "",        "",         INST_SYSTEM_NEXT};

static const struct chatml_style qwen15_style = {CHATML_QWEN15, "You are a helpful assistant",
                                                 THINKING_NONE};
static const struct chatml_style qwen2_style = {CHATML_PLAIN, "You are a helpful assistant.",
                                                THINKING_NONE};
static const struct chatml_style qwen3_style = {CHATML_QWEN3, NULL, THINKING_OPTIONAL};
static const struct chatml_style qwen3_instruct_style = {CHATML_QWEN3, NULL, THINKING_NONE};
static const struct chatml_style qwen3_thinking_style = {CHATML_QWEN3, NULL, THINKING_ALWAYS};
static const struct chatml_style qwen3_coder_style = {CHATML_PLAIN, NULL, THINKING_NONE};

enum template_index {
    MIXTRAL,
    MIXTRAL_8X22B,
    MIXTRAL_2023,
    MIXTRAL_SPACED,
    MIXTRAL_8X22B_2024,
    KJV_MOE,
    QWEN15,
    QWEN2,
    QWEN3,
    QWEN3_INSTRUCT,
    QWEN3_THINKING,
    QWEN3_CODER,
    TEMPLATE_COUNT,
};

static const struct chat_template templates[TEMPLATE_COUNT] = {
    [MIXTRAL] = {"mixtral", &mixtral_style, NULL},
    [MIXTRAL_8X22B] = {"mixtral-8x22b", &mixtral_8x22b_style, NULL},
    [MIXTRAL_2023] = {"mixtral-2023", &mixtral_2023_style, NULL},
    [MIXTRAL_SPACED] = {"mixtral-spaced", &mixtral_spaced_style, NULL},
    [MIXTRAL_8X22B_2024] = {"mixtral-8x22b-2024", &mixtral_8x22b_2024_style, NULL},
    [KJV_MOE] = {"kjv-moe", &kjv_moe_style, NULL},
    [QWEN15] = {"qwen1.5", NULL, &qwen15_style},
    [QWEN2] = {"qwen2", NULL, &qwen2_style},
    [QWEN3] = {"qwen3", NULL, &qwen3_style},
    [QWEN3_INSTRUCT] = {"qwen3-instruct", NULL, &qwen3_instruct_style},
    [QWEN3_THINKING] = {"qwen3-thinking", NULL, &qwen3_thinking_style},
    [QWEN3_CODER] = {"qwen3-coder", NULL, &qwen3_coder_style},
};

/* Texts of templates that were seen, by chat_template_hash. To add one: put its text into a file,
 * run tools/goldens/tokenizer/chat_goldens.py, and enter the hash that it prints with the family
 * whose rendering it finds to be equal. */
static const struct {
    char hash[CHAT_TEMPLATE_HASH_LENGTH + 1];
    enum template_index index;
} known_texts[] = {
    /* mistralai/Mixtral-8x7B-Instruct-v0.1 since 2024-08, and 8x22B alike; both as in
     * huggingface/huggingface.js: packages/ollama-utils/src/chat-template-automap.ts */
    {"6aef58edf0d62df9f89cfc57f651ff3d", MIXTRAL},
    {"c7c5aba43d0f450f797fff16f26a5c01", MIXTRAL_8X22B},
    /* mistralai/Mixtral-8x7B-Instruct-v0.1, first form:
     * huggingface/huggingface.js: packages/jinja/test/e2e.test.js */
    {"f395fc5daa794129a5d004210ebce758", MIXTRAL_2023},
    /* The same with a space behind </s>, as early 2024 (and Mistral-7B-Instruct-v0.1): same file */
    {"70bf874ad98f31f4b7f52373b11c60d7", MIXTRAL_SPACED},
    /* mistralai/Mixtral-8x22B-Instruct-v0.1, first form:
     * OptimalScale/LMFlow: docs/source/examples/supported_conversation_template.md */
    {"55c3395246ee99a4f148bc479cb6f9a8", MIXTRAL_8X22B_2024},
    /* models/kjv-moe/tokenizer_config.json */
    {"644f5ff8c7d68dfc0ca510dd6a0a576f", KJV_MOE},
    /* Qwen/Qwen1.5-72B-Chat: huggingface/huggingface.js: packages/jinja/test/e2e.test.js */
    {"e172667461b75b81f40d3b263dcc40bf", QWEN15},
    /* Qwen 1.5 (later) and 2: packages/ollama-utils/src/chat-template-automap.ts, "qwen2" */
    {"e580c2da83415028d5d943bd0bd9082f", QWEN2},
    /* Qwen/Qwen3-0.6B: packages/jinja/test/e2e.test.js; and its form since 2025-07, which has the
     * body of the next with this one's last lines */
    {"4457e3d12b367a860283f874ff58d644", QWEN3},
    {"0fab82ce8f4d5175c9e0155c80737cf2", QWEN3},
    /* Qwen3 Thinking-2507: akougkas/warpio-cli: warpio-docs/ai-docs/model_cards/qwen3:4b.md */
    {"cb53a145cfc5e326bdee364f122d2352", QWEN3_THINKING},
    /* Qwen3 Instruct-2507: the same but for its last lines, as in lmstudio-community's files */
    {"4b47592ab47e566c0851ab9cd45ab48a", QWEN3_INSTRUCT},
    /* Qwen/Qwen3-Coder-30B-A3B-Instruct: chat-template-automap.ts, "qwen3-coder"; and
     * google/minja: tests_files/Qwen-Qwen3-Coder-30B-A3B-Instruct.jinja */
    {"fc7579015a16bbd740f48cea39f88d70", QWEN3_CODER},
    {"cacc33f7684f2a30b0acca7adcbb8755", QWEN3_CODER},
};

#define KNOWN_COUNT (sizeof known_texts / sizeof known_texts[0])

const struct chat_template *chat_template_find(const char *name)
{
    for (size_t i = 0; i < TEMPLATE_COUNT; i++) {
        if (strcmp(templates[i].name, name) == 0)
            return &templates[i];
    }
    return NULL;
}

const char *chat_template_name(const struct chat_template *chat_template)
{
    return chat_template->name;
}

const char *const *chat_template_names(void)
{
    static const char *const names[] = {"mixtral",
                                        "mixtral-8x22b",
                                        "mixtral-2023",
                                        "mixtral-spaced",
                                        "mixtral-8x22b-2024",
                                        "kjv-moe",
                                        "qwen1.5",
                                        "qwen2",
                                        "qwen3",
                                        "qwen3-instruct",
                                        "qwen3-thinking",
                                        "qwen3-coder",
                                        NULL};
    _Static_assert(sizeof names / sizeof names[0] == TEMPLATE_COUNT + 1, "one name each");
    return names;
}

static bool is_space(char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

void chat_template_hash(char out[CHAT_TEMPLATE_HASH_LENGTH + 1], const char *text, size_t length)
{
    while (length > 0 && is_space(text[length - 1]))
        length--;
    while (length > 0 && is_space(text[0])) {
        text++;
        length--;
    }
    XXH128_hash_t hash = XXH3_128bits(text, length);
    snprintf(out, CHAT_TEMPLATE_HASH_LENGTH + 1, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

const struct chat_template *chat_template_by_hash(const char *hash)
{
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        if (strcmp(known_texts[i].hash, hash) == 0)
            return &templates[known_texts[i].index];
    }
    return NULL;
}

enum status chat_template_of(const struct chat_template **out, const struct tokenizer *tokenizer,
                             struct error *err)
{
    if (tokenizer->chat_template == NULL)
        return error_set(err, STATUS_NOT_FOUND,
                         "the checkpoint has no chat template; name one with --chat-template");
    char hash[CHAT_TEMPLATE_HASH_LENGTH + 1];
    chat_template_hash(hash, tokenizer->chat_template, tokenizer->chat_template_length);
    const struct chat_template *known = chat_template_by_hash(hash);
    if (known != NULL) {
        *out = known;
        return STATUS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "the checkpoint's chat template (hash %s) is not known; name one with "
                     "--chat-template",
                     hash);
}

void chat_write_markup(struct chat_writer *writer, const char *markup)
{
    struct span_list *list = &writer->markup;
    size_t begin = writer->text.length;
    text_append_string(&writer->text, markup);
    size_t end = writer->text.length;
    if (list->count > 0 && list->items[list->count - 1].end == begin)
        list->items[list->count - 1].end = (uint32_t)end;
    else if (writer->status == STATUS_OK)
        writer->status = span_list_add(list, begin, end, writer->err);
}

void chat_write_content(struct chat_writer *writer, const char *content, size_t length)
{
    utf8_append_clean(&writer->text, content, length);
}

static enum status check_messages(const struct conversation *conversation, struct error *err)
{
    size_t left = ENCODE_BYTES_MAX;
    if (conversation->count == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "the conversation has no messages");
    for (size_t i = 0; i < conversation->count; i++) {
        const struct chat_message *message = &conversation->messages[i];
        if (message->content_length > left ||
            message->reasoning_length > left - message->content_length)
            return error_set(err, STATUS_LIMIT, "the conversation is longer than %zu bytes",
                             ENCODE_BYTES_MAX);
        left -= message->content_length + message->reasoning_length;
    }
    return STATUS_OK;
}

/* Fills the writer, which the caller clears; `out` is only written when all went well. */
static enum status render(const struct chat_template *chat_template, struct chat_writer *writer,
                          const struct conversation *conversation)
{
    TRY(check_messages(conversation, writer->err));
    if (chat_template->inst != NULL)
        TRY(inst_render(chat_template->inst, writer, conversation));
    else
        TRY(chatml_render(chat_template->chatml, writer, conversation));
    TRY(writer->status);
    return text_check(&writer->text, "a conversation", writer->err);
}

static void writer_deinit(struct chat_writer *writer)
{
    text_deinit(&writer->text);
    span_list_deinit(&writer->markup);
}

enum status chat_render(const struct chat_template *chat_template, struct text *out,
                        const struct chat_message *messages, size_t message_count,
                        struct chat_options options, struct error *err)
{
    struct chat_writer writer = {.bos = "<s>", .eos = "</s>", .err = err};
    struct conversation conversation = {messages, message_count, options};
    enum status status;
    TRY_GOTO(render(chat_template, &writer, &conversation), done);
    text_append(out, writer.text.bytes, writer.text.length);
    status = text_check(out, "a conversation", err);
done:
    writer_deinit(&writer);
    return status;
}

/* A marker must be found in the raw text: only there is it told from a message's own text. */
static enum status check_marker(const struct tokenizer *tokenizer, const char *name,
                                const char *marker, struct error *err)
{
    const struct token_set *set = &tokenizer->added.raw;
    for (size_t i = 0; i < set->count; i++) {
        if (set->tokens[i].special && set->tokens[i].length == strlen(marker) &&
            memcmp(set->tokens[i].text, marker, set->tokens[i].length) == 0)
            return STATUS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "the chat template \"%s\" needs the special token \"%s\", which the tokenizer "
                     "does not have",
                     name, marker);
}

enum status chat_encode(const struct chat_template *chat_template,
                        const struct tokenizer *tokenizer, struct token_list *out,
                        const struct chat_message *messages, size_t message_count,
                        struct chat_options options, struct error *err)
{
    struct chat_writer writer = {
        .bos = tokenizer->bos_text != NULL ? tokenizer->bos_text : "<s>",
        .eos = tokenizer->eos_text != NULL ? tokenizer->eos_text : "</s>",
        .err = err,
    };
    struct conversation conversation = {messages, message_count, options};
    bool is_inst = chat_template->inst != NULL;
    TRY(check_marker(tokenizer, chat_template->name, is_inst ? writer.bos : "<|im_start|>", err));
    TRY(check_marker(tokenizer, chat_template->name, is_inst ? writer.eos : "<|im_end|>", err));
    enum status status;
    TRY_GOTO(render(chat_template, &writer, &conversation), done);
    struct special_places places = {.spans = writer.markup.items,
                                    .span_count = writer.markup.count};
    status = tokenizer_encode_places(tokenizer, out, writer.text.bytes, writer.text.length, places,
                                     false, err);
done:
    writer_deinit(&writer);
    return status;
}
