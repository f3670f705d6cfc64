/* Ids to text, one at a time. */
#include <string.h>

#include "tokenizer/internal.h"
#include "tokenizer/utf8_clean.h"

/* An added token that is looked for in normalized text also decodes from its normalized form, as in
 * the reference since 0.22: with Prepend and Replace its spaces are then decoded like all others.
 */
static bool append_added(const struct tokenizer *tokenizer, struct text *out, int32_t id,
                         bool first, bool *took_place)
{
    const struct token_set *set = &tokenizer->added.normalized;
    for (size_t i = 0; i < set->count; i++) {
        const struct added_token *token = &set->tokens[i];
        if (token->id != id)
            continue;
        *took_place = decode_plan_apply(&tokenizer->decode, out, token->text, token->length, first);
        return true;
    }
    return false;
}

/* Returns whether the token took the first place of the text. */
static bool append_token(const struct tokenizer *tokenizer, struct text *out, int32_t id,
                         bool first, bool skip_special)
{
    const struct vocab_token *token = vocab_at(&tokenizer->vocab, id);
    if (token == NULL || (skip_special && (token->flags & TOKEN_SPECIAL) != 0))
        return false;
    bool took_place;
    if ((token->flags & TOKEN_ADDED) != 0 && append_added(tokenizer, out, id, first, &took_place))
        return took_place;
    return decode_plan_apply(&tokenizer->decode, out, token->text, token->length, first);
}

void tokenizer_token_bytes(const struct tokenizer *tokenizer, struct text *out, int32_t id,
                           bool first, bool skip_special)
{
    (void)append_token(tokenizer, out, id, first, skip_special);
}

/* Puts a text back as it was before a failed append. */
static void text_restore(struct text *text, size_t length, bool failed)
{
    text->length = length;
    text->failed = failed;
    if (text->bytes != NULL)
        text->bytes[length] = 0;
}

enum status decoder_push(struct decoder *decoder, const struct tokenizer *tokenizer,
                         struct text *out, int32_t id, struct error *err)
{
    size_t old_pending = decoder->pending.length, old_length = out->length;
    bool was_failed = out->failed;
    bool took_place =
        append_token(tokenizer, &decoder->pending, id, !decoder->started, decoder->skip_special);
    size_t used = utf8_append_finished(out, decoder->pending.bytes, decoder->pending.length);
    enum status status = text_check(&decoder->pending, "a decoded text", err);
    if (status == STATUS_OK)
        status = text_check(out, "a decoded text", err);
    if (status != STATUS_OK) {
        text_restore(&decoder->pending, old_pending, false);
        text_restore(out, old_length, was_failed);
        return status;
    }
    size_t rest = decoder->pending.length - used;
    if (used > 0)
        memmove(decoder->pending.bytes, decoder->pending.bytes + used, rest);
    text_restore(&decoder->pending, rest, false);
    decoder->started = decoder->started || took_place;
    return STATUS_OK;
}

enum status decoder_finish(struct decoder *decoder, struct text *out, struct error *err)
{
    size_t old_length = out->length;
    bool was_failed = out->failed;
    utf8_append_clean(out, decoder->pending.bytes, decoder->pending.length);
    enum status status = text_check(out, "a decoded text", err);
    if (status != STATUS_OK)
        text_restore(out, old_length, was_failed);
    else
        text_clear(&decoder->pending);
    return status;
}

void decoder_deinit(struct decoder *decoder)
{
    text_deinit(&decoder->pending);
    *decoder = (struct decoder){0};
}
