/* The [INST] families: Mixtral's official templates and those in their style. */
#include "tokenizer/chat_internal.h"

static enum status refuse_role(const struct chat_writer *writer, const struct chat_message *message)
{
    return error_set(writer->err, STATUS_INVALID_ARGUMENT,
                     "the chat template does not take a message with role \"%s\" here",
                     message->role);
}

/* The official templates take user and assistant in turns, the user first. */
static enum status check_turn(const struct chat_writer *writer, const struct chat_message *message,
                              size_t turn)
{
    bool is_user = chat_role_is(message, "user");
    if (!is_user && !chat_role_is(message, "assistant"))
        return refuse_role(writer, message);
    if (is_user != (turn % 2 == 0))
        return error_set(writer->err, STATUS_INVALID_ARGUMENT,
                         "the chat template wants user and assistant in turns: message %zu behind "
                         "the system text has role \"%s\"",
                         turn + 1, message->role);
    return STATUS_OK;
}

/* `system` may be NULL. */
static void write_user(const struct inst_style *style, struct chat_writer *writer,
                       const struct chat_message *system, const struct chat_message *message)
{
    chat_write_markup(writer, style->user_before);
    if (system != NULL) {
        chat_write_content(writer, system->content, system->content_length);
        chat_write_markup(writer, "\n\n");
    }
    chat_write_content(writer, message->content, message->content_length);
    chat_write_markup(writer, style->user_after);
}

static void write_answer(const struct inst_style *style, struct chat_writer *writer,
                         const struct chat_message *message)
{
    chat_write_markup(writer, style->answer_before);
    chat_write_content(writer, message->content, message->content_length);
    chat_write_markup(writer, style->answer_after);
    chat_write_markup(writer, writer->eos);
    chat_write_markup(writer, style->eos_after);
}

static enum status render_free(const struct inst_style *style, struct chat_writer *writer,
                               const struct conversation *conversation)
{
    const struct chat_message *system = NULL;
    for (size_t i = 0; i < conversation->count; i++) {
        const struct chat_message *message = &conversation->messages[i];
        if (chat_role_is(message, "system")) {
            system = message;
        } else if (chat_role_is(message, "user")) {
            write_user(style, writer, system, message);
            system = NULL;
        } else if (chat_role_is(message, "assistant")) {
            write_answer(style, writer, message);
        } else {
            return refuse_role(writer, message);
        }
    }
    return STATUS_OK;
}

enum status inst_render(const struct inst_style *style, struct chat_writer *writer,
                        const struct conversation *conversation)
{
    const struct chat_message *messages = conversation->messages, *system = NULL;
    size_t count = conversation->count;
    chat_write_markup(writer, writer->bos);
    if (style->system == INST_SYSTEM_NEXT)
        return render_free(style, writer, conversation);
    if (style->system != INST_SYSTEM_REFUSED && chat_role_is(&messages[0], "system")) {
        system = messages++;
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        TRY(check_turn(writer, &messages[i], i));
        bool takes_system = style->system == INST_SYSTEM_FIRST ? i == 0 : i + 1 == count;
        if (chat_role_is(&messages[i], "user"))
            write_user(style, writer, takes_system ? system : NULL, &messages[i]);
        else
            write_answer(style, writer, &messages[i]);
    }
    return STATUS_OK;
}
