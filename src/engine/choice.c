#include "engine/choice.h"

#include <string.h>

void choice_init(struct choice *choice, const struct choice_options *options, bool skip_special)
{
    /* The text goes on behind a prompt: its first space is not the start of a text. */
    *choice = (struct choice){.options = options,
                              .decoder = {.skip_special = skip_special, .started = true},
                              .stop_index = -1,
                              .end.stop_id = -1};
}

void choice_deinit(struct choice *choice)
{
    decoder_deinit(&choice->decoder);
    text_deinit(&choice->text);
    token_list_deinit(&choice->ids);
    scored_list_deinit(&choice->scores);
}

static void cut_text(struct choice *choice, size_t length)
{
    choice->text.length = length;
    choice->text.bytes[length] = 0;
}

/* Shows new text to the stop strings; cuts it and tells so when one is complete. */
static bool search_stops(struct choice *choice)
{
    const struct stop_set *stops = choice->options->stops;
    size_t fresh = choice->text.length - choice->searched;
    size_t end;
    if (fresh == 0 || !stop_state_feed(&choice->state, stops, choice->text.bytes + choice->searched,
                                       fresh, &end, &choice->stop_index)) {
        choice->searched = choice->text.length;
        return false;
    }
    size_t cut = choice->searched + end;
    if (!choice->options->include_stop)
        cut -= stops->strings[choice->stop_index].length;
    cut_text(choice, cut);
    return true;
}

/* The number of characters that stand before the next token. */
static int64_t text_offset(struct choice *choice)
{
    if (choice->text.length > choice->counted)
        choice->characters += count_characters(choice->text.bytes + choice->counted,
                                               choice->text.length - choice->counted);
    choice->counted = choice->text.length;
    return choice->characters;
}

enum status choice_push(struct choice *choice, const struct generated_token *token, bool *ended,
                        struct error *err)
{
    const struct choice_options *options = choice->options;
    *ended = false;
    if (options->logprobs >= 0)
        TRY(scored_list_add(&choice->scores, token, options->logprobs, text_offset(choice), err));
    TRY(ids_append(&choice->ids, token->id, err));
    if (options->tokenizer == NULL)
        return STATUS_OK;
    TRY(decoder_push(&choice->decoder, options->tokenizer, &choice->text, token->id, err));
    TRY(text_check(&choice->text, "the text of a choice", err));
    *ended = search_stops(choice);
    return STATUS_OK;
}

enum status choice_finish(struct choice *choice, const struct sequence_end *end, struct error *err)
{
    const struct choice_options *options = choice->options;
    choice->end = *end;
    choice->end.error = NULL; /* valid in the callback only */
    if (options->tokenizer == NULL || choice->stop_index >= 0)
        return STATUS_OK;
    if (options->include_stop && end->reason == FINISH_STOP && end->stop_id >= 0)
        TRY(decoder_push(&choice->decoder, options->tokenizer, &choice->text, end->stop_id, err));
    TRY(decoder_finish(&choice->decoder, &choice->text, err));
    TRY(text_check(&choice->text, "the text of a choice", err));
    search_stops(choice);
    return STATUS_OK;
}

size_t choice_settled(const struct choice *choice)
{
    return choice->stop_index >= 0
               ? choice->text.length
               : choice->text.length - stop_state_held(&choice->state, choice->options->stops);
}

const char *choice_finish_reason(const struct choice *choice)
{
    bool is_stop = choice->stop_index >= 0 || choice->end.reason == FINISH_STOP;
    return is_stop ? "stop" : "length";
}
