/* The ChatML families of Qwen. */
#include <string.h>

#include "tokenizer/byte_search.h"
#include "tokenizer/chat_internal.h"

struct slice {
    const char *bytes;
    size_t length;
};

static struct slice content_of(const struct chat_message *message)
{
    return (struct slice){message->content, message->content_length};
}

static struct slice strip_front(struct slice text)
{
    while (text.length > 0 && text.bytes[0] == '\n') {
        text.bytes++;
        text.length--;
    }
    return text;
}

static struct slice strip_back(struct slice text)
{
    while (text.length > 0 && text.bytes[text.length - 1] == '\n')
        text.length--;
    return text;
}

/* The part before the first `mark`; all when there is none. */
static struct slice before_first(struct slice text, const char *mark)
{
    const char *hit = bytes_find(text.bytes, text.length, mark, strlen(mark));
    if (hit != NULL)
        text.length = (size_t)(hit - text.bytes);
    return text;
}

/* The part behind the last `mark`; all when there is none. */
static struct slice behind_last(struct slice text, const char *mark)
{
    size_t length = strlen(mark);
    const char *hit;
    while ((hit = bytes_find(text.bytes, text.length, mark, length)) != NULL) {
        text.length -= (size_t)(hit - text.bytes) + length;
        text.bytes = hit + length;
    }
    return text;
}

static void write_content(struct chat_writer *writer, struct slice text)
{
    chat_write_content(writer, text.bytes, text.length);
}

static void open_turn(struct chat_writer *writer, const char *role)
{
    chat_write_markup(writer, "<|im_start|>");
    chat_write_markup(writer, role);
    chat_write_markup(writer, "\n");
}

static void close_turn(struct chat_writer *writer)
{
    chat_write_markup(writer, "<|im_end|>\n");
}

static enum status check_role(const struct chat_writer *writer, const struct chat_message *message)
{
    if (chat_role_is(message, "system") || chat_role_is(message, "user") ||
        chat_role_is(message, "assistant"))
        return STATUS_OK;
    return error_set(writer->err, STATUS_INVALID_ARGUMENT,
                     "a message has role \"%s\"; expected system, user or assistant",
                     message->role);
}

static bool wraps(struct slice text, const char *front, const char *back)
{
    size_t front_length = strlen(front), back_length = strlen(back);
    return text.length >= front_length && text.length >= back_length &&
           memcmp(text.bytes, front, front_length) == 0 &&
           memcmp(text.bytes + text.length - back_length, back, back_length) == 0;
}

/* The last question that a person asked: what a tool answered does not count. */
static size_t last_query(const struct conversation *conversation)
{
    for (size_t i = conversation->count; i-- > 0;) {
        const struct chat_message *message = &conversation->messages[i];
        if (chat_role_is(message, "user") &&
            !wraps(content_of(message), "<tool_response>", "</tool_response>"))
            return i;
    }
    return conversation->count - 1;
}

/* What an answer's turn was thinking; where that is a part of its content, it is taken out there.
 */
static struct slice take_thinking(struct slice *content, const struct chat_message *message)
{
    struct slice all = *content;
    if (message->reasoning != NULL)
        return (struct slice){message->reasoning, message->reasoning_length};
    if (before_first(all, "</think>").length == all.length)
        return (struct slice){0};
    *content = strip_front(behind_last(all, "</think>"));
    return strip_front(behind_last(strip_back(before_first(all, "</think>")), "<think>"));
}

/* Thinking is kept behind the last question only. */
static void write_qwen3_answer(struct chat_writer *writer, const struct chat_message *message,
                               bool is_recent, bool is_last)
{
    struct slice content = content_of(message);
    struct slice thinking = take_thinking(&content, message);
    open_turn(writer, "assistant");
    if (is_recent && (is_last || thinking.length > 0)) {
        chat_write_markup(writer, "<think>\n");
        write_content(writer, strip_back(strip_front(thinking)));
        chat_write_markup(writer, "\n</think>\n\n");
        content = strip_front(content);
    }
    write_content(writer, content);
    close_turn(writer);
}

static void write_message(const struct chatml_style *style, struct chat_writer *writer,
                          const struct conversation *conversation, size_t i, size_t query)
{
    const struct chat_message *message = &conversation->messages[i];
    bool is_last = i + 1 == conversation->count;
    if (style->kind == CHATML_QWEN3 && chat_role_is(message, "assistant")) {
        write_qwen3_answer(writer, message, i > query, is_last);
        return;
    }
    open_turn(writer, message->role);
    write_content(writer, content_of(message));
    if (style->kind != CHATML_QWEN15 || !is_last || conversation->options.add_generation_prompt)
        close_turn(writer);
}

static void open_answer(const struct chatml_style *style, struct chat_writer *writer,
                        bool enable_thinking)
{
    open_turn(writer, "assistant");
    if (style->thinking == THINKING_ALWAYS)
        chat_write_markup(writer, "<think>\n");
    else if (style->thinking == THINKING_OPTIONAL && !enable_thinking)
        chat_write_markup(writer, "<think>\n\n</think>\n\n");
}

enum status chatml_render(const struct chatml_style *style, struct chat_writer *writer,
                          const struct conversation *conversation)
{
    const struct chat_message *last = &conversation->messages[conversation->count - 1];
    for (size_t i = 0; i < conversation->count; i++)
        TRY(check_role(writer, &conversation->messages[i]));
    if (style->default_system != NULL && !chat_role_is(&conversation->messages[0], "system")) {
        open_turn(writer, "system");
        chat_write_markup(writer, style->default_system);
        close_turn(writer);
    }
    size_t query = last_query(conversation);
    for (size_t i = 0; i < conversation->count; i++)
        write_message(style, writer, conversation, i, query);
    bool answer_begun = style->kind == CHATML_QWEN15 && chat_role_is(last, "assistant");
    if (conversation->options.add_generation_prompt && !answer_begun)
        open_answer(style, writer, conversation->options.enable_thinking);
    return STATUS_OK;
}
