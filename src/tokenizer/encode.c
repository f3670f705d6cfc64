/* Text to ids. */
#include "base/memory.h"
#include "tokenizer/internal.h"
#include "tokenizer/utf8_clean.h"

struct encode_work {
    struct text normal, scratch;
    struct segment_list raw, normalized;
    struct pretokenizer_work words;
    struct bpe_work bpe;
};

static void encode_work_deinit(struct encode_work *work)
{
    text_deinit(&work->normal);
    text_deinit(&work->scratch);
    segment_list_deinit(&work->raw);
    segment_list_deinit(&work->normalized);
    pretokenizer_work_deinit(&work->words);
    bpe_work_deinit(&work->bpe);
}

/* A text without added tokens. */
static enum status encode_words(const struct tokenizer *tokenizer, struct encode_work *work,
                                struct token_list *out, const char *text, size_t length,
                                bool at_start, struct error *err)
{
    struct pretokenizer_work *words = &work->words;
    TRY(pretokenizer_apply(&tokenizer->pretokenizer, words, text, length, at_start, err));
    for (size_t i = 0; i < words->pieces.count; i++) {
        struct span word = words->pieces.items[i];
        TRY(bpe_encode(&tokenizer->bpe, &work->bpe, out, words->text.bytes + word.begin,
                       word.end - word.begin, err));
    }
    return STATUS_OK;
}

/* A part between added tokens of the raw text. Special tokens that are looked for in normalized
 * text cannot be told from a message's own text any more, so spans accept none of them. */
static enum status encode_part(const struct tokenizer *tokenizer, struct encode_work *work,
                               struct token_list *out, const char *text, size_t length,
                               bool at_start, bool parse_special, struct error *err)
{
    struct special_places places = {.everywhere = parse_special};
    TRY(normalizer_apply(&tokenizer->normalizer, &work->normal, &work->scratch, text, length, err));
    TRY(added_tokens_split(&tokenizer->added.normalized, &work->normalized, work->normal.bytes,
                           work->normal.length, places, err));
    for (size_t i = 0; i < work->normalized.count; i++) {
        struct segment segment = work->normalized.items[i];
        if (segment.id >= 0)
            TRY(token_list_add(out, segment.id, err));
        else
            TRY(encode_words(tokenizer, work, out, work->normal.bytes + segment.begin,
                             segment.end - segment.begin, at_start && segment.begin == 0, err));
    }
    return STATUS_OK;
}

static enum status encode_text(const struct tokenizer *tokenizer, struct encode_work *work,
                               struct token_list *out, const char *text, size_t length,
                               struct special_places places, struct error *err)
{
    work->words.match.text_bytes = length;
    TRY(added_tokens_split(&tokenizer->added.raw, &work->raw, text, length, places, err));
    for (size_t i = 0; i < work->raw.count; i++) {
        struct segment segment = work->raw.items[i];
        if (segment.id >= 0)
            TRY(token_list_add(out, segment.id, err));
        else
            TRY(encode_part(tokenizer, work, out, text + segment.begin, segment.end - segment.begin,
                            segment.begin == 0, places.everywhere, err));
    }
    return STATUS_OK;
}

static enum status add_ids(struct token_list *out, const int32_t *ids, size_t count,
                           struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(token_list_add(out, ids[i], err));
    return STATUS_OK;
}

enum status tokenizer_encode_places(const struct tokenizer *tokenizer, struct token_list *out,
                                    const char *text, size_t length, struct special_places places,
                                    bool add_special, struct error *err)
{
    const struct frame *frame = &tokenizer->frame;
    struct encode_work work = {0};
    struct text clean = {0};
    size_t old_count = out->count;
    enum status status;
    if (length > ENCODE_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "the text is %zu bytes long, at most %zu are allowed",
                         length, ENCODE_BYTES_MAX);
    if (!utf8_is_valid(text, length)) {
        ASSERT(places.span_count == 0);
        utf8_append_clean(&clean, text, length);
        TRY_GOTO(text_check(&clean, "a text", err), done);
        text = clean.bytes;
        length = clean.length;
    }
    if (add_special)
        TRY_GOTO(add_ids(out, frame->before, frame->before_count, err), done);
    TRY_GOTO(encode_text(tokenizer, &work, out, text, length, places, err), done);
    if (add_special)
        TRY_GOTO(add_ids(out, frame->after, frame->after_count, err), done);
    status = STATUS_OK;
done:
    if (status != STATUS_OK)
        out->count = old_count;
    text_deinit(&clean);
    encode_work_deinit(&work);
    return status;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, struct token_list *out,
                             const char *text, size_t length, struct encode_options options,
                             struct error *err)
{
    struct special_places places = {.everywhere = options.parse_special};
    return tokenizer_encode_places(tokenizer, out, text, length, places, options.add_special, err);
}
